"""Behaviour of the JSON decoder: limits of messages, reasons, values, and independence of neighbours."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import pickle
import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oncehouse.column_types.parser import parse_type
from oncehouse.errors import ConfigurationError
from oncehouse.pipeline.convert.rejection import Reason
from oncehouse.pipeline.formats.base import Decoded
from oncehouse.pipeline.formats.json import decoder as json_decode
from oncehouse.pipeline.formats.json.decoder import JsonDecoder

GOOD = b'{"a":1}'
UUID_BYTES = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff").bytes


@pytest.fixture(scope="module", autouse=True, params=[json_decode.LEAST_UNIFORM, 1], ids=["parsed", "alike"])
def _however_it_is_read(request) -> Iterator[None]:
    """By the parser, and by the layout of messages wherever that can be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_decode, "LEAST_UNIFORM", request.param)
        patch.setattr(json_decode, "_MOST_UNTRIED_BLOCKS", 0)
        yield


def make(max_message_bytes: int = 1 << 20, max_depth: int = 64, **fields: str) -> JsonDecoder:
    types = {name: parse_type(text) for name, text in (fields or {"a": "Int64"}).items()}
    return JsonDecoder(fields=types, max_message_bytes=max_message_bytes, max_depth=max_depth)


def run(decoder: JsonDecoder, *messages: bytes | None) -> Decoded:
    return decoder.decode(pa.array(messages, pa.binary()))


def reason_of(type_: str, value: str) -> Reason | None:
    """The verdict on one value, which must be the same alone and between good neighbours."""
    decoder = make(a=f"Nullable({type_})")
    message = b'{"a":' + value.encode() + b"}"
    alone = run(decoder, message).rejected
    among = run(decoder, b'{"b":1}', message, b"{}").rejected
    assert [(r.index + 1, r.reason, r.detail) for r in alone] == [
        (r.index, r.reason, r.detail) for r in among
    ]
    return alone[0].reason if alone else None


def value_of(type_: str, value: str) -> object:
    done = run(make(a=type_), b'{"a":' + value.encode() + b"}")
    assert done.rejected == ()
    return done.rows.column(0)[0].as_py()


LARGE_DECIMALS = [(38, 2), (38, 18), (38, 30), (38, 38), (76, 10), (76, 60)]


@given(
    st.sampled_from(LARGE_DECIMALS),
    st.lists(
        st.integers(-(10**77), 10**77).map(str)
        | st.integers(0, 78).flatmap(lambda digits: st.integers(0, 10**digits)).map(str)
        | st.builds("{}e{}".format, st.integers(1, 9999), st.integers(0, 80)),
        min_size=1,
        max_size=30,
    ),
)
@example((38, 2), ["1" * 38])
@example((38, 30), ["12345678901"])
@example((76, 10), ["7" * 71, "2343e64"])
def test_a_decimal_is_never_another_number_however_many_digits_it_has(declared, numbers):
    decoder = make(a="Decimal({}, {})".format(*declared), b="Array(Decimal({}, {}))".format(*declared))
    messages = [f'{{"a":{number},"b":["{number}"]}}'.encode() for number in numbers]
    done = run(decoder, *messages)
    precision, scale = declared
    fitting = [
        place
        for place, number in enumerate(numbers)
        if abs(decimal.Decimal(number)) < 10 ** (precision - scale)
    ]
    assert done.taken.tolist() == fitting
    assert done.rows.column("a").to_pylist() == [decimal.Decimal(numbers[place]) for place in fitting]
    assert {found.reason for found in done.rejected} <= {Reason.OUT_OF_RANGE}


def test_rows_keep_the_order_of_the_block_and_name_their_places():
    done = run(make(), GOOD, None, b'{"a":2}', b"nonsense", b'{"a":3}')
    assert done.rows.to_pydict() == {"a": [1, 2, 3]}
    assert done.taken.tolist() == [0, 2, 4]
    assert done.skipped.tolist() == [1]
    assert [(r.index, r.reason) for r in done.rejected] == [(3, Reason.NOT_JSON)]


