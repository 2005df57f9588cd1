import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.clickhouse.identifiers import quote, quote_table, split_table
from oncehouse.errors import ConfigurationError


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        ("events", "`events`"),
        ("my events", "`my events`"),
        ("a`; DROP TABLE b; --", "`a\\`; DROP TABLE b; --`"),
        ("back\\slash", "`back\\\\slash`"),
        ("имя", "`имя`"),
    ],
)
def test_an_identifier_stays_one_identifier(name, quoted):
    assert quote(name) == quoted


@given(st.text(alphabet=st.sampled_from("ab`\\'\" ;-.{}"), min_size=1, max_size=20))
def test_a_quoted_name_ends_only_at_its_last_backtick(name):
    inside = quote(name)[1:-1]
    position = 0
    while position < len(inside):
        assert inside[position] != "`"
        position += 2 if inside[position] == "\\" else 1
    assert position == len(inside)


@pytest.mark.parametrize("name", ["", "a\nb", "a\x00b", "tab\t", "\x7f", "line\u2028", "\ud800", "x" * 201])
def test_names_that_no_table_can_bear_are_refused(name):
    with pytest.raises(ConfigurationError):
        quote(name)


def test_a_database_is_split_off_at_the_dot():
    assert quote_table("sales.events") == "`sales`.`events`"
    assert quote_table("events") == "`events`"
    assert split_table("sales.events").database == "sales"


@pytest.mark.parametrize("name", ["a.b.c", ".b", "a.", "."])
def test_a_table_name_has_at_most_one_dot_between_two_names(name):
    with pytest.raises(ConfigurationError):
        quote_table(name)
