"""CSV and plain text: lines, quotes, nulls, and what breaks the rules, each line by itself."""

from __future__ import annotations

import csv
import io
import tracemalloc
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncehouse.columns import parse_type
from oncehouse.config_formats import Csv, Text
from oncehouse.errors import ConfigurationError
from oncehouse.pipeline.csv_format import make_csv_format
from oncehouse.pipeline.decoding import Decoded, Format, Limits
from oncehouse.pipeline.text_format import make_text_format
from oncehouse.pipeline.verdict import Reason

LIMITS = Limits(max_message_bytes=1 << 20, max_depth=64)


def unfold(format_: Format, values: list[bytes | None]) -> pa.RecordBatch:
    offsets = pa.array(range(len(values)), pa.int64())
    return format_.unfold(pa.record_batch({"offset": offsets, "value": pa.array(values, pa.binary())}))


def decode(format_: Format, fields: dict[str, str], values: list[bytes | None]) -> Decoded:
    types = {name: parse_type(text) for name, text in fields.items()}
    return format_.make_decoder(types, (), LIMITS).decode(unfold(format_, values))


def decode_csv(fields: dict[str, str], values: list[bytes | None], **section: Any) -> Decoded:
    return decode(make_csv_format(Csv(**section), tuple(fields)), fields, values)


TWO = {"id": "Int64", "name": "String"}


def reasons(decoded: Decoded) -> dict[int, Reason]:
    return {rejection.index: rejection.reason for rejection in decoded.rejected}


def test_a_message_of_several_lines_is_several_rows_with_their_places():
    format_ = make_csv_format(Csv(), tuple(TWO))
    block = unfold(format_, [b"1,a\n2,b\r\n\n3,c\n", None, b"4,d", b"\n\n"])
    assert block.column("value").to_pylist() == [b"1,a", b"2,b", b"3,c", None, b"4,d", b""]
    assert block.column("offset").to_pylist() == [0, 0, 0, 1, 2, 3]
    assert block.column("row").to_pylist() == [0, 1, 2, 0, 0, 0]
    decoded = decode(format_, TWO, [b"1,a\n2,b\r\n\n3,c\n", None, b"4,d", b"\n\n"])
    assert [row["id"] for row in decoded.rows.to_pylist()] == [1, 2, 3, 4]
    assert decoded.skipped.tolist() == [3]
    assert reasons(decoded) == {5: Reason.EMPTY}


def test_quotes_hold_delimiters_line_ends_and_quotes():
    decoded = decode_csv(TWO, [b'1,"a,b"\n2,"line\nend"\n3,"say ""hi"""\n4,""""\n5,""\n6,'])
    assert [row["name"] for row in decoded.rows.to_pylist()] == ["a,b", "line\nend", 'say "hi"', '"', "", ""]


def test_a_line_that_breaks_the_rules_costs_only_itself():
    lines = [
        b"1,good",
        b'2,a"b',
        b'3,"open',
        b"4",
        b"5,x,y",
        b'6,"a"b',
        b"x,z",
        b'7,"fine"',
        b'8,a"b,"c',
        b"\xff,1",
    ]
    decoded = decode_csv(TWO, list(lines))
    assert [row["id"] for row in decoded.rows.to_pylist()] == [1, 7]
    assert reasons(decoded) == {
        1: Reason.MALFORMED,
        2: Reason.MALFORMED,
        3: Reason.MALFORMED,
        4: Reason.MALFORMED,
        5: Reason.MALFORMED,
        6: Reason.WRONG_TYPE,
        8: Reason.MALFORMED,
        9: Reason.BAD_UTF8,
    }
    assert decoded.rejected[2].detail == "1 columns, not 2"


def test_the_null_text_means_null_only_without_quotes_and_where_null_may_be():
    fields = {"a": "Nullable(String)", "b": "String", "c": "Nullable(Int8)"}
    decoded = decode_csv(fields, [b'\\N,\\N,\\N\n"\\N","\\N",5\n,,6'], null="\\N")
    assert decoded.rows.to_pylist() == [
        {"a": None, "b": "\\N", "c": None},
        {"a": "\\N", "b": "\\N", "c": 5},
        {"a": "", "b": "", "c": 6},
    ]
    missing = decode_csv({"id": "Int64", "name": "String"}, [b",a"])
    assert reasons(missing) == {0: Reason.MISSING_FIELD}


def test_columns_may_stand_in_another_order_with_some_left_out():
    decoded = decode_csv(
        TWO, [b"h1;h2;h3\nx;y;1"], columns=("other", "name", "id"), delimiter=";", header=True
    )
    assert decoded.rows.to_pylist() == [{"id": 1, "name": "y"}]


def test_a_message_of_a_header_alone_is_empty_and_not_lost():
    decoded = decode_csv(TWO, [b"id,name", b"id,name\n1,a"], header=True)
    assert reasons(decoded) == {0: Reason.EMPTY}
    assert decoded.rows.to_pylist() == [{"id": 1, "name": "a"}]