def test_an_empty_block_and_a_block_of_tombstones_have_no_rows():
    for messages in ((), (None, None)):
        done = run(make(), *messages)
        assert done.rows.num_rows == 0
        assert done.rows.schema == pa.schema([("a", pa.int64())])
        assert done.skipped.tolist() == list(range(len(messages)))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", Reason.EMPTY),
        (b" \t\r\n ", Reason.EMPTY),
        (b"\xff\xfe", Reason.BAD_UTF8),
        (b'{"a":1,"s":"\xff"}', Reason.BAD_UTF8),
        (b'{"a":1,"s":"\xed\xa0\x80"}', Reason.BAD_UTF8),
        (b"[1]", Reason.NOT_AN_OBJECT),
        (b'"text"', Reason.NOT_AN_OBJECT),
        (b"5", Reason.NOT_AN_OBJECT),
        (b"null", Reason.NOT_AN_OBJECT),
        (b'{"a":1}{"a":2}', Reason.SEVERAL_OBJECTS),
        (b'{"a":1} {"a":2}', Reason.SEVERAL_OBJECTS),
        (b'{"a":1}\n{"a":2}', Reason.SEVERAL_OBJECTS),
        (b'{"a":1},{"a":2}', Reason.NOT_JSON),
        (b'{"a":1', Reason.NOT_JSON),
        (b'{"a":1}}', Reason.NOT_JSON),
        (b'{"a":{"b":1}', Reason.NOT_JSON),
        (b'{"a":1,"s":"}', Reason.NOT_JSON),
        (b'{"a":1,}', Reason.NOT_JSON),
        (b"{'a':1}", Reason.NOT_JSON),
        (b'{"a":01}', Reason.NOT_JSON),
        (b'{"a":1,"s":"x\ny"}', Reason.NOT_JSON),
        (b'{"a":1,"s":"x\ty"}', Reason.NOT_JSON),
        (b'{"a":1}\x00', Reason.NOT_JSON),
        (b'{"a":1}\x00}', Reason.NOT_JSON),
        (b'\xef\xbb\xbf{"a":1}', Reason.NOT_JSON),
        (b'/* c */{"a":1}', Reason.NOT_JSON),
        (b'{"a":NaN}', Reason.NOT_JSON),
        (b'{"a":-Infinity}', Reason.NOT_JSON),
        (b'{"a":1,"a":1}', Reason.DUPLICATE_KEY),
        (b'{"a":1,"\\u0061":1}', Reason.DUPLICATE_KEY),
        (b"{}", Reason.MISSING_FIELD),
        (b'{"a":null}', Reason.MISSING_FIELD),
        (b'{"A":1}', Reason.MISSING_FIELD),
    ],
)
def test_a_bad_message_has_its_reason_and_costs_no_neighbour(message, reason):
    for block, place in (((message,), 0), ((GOOD, message, GOOD), 1), ((message, GOOD, message), 0)):
        done = run(make(), *block)
        assert {r.reason for r in done.rejected} == {reason}
        assert done.rejected[0].index == place
        assert done.rows.to_pydict() == {"a": [1] * (len(block) - len(done.rejected))}


def test_messages_cannot_make_up_for_each_other():
    # Two rows out of one message and none out of another: the sum would be right.
    blocks = [
        (b'{"a":1}{"a":2}', b'{"a":"}', b'{","b":3}'),
        (b'{"a":"}', b'{", "a":1}', b'{"a":1}{"a":2}'),
        (b'{"a":[{}', b"{}]}", b'{"a":1}{"a":1}'),
        (b'{"a":1}{"a":2}', b'{"a":1}\x00}', b"  "),
    ]
    for block in blocks:
        done = run(make(), *block)
        assert done.rows.num_rows == 0
        assert [r.index for r in done.rejected] == [0, 1, 2]


def test_white_space_around_and_between_is_no_fault():
    done = run(make(), b' \n{"a":1}\r\n', b'{\n "a" : 2\r\n}', b'\t{\r"a":3}', b'{"a":4,"s":"x"}\n')
    assert done.rows.to_pydict() == {"a": [1, 2, 3, 4]}


def test_size_is_limited_and_the_limit_itself_allowed():
    done = run(make(max_message_bytes=7), GOOD, b'{"a":12}')
    assert done.taken.tolist() == [0]
    assert done.rejected[0].reason is Reason.TOO_BIG


