"""JSON next to the standard library and orjson: the same rows and the same refusals."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import examples
from oncehouse.column_types.parser import parse_type
from oncehouse.pipeline.formats.json.decoder import JsonDecoder
from reference_readers import REJECTED, UNSURE, comparable, kept_cases, read_json

FIELDS = {
    "i8": "Int8",
    "u64": "Nullable(UInt64)",
    "i64": "Nullable(Int64)",
    "f": "Nullable(Float64)",
    "f32": "Nullable(Float32)",
    "d": "Nullable(Decimal(9, 2))",
    "b": "Nullable(Bool)",
    "s": "Nullable(String)",
    "l": "Array(Nullable(Int32))",
    "t": "Tuple(x Nullable(UInt64), y Nullable(String))",
    "m": "Map(String, Nullable(Int64))",
    "deep": "Array(Tuple(k String, v Array(UInt8)))",
}
SOME = {name: FIELDS[name] for name in ("i8", "u64", "f", "d", "s")}

SPACE = st.text(" \t\r\n", max_size=2)
NUMBERS = st.sampled_from(
    ["0", "-0", "1", "-1", "127", "128", "-128", "-129", "255", "256", "4294967296", "9007199254740993",
     "9223372036854775807", "9223372036854775808", "-9223372036854775808", "18446744073709551615",
     "18446744073709551616", "1.0", "-0.0", "0.1", "12.34", "12.340", "12.345", "1e2", "1E+2", "1e-2", "125e-2", "0e0",
     "1e400", "-1e400", "1e-400", "1e308", "1.7976931348623159e308", "3.4028236e38", "4e38", "1e-46", "5e-324",
     "100000000000000000000000000000000000000000", "9999999.99", "99999999.99", "0.30000000000000004",
     "01", "1.", ".5", "+1", "1e", "--1", "0x1", "1_0", "-", "NaN", "Infinity", "\u0661"]
)  # fmt: skip
PIECES = st.sampled_from(
    ["a", "é", "\U0001f600", "\\n", "\\u0041", "\\u0000", "\\ud83d\\ude00", "\\ud83d", "\\ude00", "\\/", '\\"', "\\\\",
     "-0", "12", "1.5", "\u2028", "\ufeff", "\\x", "\\u12", "'", "{", "}", "[", ",", ":"]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=3).map(lambda pieces: f'"{"".join(pieces)}"') | NUMBERS.map('"{}"'.format)
WORDS = st.sampled_from(["null", "true", "false", "nul", "True", ""])
NAMES = st.sampled_from(
    [*map('"{}"'.format, FIELDS), '"x"', '"y"', '"k"', '"v"', '"other"', '"i\\u0038"', '"\\ud800"', '""']
)


def joined(parts: list[str], spaces: list[str]) -> str:
    padded = [*spaces, *[""] * len(parts)]
    return ",".join(f"{space}{part}{space}" for part, space in zip(parts, padded, strict=False))


def containers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    lists = st.builds(joined, st.lists(inner, max_size=3), st.lists(SPACE, max_size=3)).map("[{}]".format)
    members = st.lists(st.builds("{}{}:{}{}".format, NAMES, SPACE, SPACE, inner), max_size=3)
    return lists | st.builds(joined, members, st.lists(SPACE, max_size=3)).map("{{{}}}".format)


VALUES = st.recursive(NUMBERS | TEXTS | WORDS, containers, max_leaves=5)
GOOD: dict[str, st.SearchStrategy[Any]] = {
    "i8": st.integers(-128, 127).map(str),
    "u64": st.integers(0, 2**64 - 1).map(str) | st.just("-0"),
    "i64": st.integers(-(2**63), 2**63 - 1).map(str),
    "f": st.floats(allow_nan=False, allow_infinity=False).map(repr),
    "f32": st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr),
    "d": st.decimals(-9999999, 9999999, places=2).map(str),
    "b": st.sampled_from(["true", "false"]),
    "s": st.text(max_size=5).map(json.dumps),
    "l": st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=3).map(json.dumps),
    "t": st.sampled_from(['{"x":-0}', '{"y":"a","x":"7"}', "{}", '{"z":1e999}']),
    "m": st.dictionaries(st.text(max_size=3), st.integers(-(2**63), 2**63 - 1), max_size=3).map(json.dumps),
    "deep": st.sampled_from(["[]", '[{"k":"","v":[0,255,-0]}]', '[{"k":"a"},{"k":"b","v":null}]']),
}


@st.composite
def messages(draw) -> bytes:
    """Members that mostly fit, and some that do not; now and then a byte is changed."""
    names = draw(st.lists(st.sampled_from([*FIELDS]), unique=True, max_size=6))
    odd = draw(st.integers(0, 3)) == 0
    members = ['"i8":1', *(f'"{name}":{draw(VALUES if odd else GOOD[name])}' for name in names)]
    members += [f"{draw(NAMES)}:{draw(VALUES)}" for _ in range(draw(st.integers(0, 2)))]
    text = bytearray((f"{draw(SPACE)}{{{','.join(members)}}}{draw(SPACE)}").encode("utf-8", "replace"))
    if draw(st.integers(0, 5)) == 0:
        place = draw(st.integers(0, len(text)))
        text[place : place + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(text)


def decode(fields: dict[str, str], values: list[bytes]) -> list[Any]:
    """A row or REJECTED for each message."""
    types = {name: parse_type(text) for name, text in fields.items()}
    decoder = JsonDecoder(fields=types, max_message_bytes=1 << 20, max_depth=64)
    decoded = decoder.decode(pa.array(values, pa.binary()))
    rows: list[Any] = [REJECTED] * len(values)
    for place, row in zip(decoded.taken.tolist(), decoded.rows.to_pylist(), strict=True):
        rows[place] = row
    assert len(decoded.taken) + len(decoded.rejected) == len(values)
    return rows


def compare(fields: dict[str, str], values: list[bytes]) -> None:
    types = {name: parse_type(text) for name, text in fields.items()}
    for value, ours in zip(values, decode(fields, values), strict=True):
        theirs = read_json(value, types)
        if theirs is not UNSURE:
            assert comparable(ours) == comparable(theirs), value


@given(st.lists(messages(), min_size=1, max_size=8), st.sampled_from([FIELDS, SOME]))
@examples(80)
def test_every_message_is_the_row_that_other_readers_make_of_it(values, fields):
    compare(fields, values)


@given(messages(), messages(), st.integers(500, 600))
@examples(5)
def test_many_messages_alike_are_read_as_other_readers_do(usual, odd, count):
    compare(FIELDS, [*[usual] * count, odd, usual])


@pytest.mark.parametrize("case", kept_cases("json.jsonl"), ids=lambda case: case["why"])
def test_what_other_readers_once_read_otherwise(case):
    compare(case["fields"], [case["message"].encode("utf-8", "surrogatepass")])