def test_without_quotes_a_quote_is_a_letter():
    assert decode_csv(TWO, [b'1,"a'], quote=None).rows.to_pylist() == [{"id": 1, "name": '"a'}]


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ("UInt64", "18446744073709551615", 18446744073709551615),
        ("Int8", "-128", -128),
        ("Float64", "NaN", "nan"),
        ("Float64", "-Infinity", "-inf"),
        ("Bool", "true", True),
        (
            "Decimal(38, 10)",
            "-9999999999999999999999999999.9999999999",
            "-9999999999999999999999999999.9999999999",
        ),
        ("Date", "1970-01-01", "1970-01-01"),
        ("DateTime64(3)", "2262-04-11T23:47:16.854Z", "2262-04-11 23:47:16.854000+00:00"),
        ("String", "Zoë 😀", "Zoë 😀"),
    ],
)
def test_texts_become_the_declared_types_exactly(type_, text, value):
    decoded = decode_csv({"a": type_, "b": "String"}, [f"{text},x".encode()])
    assert str(decoded.rows.column(0)[0].as_py()) == str(value)


@given(
    st.lists(
        st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8)), min_size=1, max_size=4),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=60, deadline=None)
def test_what_pythons_writer_writes_is_read_back(messages):
    texts = []
    for message in messages:
        out = io.StringIO(newline="")
        csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(message)
        texts.append(out.getvalue().encode("utf-8", "surrogatepass"))
    decoded = decode_csv({"a": "String", "b": "String"}, texts)
    assert [tuple(row.values()) for row in decoded.rows.to_pylist()] == [
        row for one in messages for row in one
    ]


@given(st.lists(st.text('ab",\n\r;é', max_size=30) | st.binary(max_size=20), min_size=1, max_size=20))
@settings(max_examples=80, deadline=None)
def test_any_bytes_are_rows_or_rejections_and_no_message_reaches_into_the_next(messages):
    values = [one if isinstance(one, bytes) else one.encode() for one in messages]
    fields = {"a": "String", "b": "Nullable(String)"}
    format_ = make_csv_format(Csv(), tuple(fields))
    block, decoded = unfold(format_, values), decode(format_, fields, values)
    places = [*decoded.taken.tolist(), *(one.index for one in decoded.rejected)]
    assert sorted(places) == list(range(block.num_rows))
    alone = [row for value in values for row in decode(format_, fields, [value]).rows.to_pylist()]
    assert decoded.rows.to_pylist() == alone


@pytest.mark.parametrize("bomb", [b'"' * 1_000_000, b'"",' * 300_000, b"," * 1_000_000, b'a"\n' * 30_000])
def test_a_bomb_takes_no_memory_and_no_neighbour(bomb):
    tracemalloc.start()
    decoded = decode_csv(TWO, [b"1,a", bomb, b"2,b"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 400 << 20
    assert [row["id"] for row in decoded.rows.to_pylist()] == [1, 2]


# -- text -------------------------------------------------------------------------------------------------


def test_a_text_is_one_field():
    decoded = decode(make_text_format(Text()), {"line": "String"}, [b"hello\nyou", None, b"", b"\xff"])
    assert decoded.rows.to_pylist() == [{"line": "hello\nyou"}, {"line": ""}]
    assert decoded.skipped.tolist() == [1]
    assert reasons(decoded) == {3: Reason.BAD_UTF8}


def test_each_line_may_be_an_event():
    decoded = decode(make_text_format(Text(lines=True)), {"line": "String"}, [b'a "b\n\nc'])
    assert decoded.rows.to_pylist() == [{"line": 'a "b'}, {"line": "c"}]


PATTERN = r"^(?P<at>\S+) (?P<level>[A-Z]+)(?: code=(?P<code>\d+))? (?P<message>.*)$"


def test_a_pattern_takes_a_line_apart():
    fields = {
        "level": "LowCardinality(String)",
        "code": "Nullable(UInt16)",
        "at": "DateTime64(3)",
        "message": "String",
    }
    decoded = decode(
        make_text_format(Text(pattern=PATTERN)),
        fields,
        [
            b"2026-11-15T12:00:00.250Z INFO code=404 not found",
            b"2026-11-15T12:00:00Z WARN slow",
            b"nonsense",
            b"2026-11-15T12:00:00Z WARN code=70000 x",
        ],
    )
    rows = decoded.rows.to_pylist()
    assert [(row["level"], row["code"], row["message"]) for row in rows] == [
        ("INFO", 404, "not found"),
        ("WARN", None, "slow"),
    ]
    assert rows[0]["at"].microsecond == 250000
    assert reasons(decoded) == {2: Reason.MALFORMED, 3: Reason.OUT_OF_RANGE}


@given(st.lists(st.binary(max_size=40), max_size=20))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_a_text_or_a_rejection(values):
    for pattern in (None, r"(?P<line>[a-z]*)(?P<x>\d)?"):
        fields = {"line": "String"} if pattern is None else {"x": "Nullable(Int8)", "line": "String"}
        decoded = decode(make_text_format(Text(pattern=pattern)), fields, list(values))
        assert len(decoded.taken) + len(decoded.rejected) == len(values)


def test_a_pattern_that_would_run_away_elsewhere_ends():
    decoded = decode(
        make_text_format(Text(pattern=r"^(?P<a>(?:x+x+)+)y$")), {"a": "String"}, [b"x" * 100_000]
    )
    assert reasons(decoded) == {0: Reason.MALFORMED}


@pytest.mark.parametrize("pattern", ["(", "(a)b", r"(?P<a>a)\1", "a+", "(?P<a>(?=x))"])
def test_what_is_no_pattern_with_named_groups_is_refused(pattern):
    with pytest.raises(ConfigurationError, match="RE2"):
        Text(pattern=pattern)