def test_depth_is_limited_outside_of_texts_only():
    deep = b'{"a":1,"b":' + b"[" * 4 + b"]" * 4 + b"}"
    brackets = b'{"a":1,"b":"[[[[[[\\"{{{["}'
    many = b'{"a":1,"b":[[],[],[],[],{},{}]}'
    done = run(make(max_depth=4), deep, brackets, many, GOOD)
    assert done.taken.tolist() == [1, 2, 3]
    assert done.rejected[0].reason is Reason.TOO_DEEP
    assert run(make(max_depth=5), deep).taken.tolist() == [0]


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_a_depth_bomb_is_put_aside_unparsed(opening):
    bombs = (opening * 150_000, b'{"a":' + opening * 100_000 + b"}")
    done = run(make(), bombs[0], GOOD, bombs[1])
    assert [r.reason for r in done.rejected] == [Reason.TOO_DEEP, Reason.TOO_DEEP]
    assert done.rows.to_pydict() == {"a": [1]}


def test_very_many_objects_in_a_message_are_refused_before_they_become_rows(monkeypatch):
    monkeypatch.setattr("oncehouse.pipeline.formats.json.decoder._RUN_OBJECTS", 3)
    done = run(make(), b"{}" * 100_000, GOOD, b'{"a":2,"b":{}}' * 2, b'{"a":3,"b":[{},{},{},{}]}', GOOD)
    assert [(r.index, r.reason) for r in done.rejected] == [(n, Reason.SEVERAL_OBJECTS) for n in (0, 2)]
    assert done.rows.to_pydict() == {"a": [1, 3, 1]}


def test_an_object_with_very_many_fields_is_one_row():
    wide = b"{" + b",".join(b'"k%d":1' % number for number in range(60_000)) + b',"a":7}'
    done = run(make(), wide, GOOD)
    assert done.rows.to_pydict() == {"a": [7, 1]}


def test_a_detail_names_the_path_and_stays_short():
    decoder = make(order="Tuple(lines Array(Tuple(size Int8)))")
    done = run(decoder, b'{"order":{"lines":[{"size":1},{"size":"' + b"x" * 5000 + b'"}]}}')
    assert done.rejected[0].detail == "field order.lines[1].size: a text cannot be Int8"
    long = JsonDecoder(fields={"k" * 9999: parse_type("Int8")}, max_message_bytes=1 << 20, max_depth=9)
    assert len(run(long, b"{}").rejected[0].detail) <= 200


