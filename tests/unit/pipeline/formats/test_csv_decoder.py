"""CSV and plain text: lines, quotes, nulls, and what breaks the rules, each line by itself."""

from __future__ import annotations

import pytest

from lines_examples import TWO, decode, decode_csv, unfold
from oncehouse.config.formats import Csv, Text
from oncehouse.errors import ConfigurationError
from oncehouse.pipeline.convert.rejection import Reason
from oncehouse.pipeline.formats.base import Decoded
from oncehouse.pipeline.formats.csv.decoder import make_csv_format
from oncehouse.pipeline.formats.text import make_text_format


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


def test_a_byte_order_mark_is_no_part_of_the_first_value():
    mark = "\ufeff".encode()
    messages = [
        mark + b'1,a\n2,"b"',
        mark + b'"3","c\nd"',
        b"4," + mark + b"\n" + mark + b"5,e",
        mark + b"\n6,f",
        mark,
    ]
    decoded = decode_csv(TWO, messages)
    assert [(row["id"], row["name"]) for row in decoded.rows.to_pylist()] == [
        (1, "a"),
        (2, "b"),
        (3, "c\nd"),
        (4, "\ufeff"),
        (6, "f"),
    ]
    assert reasons(decoded) == {4: Reason.WRONG_TYPE, 6: Reason.EMPTY}
    texts = decode_csv({"a": "String", "b": "String"}, [mark + b"x,y", mark + mark + b"x,y", mark[:2]])
    assert [row["a"] for row in texts.rows.to_pylist()] == ["x", "\ufeffx"]
    headed = decode_csv(
        TWO, [mark + b"id,name\n7,g", mark + b'"id","name"\r\n8,h', mark + b"id,name"], header=True
    )
    assert [row["id"] for row in headed.rows.to_pylist()] == [7, 8]
    assert reasons(headed) == {2: Reason.EMPTY}
    plain = decode_csv(TWO, [mark + b'9,"i'], quote=None)
    assert plain.rows.to_pylist() == [{"id": 9, "name": '"i'}]


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


def test_a_pattern_that_would_run_away_elsewhere_ends():
    decoded = decode(
        make_text_format(Text(pattern=r"^(?P<a>(?:x+x+)+)y$")), {"a": "String"}, [b"x" * 100_000]
    )
    assert reasons(decoded) == {0: Reason.MALFORMED}


@pytest.mark.parametrize("pattern", ["(", "(a)b", r"(?P<a>a)\1", "a+", "(?P<a>(?=x))"])
def test_what_is_no_pattern_with_named_groups_is_refused(pattern):
    with pytest.raises(ConfigurationError, match="RE2"):
        Text(pattern=pattern)
