"""Expectations: what is written is checked, what is found is judged, and what stops says how to go on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.errors import ConfigurationError
from oncehouse.etl.lineage.expectation_file import (
    ExpectationSection,
    make_expectation,
    read_expectation,
    write_expectation,
)
from oncehouse.etl.lineage.topic import Expectation, ExpectationKind, Otherwise, Template, Topic
from oncehouse.etl.quality.expectations import (
    ExpectationOutcome,
    check_columns,
    evaluate,
    explain_stop,
    format_expectation,
    measure_sql,
)
from oncehouse.etl.state.position import Position, Range


def expect(**keys) -> Expectation:
    return make_expectation(ExpectationSection(**keys))


def verdict(expectation: Expectation, *figures):
    (found,) = evaluate((expectation,), figures)
    return found


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            {"check": "row"},
            'must be rows, rows_per_source_row, null_share, value, unique; did you mean "rows"?',
        ),
        ({"check": "rows"}, "rows needs at_least, at_most or both"),
        ({"check": "rows", "at_least": 1, "column": "x"}, "looks at no column"),
        ({"check": "rows", "at_least": "many"}, "is compared with numbers from 0 on"),
        ({"check": "rows", "at_least": True}, "must be a number or a text, not true or false"),
        (
            {"check": "rows", "at_least": 2, "at_most": 1},
            r"at_least \(2\) must not be greater than at_most \(1\)",
        ),
        ({"check": "null_share", "at_most": 0.1}, "looks at one column"),
        ({"check": "null_share", "column": "x", "at_most": 5}, "between 0 and 1, or 0% and 100%"),
        ({"check": "value", "column": "x"}, "value needs at_least"),
        ({"check": "value", "column": "x", "at_least": 1, "at_most": "z"}, "of one kind"),
        ({"check": "unique"}, "unique needs `column`"),
        ({"check": "unique", "column": ["a", "a"]}, "'a' stands here more than once"),
        ({"check": "unique", "column": "x", "at_most": 1}, "unique has no bounds"),
        ({"check": "unique", "column": "x", "otherwise": "stopp"}, 'did you mean "stop"?'),
    ],
)
def test_what_guards_nothing_is_refused(keys, told):
    with pytest.raises(ConfigurationError, match=told):
        ExpectationSection(**keys)


def test_a_share_may_be_written_in_percent():
    assert expect(check="null_share", column="x", at_most="5%") == Expectation(
        check=ExpectationKind.NULL_SHARE, columns=("x",), at_most=0.05
    )


EXPECTATIONS = st.one_of(
    st.builds(Expectation, check=st.just(ExpectationKind.ROWS), at_least=st.integers(0, 2**40)),
    st.builds(
        Expectation,
        check=st.just(ExpectationKind.VALUE),
        columns=st.tuples(st.sampled_from(["a", "län`der", 'qu"ote'])),
        at_most=st.one_of(st.integers(-(2**63), 2**63), st.floats(-1e9, 1e9), st.just("2026-01-01")),
        otherwise=st.sampled_from(Otherwise),
    ),
    st.builds(Expectation, check=st.just(ExpectationKind.UNIQUE), columns=st.just(("a", "b"))),
)


@given(EXPECTATIONS)
def test_the_table_keeps_an_expectation_as_it_is(expectation):
    assert read_expectation(write_expectation(expectation)) == expectation


@pytest.mark.parametrize(
    ("expectation", "figures", "holds", "figure"),
    [
        (expect(check="rows", at_least=3), (2, 9), False, "2 rows"),
        (expect(check="rows", at_least=3, at_most=3), (3, 9), True, "3 rows"),
        (expect(check="rows_per_source_row", at_least=1), (9, 10), False, "9 rows of 10 (0.9)"),
        (expect(check="rows_per_source_row", at_least=1, at_most=1), (10, 10), True, "10 rows of 10 (1)"),
        (expect(check="rows_per_source_row", at_most=1), (0, 0), True, "0 rows of 0"),
        (expect(check="null_share", column="c", at_most=0.4), (10, 0, 4), True, "4 of 10 rows (40%)"),
        (expect(check="null_share", column="c", at_most=0.4), (10, 0, 5), False, "5 of 10 rows (50%)"),
        (expect(check="null_share", column="c", at_most=0), (0, 0, 0), True, "0 of 0 rows"),
        (expect(check="unique", column="c"), (10, 0, 1), False, "1 of 10 rows repeat others"),
        (expect(check="unique", column="c"), (10, 0, 0), True, "0 of 10 rows repeat others"),
        (
            expect(check="value", column="c", at_least=1),
            (9, 0, 2, "-5", "7"),
            False,
            "2 of 9 rows outside, from -5 to 7",
        ),
    ],
)
def test_figures_are_judged(expectation, figures, holds, figure):
    found = verdict(expectation, *figures)
    assert (found.outcome, found.figure) == (
        ExpectationOutcome.HELD if holds else ExpectationOutcome.STOPPED,
        figure,
    )


def test_what_only_warns_does_not_stop():
    assert (
        verdict(expect(check="rows", at_least=1, otherwise="warn"), 0, 0).outcome == ExpectationOutcome.WARNED
    )


def test_every_figure_goes_to_its_own_expectation():
    expectations = (
        expect(check="rows", at_least=1),
        expect(check="value", column="c", at_most=5),
        expect(check="null_share", column="d", at_most=0.5),
        expect(check="unique", column="e"),
    )
    assert [one.outcome for one in evaluate(expectations, (4, 4, 0, "1", "5", 3, 0))] == [
        ExpectationOutcome.HELD,
        ExpectationOutcome.HELD,
        ExpectationOutcome.STOPPED,
        ExpectationOutcome.HELD,
    ]


def test_names_are_quoted_and_bounds_are_bound():
    hostile = Expectation(check=ExpectationKind.VALUE, columns=("a` OR 1",), at_most="x' OR 1")
    sql, bound = measure_sql((hostile,), {"a` OR 1": "String"}, rows_from="t", source_rows="1")
    assert "`a\\` OR 1` <= {expect_0_most:String}" in sql
    assert bound == {"expect_0_most": "x' OR 1"}


def test_a_column_that_the_rows_do_not_have_is_told_with_those_they_have():
    with pytest.raises(
        ConfigurationError, match=r"null_share\(cuntry\) at most 10% looks at .* it yields id, country"
    ):
        check_columns(
            (expect(check="null_share", column="cuntry", at_most=0.1),),
            ("id", "country"),
            where="Topic Orders",
        )


SPAN = Range(
    last=Position(time_ms=0, id=0), next=Position(time_ms=1_777_629_600_123, id=42), rows=10, is_cut=False
)


@pytest.mark.parametrize("template", Template)
def test_a_stopped_topic_says_what_was_found_and_how_to_go_on(template):
    topic = Topic(topic="Orders", dst="dwh.orders", template=template)
    told = explain_stop(topic, SPAN, [verdict(expect(check="rows", at_least=3), 2, 9)] * 2)
    assert "Topic Orders stopped: expected rows at least 3, found 2 rows (and 1 more" in told
    assert "change `expect` in the lineage" in told
    assert len(told) < 480, "the state of a topic has room for 500 characters"
    step_only = "`oncehouse etl seek Orders 2026-05-01T10:00:00.123,42`"
    assert (step_only in told) == (template == Template.STEP)


def test_a_stopped_back_fill_does_not_advise_to_move_the_forward_runs():
    topic = Topic(topic="Orders", dst="dwh.orders")
    told = explain_stop(topic, SPAN, [verdict(expect(check="rows", at_least=3), 2, 9)], job_kind="backfill")
    assert "No row of this backfill's range went in" in told
    assert "seek" not in told


def test_an_expectation_is_spelt_as_it_was_written():
    assert format_expectation(expect(check="unique", column=["a", "b"])) == "unique(a, b)"
    assert format_expectation(expect(check="value", column="q", at_least=1, at_most=9)) == (
        "value(q) at least 1 and at most 9"
    )