@pytest.mark.parametrize(
    ("type_", "value", "reason"),
    [
        *[("Int8", v, None) for v in ("-128", "127", "0", "-0", "null")],
        *[("Int8", v, Reason.OUT_OF_RANGE) for v in ("-129", "128", "9223372036854775807", "9" * 30)],
        *[("Int8", v, Reason.WRONG_TYPE) for v in ("1.0", "1e2", '"1"', "true", "[]", "{}")],
        *[("UInt8", v, Reason.OUT_OF_RANGE) for v in ("-1", "256")],
        *[("UInt32", v, None) for v in ("4294967295",)],
        *[("UInt32", v, Reason.OUT_OF_RANGE) for v in ("4294967296",)],
        *[("Int64", v, None) for v in ("-9223372036854775808", "9223372036854775807", '"9007199254740993"')],
        *[("Int64", v, Reason.OUT_OF_RANGE) for v in ("9223372036854775808", '"9223372036854775808"')],
        *[("Int64", v, Reason.WRONG_TYPE) for v in ('"0x10"', '""', '" 1"', '"1.0"', "1.5", "true")],
        *[("UInt64", v, None) for v in ("18446744073709551615", '"18446744073709551615"')],
        *[("UInt64", v, Reason.OUT_OF_RANGE) for v in ("18446744073709551616", "-1", '"-1"')],
        *[("Int128", v, None) for v in (str(-(2**127)), f'"{2**127 - 1}"', "0")],
        *[("Int128", v, Reason.OUT_OF_RANGE) for v in (str(2**127), str(-(2**127) - 1), "9" * 90)],
        *[("UInt128", v, Reason.OUT_OF_RANGE) for v in (str(2**128), "-1")],
        *[("UInt128", v, Reason.WRONG_TYPE) for v in ('"x"', "true")],
        *[("Float64", v, None) for v in ("1", "1.5", "-0.0", "1e308", "1e-400")],
        *[("Float64", v, Reason.OUT_OF_RANGE) for v in ("1e309", "-1e999")],
        *[("Float64", v, Reason.NOT_JSON) for v in ("NaN", "Infinity", "-Infinity", "Inf")],
        *[("Float64", v, Reason.WRONG_TYPE) for v in ('"1.5"', "true")],
        *[("Float32", v, Reason.OUT_OF_RANGE) for v in ("1e39", "-1e300")],
        *[("Decimal(5, 2)", v, None) for v in ("999.99", '"-999.99"', "1e2", "1.100", '"1"')],
        *[("Decimal(5, 2)", v, Reason.OUT_OF_RANGE) for v in ("1000", "12345", "0.001", '"0.001"', "1e9")],
        *[("Decimal(5, 2)", v, Reason.WRONG_TYPE) for v in ('"x"', '""', "true", '" 1"', '"NaN"')],
        *[("Decimal(76, 0)", v, None) for v in ("9" * 76, f'"-{"9" * 76}"')],
        *[("Decimal(38, 0)", v, Reason.OUT_OF_RANGE) for v in ("1" + "0" * 38,)],
        *[("Bool", v, None) for v in ("true", "false")],
        *[("Bool", v, Reason.WRONG_TYPE) for v in ("1", '"true"')],
        *[("String", v, Reason.WRONG_TYPE) for v in ("1", "true", "[]", "{}")],
        *[("FixedString(3)", v, None) for v in ('"abc"', '"é"', '""')],
        *[("FixedString(3)", v, Reason.OUT_OF_RANGE) for v in ('"abcd"', '"éé"')],
        *[("Enum8('a' = 1, 'é' = 2)", v, None) for v in ('"a"', '"\\u00e9"')],
        *[("Enum8('a' = 1, 'é' = 2)", v, Reason.OUT_OF_RANGE) for v in ('"b"', '""')],
        *[("Enum8('a' = 1, 'é' = 2)", v, Reason.WRONG_TYPE) for v in ("1",)],
        *[("UUID", v, None) for v in ('"00112233-4455-6677-8899-AABBCCDDEEFF"',)],
        *[("UUID", v, Reason.WRONG_TYPE) for v in ('"00112233445566778899aabbccddeeff"', '"x"', "1", '""')],
        *[("UUID", v, Reason.WRONG_TYPE) for v in ('"00112233-4455-6677-8899-aabbccddeefg"',)],
        *[("Date", v, None) for v in ('"1970-01-01"', '"2149-06-06"')],
        *[("Date", v, Reason.OUT_OF_RANGE) for v in ('"1969-12-31"', '"2149-06-07"')],
        *[("Date", v, Reason.WRONG_TYPE) for v in ('"2024-02-30"', '"2024-1-1"', "19000", '"2024-01-01T00"')],
        *[("Date32", v, None) for v in ('"1900-01-01"', '"2299-12-31"')],
        *[("Date32", v, Reason.OUT_OF_RANGE) for v in ('"1899-12-31"', '"2300-01-01"')],
        *[("DateTime", v, None) for v in ('"1970-01-01T00:00:00Z"', "0", "4294967295")],
        *[("DateTime", v, Reason.OUT_OF_RANGE) for v in ("-1", "4294967296", '"1969-12-31T23:59:59Z"')],
        *[("DateTime", v, Reason.OUT_OF_RANGE) for v in ('"2106-02-07T06:28:16Z"', "9" * 25)],
        *[("DateTime", v, Reason.WRONG_TYPE) for v in ("1.5", "true", '"now"', '"1700000000"')],
        *[("DateTime64(3)", v, None) for v in ('"1900-01-01T00:00:00Z"', '"2299-12-31T23:59:59.999Z"')],
        *[("DateTime64(3)", v, Reason.OUT_OF_RANGE) for v in ('"1899-12-31T23:59:59.999Z"', '"2300-01-01"')],
        *[("DateTime64(3)", v, Reason.OUT_OF_RANGE) for v in ("9223372036854775807", "10413792000000")],
        *[("DateTime64(3)", v, Reason.WRONG_TYPE) for v in ('"2024-01-01T25:00:00Z"', '""', '"2024-13-01"')],
        *[("DateTime64(9)", v, None) for v in ('"2262-04-11T23:47:16.854775807Z"', "9223372036854775807")],
        *[("DateTime64(9)", v, Reason.OUT_OF_RANGE) for v in ('"2262-04-11T23:47:17Z"',)],
    ],
)
def test_a_value_is_taken_or_has_its_reason(type_, value, reason):
    assert reason_of(type_, value) == reason


UTC = dt.UTC
DIGITS = decimal.Decimal("0.12345678901234567891")


@pytest.mark.parametrize(
    ("type_", "text", "expected"),
    [
        ("DateTime64(3)", "2024-05-06T07:08:09.123Z", dt.datetime(2024, 5, 6, 7, 8, 9, 123000, UTC)),
        ("DateTime64(3)", "2024-05-06 07:08:09", dt.datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)),
        ("DateTime64(3)", "2024-05-06", dt.datetime(2024, 5, 6, tzinfo=UTC)),
        ("DateTime64(3)", "2024-05-06T07:08:09.123999Z", dt.datetime(2024, 5, 6, 7, 8, 9, 123000, UTC)),
        ("DateTime64(1)", "2024-05-06T07:08:09.19Z", dt.datetime(2024, 5, 6, 7, 8, 9, 100000, UTC)),
        (
            "DateTime64(3)",
            "1969-12-31T23:59:59.9999Z",
            dt.datetime(1969, 12, 31, 23, 59, 59, 999000, UTC),
        ),
        (
            "DateTime64(6)",
            "2024-05-06T07:08:09.5+02:30",
            dt.datetime(2024, 5, 6, 4, 38, 9, 500000, UTC),
        ),
        (
            "DateTime",
            "2024-05-06T07:08:09.999999999-0100",
            dt.datetime(2024, 5, 6, 8, 8, 9, tzinfo=UTC),
        ),
        (
            "DateTime64(3, 'Europe/Berlin')",
            "2024-05-06T07:08:09",
            dt.datetime(2024, 5, 6, 5, 8, 9, tzinfo=UTC),
        ),
        (
            "DateTime64(3, 'Europe/Berlin')",
            "2024-05-06T07:08:09Z",
            dt.datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC),
        ),
        (
            "DateTime('Europe/Berlin')",
            "2024-10-27T02:30:00",
            dt.datetime(2024, 10, 27, 0, 30, tzinfo=UTC),
        ),
        (
            "DateTime('Europe/Berlin')",
            "2024-03-31T02:30:00",
            dt.datetime(2024, 3, 31, 1, 0, tzinfo=UTC),
        ),
        (
            "DateTime64(3)",
            "2262-04-11T23:47:17.123456Z",
            dt.datetime(2262, 4, 11, 23, 47, 17, 123000, UTC),
        ),
    ],
)
def test_times_mean_the_same_alone_and_in_a_mixed_column(type_, text, expected):
    message = json.dumps({"a": text}).encode()
    alone = value_of(type_, json.dumps(text))
    assert isinstance(alone, dt.datetime)
    assert alone.astimezone(UTC) == expected
    others = [
        b'{"a":"2001-02-03T04:05:06Z"}',
        b'{"a":"2001-02-03 04:05:06.5"}',
        b'{"a":981173106}',
        b'{"a":"?"}',
    ]
    done = run(make(a=type_), *others[:2], message, *others[2:])
    assert done.rows.column(0)[2].as_py().astimezone(UTC) == expected
    assert [r.index for r in done.rejected] == [4]


def test_integers_count_the_ticks_of_their_column():
    moment = dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)
    seconds = int(moment.timestamp())
    for type_, factor in (
        ("DateTime", 1),
        ("DateTime64(0)", 1),
        ("DateTime64(3)", 1000),
        ("DateTime64(5)", 10**5),
    ):
        assert value_of(type_, str(seconds * factor)) == moment


@pytest.mark.parametrize(
    ("type_", "text", "expected"),
    [
        ("Int64", "9007199254740993", 9007199254740993),
        ("UInt64", "18446744073709551615", 2**64 - 1),
        ("Int128", str(-(2**127)), (-(2**127)).to_bytes(16, "little", signed=True)),
        ("UInt128", f'"{2**128 - 1}"', b"\xff" * 16),
        ("Int256", "-1", b"\xff" * 32),
        ("Decimal(38, 10)", "0.1234567891", decimal.Decimal("0.1234567891")),
        ("Decimal(38, 2)", "1" * 36 + ".78", decimal.Decimal("1" * 36 + ".78")),
        ("Decimal(18, 4)", '"12.5"', decimal.Decimal("12.5000")),
        ("Float32", "0.1", 0.10000000149011612),
        ("UUID", '"00112233-4455-6677-8899-aabbccddeeff"', UUID_BYTES),
        ("FixedString(4)", '"é"', b"\xc3\xa9\0\0"),
        ("String", '"\\u0000 \\ud83d\\ude00 \\"/"', '\0 😀 "/'),
        ("Date", '"2024-02-29"', dt.date(2024, 2, 29)),
        ("Array(Int64)", '["1","2"]', [1, 2]),
        ("Array(Nullable(UUID))", "[null]", [None]),
        ("Array(Array(String))", '[["a"],null,[]]', [["a"], [], []]),
        ("Array(Int8)", "null", []),
        ("Map(String, Int64)", '{"b":1,"a":2}', [("b", 1), ("a", 2)]),
        ("Map(String, Map(String, String))", '{"x":{"k":"v"},"y":{}}', [("x", [("k", "v")]), ("y", [])]),
        (
            "Map(UUID, Nullable(Float64))",
            '{"00112233-4455-6677-8899-aabbccddeeff":null}',
            [(UUID_BYTES, None)],
        ),
        ("Map(String, Decimal(38, 20))", '{"k":0.12345678901234567891}', [("k", DIGITS)]),
        ("Map(String, String)", "null", []),
        ("Tuple(a Int8, b Nullable(String))", '{"a":1,"z":[1]}', {"a": 1, "b": None}),
        ("Array(Tuple(m Map(String, Int64)))", '[{"m":{"x":1}},{}]', [{"m": [("x", 1)]}, {"m": []}]),
        ("LowCardinality(Nullable(String))", "null", None),
    ],
)
def test_values_arrive_exactly(type_, text, expected):
    assert value_of(type_, text) == expected


@pytest.mark.parametrize(
    ("type_", "text", "reason", "detail"),
    [
        ("Array(Int8)", "[1,null]", Reason.MISSING_FIELD, "field a[1]"),
        ("Array(Int8)", "[1,300]", Reason.OUT_OF_RANGE, "field a[1]"),
        ("Array(Int8)", '{"0":1}', Reason.WRONG_TYPE, "field a"),
        ("Array(Int64)", '[1,"2"]', Reason.WRONG_TYPE, "cannot take"),
        ("Array(UUID)", '["x"]', Reason.WRONG_TYPE, "field a[0]"),
        ("Map(String, Int8)", '{"k":300}', Reason.OUT_OF_RANGE, "field a.k"),
        ("Map(String, Int8)", '{"k":null}', Reason.MISSING_FIELD, "field a.k"),
        ("Map(String, Int8)", '{"k":1,"k":1}', Reason.DUPLICATE_KEY, "field a.k"),
        ("Map(String, Int8)", '[{"key":"k","value":1}]', Reason.WRONG_TYPE, "field a"),
        ("Map(String, Int8)", '"k"', Reason.WRONG_TYPE, "field a"),
        ("Map(UUID, Int8)", '{"k":1}', Reason.WRONG_TYPE, "key field a.k"),
        ("Tuple(x Int8)", "null", Reason.MISSING_FIELD, "field a"),
        ("Tuple(x Int8)", "{}", Reason.MISSING_FIELD, "field a.x"),
        ("Tuple(x Int8)", '{"x":1,"x":2}', Reason.DUPLICATE_KEY, "field a.x"),
        ("Tuple(x Int8)", "[1]", Reason.WRONG_TYPE, "field a"),
        ("Tuple(x Array(Date))", '{"x":["2024-01-01","?"]}', Reason.WRONG_TYPE, "field a.x[1]"),
    ],
)
def test_faults_inside_nested_values_name_their_path(type_, text, reason, detail):
    good = b'{"a":' + {"A": b"[]", "M": b"{}", "T": b'{"x":1}'}[type_[0]] + b"}"
    if "Date" in type_:
        good = b'{"a":{"x":[]}}'
    done = run(make(a=type_), good, b'{"a":' + text.encode() + b"}", good)
    assert done.taken.tolist() == [0, 2]
    assert done.rejected[0].reason is reason
    assert detail in done.rejected[0].detail


def test_half_a_surrogate_is_no_text_and_does_not_reach_the_detail():
    done = run(make(a="String"), b'{"a":"\\ud800"}', b'{"a":"\\ud83d\\ude00"}')
    assert done.rows.column(0).to_pylist() == ["\U0001f600"]
    assert done.rejected[0].reason is Reason.NOT_JSON
    names = run(make(a="Map(String, Int8)"), b'{"a":{"\\ud800\\u0000\\n":1}}').rejected[0]
    assert names.detail.encode().decode().isprintable()


def test_undeclared_fields_are_ignored_whatever_they_hold():
    message = b'{"x":{"a":9,"a":8},"y":[1,"2",{"z":null}],"a":1,"x":5}'
    assert run(make(), message).rows.to_pydict() == {"a": [1]}


UNHOLDABLE = [
    '"b":"\\ud800"',
    '"b":"\\udc00\\ud800x"',
    '"\\ud800":1',
    '"\\udfff":{"a":[]}',
    '"b":1e400',
    '"b":-1e400',
    '"b":[{"c":1e999}]',
    '"b":{"c":"\\ud800","a":7}',
    f'"b":-1{"0" * 400}.5',
]


@pytest.mark.parametrize("watch", [False, True])
@pytest.mark.parametrize("member", UNHOLDABLE)
def test_an_undeclared_member_that_no_column_could_hold_costs_nothing(member, watch):
    odd = f'{{"a":1,{member},"t":{{"x":"\\u0041",{member}}},"l":[{{"y":2,{member}}}],"u":-0}}'.encode()
    plain = b'{"a":2,"b":5,"t":{"x":"B"},"l":[],"u":7}'
    types = {
        "a": "Int32",
        "t": "Tuple(x String)",
        "l": "Array(Tuple(y Int8))",
        "u": "UInt64",
        "m": "Map(String, UInt64)",
    }
    decoder = JsonDecoder(
        fields={name: parse_type(text) for name, text in types.items()},
        max_message_bytes=9999,
        max_depth=9,
        watch=watch,
    )
    read = {"a": 1, "t": {"x": "A"}, "l": [{"y": 2}], "u": 0, "m": []}
    other = {"a": 2, "t": {"x": "B"}, "l": [], "u": 7, "m": []}
    assert run(decoder, odd).rows.to_pylist() == [read]
    done = run(decoder, *[plain] * 600, odd, *[plain] * 600)
    assert not done.rejected
    assert done.rows.to_pylist() == [other] * 600 + [read] + [other] * 600
    assert run(decoder, *[odd] * 600).rows.to_pylist() == [read] * 600
    assert all(name.encode() for name in done.new_fields)


def test_a_declared_member_is_judged_as_before_whatever_stands_next_to_it():
    for number, reason in (("1e400", Reason.OUT_OF_RANGE), ('"\\ud800"', Reason.NOT_JSON)):
        done = run(make(a="Float64"), f'{{"a":{number},"b":1e400}}'.encode(), b'{"a":1}')
        assert [found.reason for found in done.rejected] == [reason]
    twice = run(make(a="Float64"), b'{"a":1,"b":1e400,"\\u0061":2}')
    assert twice.rejected[0].reason is Reason.DUPLICATE_KEY


@pytest.mark.parametrize("bits", [8, 16, 32, 64, 128, 256])
@pytest.mark.parametrize("name", ["Int", "UInt"])
def test_minus_zero_is_zero_in_every_column_of_integers(name, bits):
    zero = 0 if bits <= 64 else bytes(bits // 8)
    type_ = f"{name}{bits}"
    texts = ['"-0"'] if bits >= 64 else []
    for written in ["-0", *texts]:
        message = f'{{"a":{written},"l":[{written},1,{written}],"f":-0}}'.encode()
        decoder = make(a=type_, l=f"Array({type_})", f="Float64")
        for messages in ([message], [b'{"a":1,"l":[],"f":1}', message], [message] * 600):
            done = run(decoder, *messages)
            if written == "-0":
                assert not done.rejected
                assert done.rows.column("a").to_pylist()[-1] == zero
                assert math.copysign(1, done.rows.column("f")[-1].as_py()) == -1
    for written in texts:
        assert run(make(a=type_), f'{{"a":{written}}}'.encode()).rows.to_pylist() == [{"a": zero}]
    keys = run(make(m=f"Map({type_}, {type_})"), b'{"m":{"-0":-0}}')
    assert keys.rows.to_pylist() == [{"m": [(zero, zero)]}]


def test_names_with_dots_quotes_and_any_letters_work():
    names = ["a.b", 'say "hi"', "ключ", "\U0001f600", "", "back\\slash", "$", "key", "[]"]
    decoder = JsonDecoder(
        fields=dict.fromkeys(names, parse_type("Int64")), max_message_bytes=9999, max_depth=9
    )
    values = {name: number for number, name in enumerate(names)}
    for ascii_only in (True, False):
        done = run(decoder, json.dumps(values, ensure_ascii=ascii_only).encode())
        assert done.rows.to_pylist() == [values]


def test_numbers_and_texts_for_the_same_wide_column_mix_in_a_block():
    messages = [json.dumps({"a": n if n % 3 else str(n), "b": n, "c": None}).encode() for n in range(5000)]
    decoder = make(a="Int64", b="UInt64", c="Nullable(DateTime64(3))")
    done = run(decoder, *messages)
    assert done.rows.column(0).to_pylist() == list(range(5000))
    assert done.taken.tolist() == list(range(5000))


def test_many_bad_messages_in_a_large_block_cost_only_themselves():
    bad = {7: b'{"a":1.5}', 2500: b'{"a":[}', 2501: b'{"a":1}{"a":1}', 9999: b'{"a":99999999999999999999}'}
    done = run(make(), *[bad.get(n, b'{"a":%d}' % n) for n in range(10_000)])
    assert [r.index for r in done.rejected] == sorted(bad)
    assert done.rows.column(0).to_pylist() == [n for n in range(10_000) if n not in bad]


def test_a_block_of_nothing_but_bad_messages_is_accounted_for():
    kinds = [
        b'{"a":1.5}',
        b'{"a":"x"}',
        b'{"a":[1]}',
        b'{"a":1}{"a":1}',
        b'{"a":',
        b'{"a":tru}',
        b'{"a":1,"b":"}',
    ]
    done = run(make(), *[kinds[n % len(kinds)] for n in range(1500)])
    assert [r.index for r in done.rejected] == list(range(1500))
    assert done.rows.num_rows == 0


def test_large_offsets_slices_and_chunks_of_runs_decode_alike(monkeypatch):
    monkeypatch.setattr("oncehouse.pipeline.formats.json.decoder._RUN_BYTES", 20)
    messages = [b'{"a":%d}' % n for n in range(50)]
    for type_ in (pa.binary(), pa.large_binary()):
        array = pa.array([None, b"?", *messages], type_).slice(2)
        done = make().decode(array)
        assert done.rows.column(0).to_pylist() == list(range(50))
        assert done.taken.tolist() == list(range(50))


def test_a_decoder_survives_pickling():
    decoder = pickle.loads(pickle.dumps(make(a="Map(String, Int64)", b="DateTime64(3, 'UTC')")))
    done = run(decoder, b'{"a":{"x":1},"b":"2024-01-01"}')
    assert done.rows.column(0).to_pylist() == [[("x", 1)]]


def test_a_decoder_without_fields_or_with_a_senseless_depth_is_refused():
    with pytest.raises(ConfigurationError, match=r"source\.fields"):
        JsonDecoder(fields={}, max_message_bytes=1, max_depth=1)
    with pytest.raises(ConfigurationError, match="max_depth"):
        make(max_depth=100_000)


def test_messages_with_and_without_a_value_are_read_together_from_the_second_block_on(monkeypatch):
    decoder = make(a="Nullable(DateTime64(3))", b="Nullable(Int64)")
    messages = [b'{"a":1,"b":"7"}', b'{"a":null,"b":"8"}', b'{"a":2}', b"{}"] * 100
    first = run(decoder, *messages)
    assert first.rejected == ()

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a message was looked at by itself")

    monkeypatch.setattr("oncehouse.pipeline.formats.json.decoder.explain", never)
    assert run(decoder, *messages).rows.equals(first.rows)


@pytest.mark.parametrize("number", ["NaN", "-NaN", "Inf", "-Inf", "Infinity", "-Infinity"])
def test_what_only_the_reader_takes_for_a_number_has_one_verdict_whichever_shape_was_learnt(number):
    message = f'{{"a": 1, "undeclared": {number}}}'.encode()
    fresh, learnt = make(a="DateTime"), make(a="DateTime")
    run(learnt, *[b'{"a": 1}'] * 100)
    assert [run(decoder, message).taken.tolist() for decoder in (fresh, learnt)] == [[0], [0]]
