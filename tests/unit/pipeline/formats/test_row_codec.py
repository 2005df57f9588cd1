"""Rows that never were messages come back from the ledger as they went in: every type, every value."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncehouse.column_types.parser import parse_type
from oncehouse.column_types.types import arrow_type
from oncehouse.pipeline.formats.base import DecodeLimits
from oncehouse.pipeline.formats.dataframe import DataFrameDecoder, MixedDecoder, convert_rows, schema_of
from oncehouse.pipeline.formats.json.format import JsonFormat
from oncehouse.pipeline.formats.row_codec import MARK, decode_rows, encode_rows

LIMITS = DecodeLimits(max_message_bytes=1 << 20, max_depth=64)
FLAT = {
    "Int8": st.integers(-128, 127),
    "UInt64": st.integers(0, 2**64 - 1),
    "Int256": st.binary(min_size=32, max_size=32),
    "Float32": st.floats(width=32),
    "Float64": st.floats(),
    "Decimal(38, 10)": st.decimals(-(10**27), 10**27, places=10, allow_nan=False),
    "Decimal(76, 2)": st.decimals(-(10**20), 10**20, places=2, allow_nan=False),
    "Bool": st.booleans(),
    "String": st.text(max_size=6),
    "FixedString(3)": st.binary(min_size=3, max_size=3),
    "UUID": st.binary(min_size=16, max_size=16),
    "Date32": st.integers(-20000, 20000),
    "DateTime64(9)": st.integers(-(2**62), 2**62),
}


def _types(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    lists = inner.map(lambda item: f"Array({item})")
    tuples = st.lists(inner, min_size=1, max_size=3).map(
        lambda items: "Tuple(" + ", ".join(f"f{at} {item}" for at, item in enumerate(items)) + ")"
    )
    maps = inner.map(lambda item: f"Map(String, {item})")
    return lists | tuples | maps


scalars = st.sampled_from(sorted(FLAT))
types = st.recursive(scalars | scalars.map(lambda name: f"Nullable({name})"), _types, max_leaves=4)


def arrays(declared: pa.DataType, leaf: st.SearchStrategy, rows: int) -> st.SearchStrategy[pa.Array]:
    return st.lists(leaf, min_size=rows, max_size=rows).map(lambda values: pa.array(values, declared))


@st.composite
def columns(draw, text: str, rows: int) -> pa.Array:
    """An array of a declared type with nulls only where the type takes them."""
    if text.startswith("Nullable("):
        inner = draw(columns(text[9:-1], rows))
        valid = draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
        return inner.take(pa.array([at if ok else None for at, ok in enumerate(valid)], pa.int64()))
    if text in FLAT:
        return draw(arrays(arrow_type(parse_type(text)), FLAT[text], rows))
    type_ = parse_type(text)
    target = arrow_type(type_)
    if text.startswith("Tuple("):
        parts = _split(text[6:-1])
        children = [draw(columns(part.split(" ", 1)[1], rows)) for part in parts]
        return pa.StructArray.from_arrays(children, fields=list(target))
    lengths = draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    total = sum(lengths)
    if text.startswith("Array("):
        return pa.ListArray.from_arrays(offsets, draw(columns(text[6:-1], total)), type=target)
    keys = pa.array([str(at) for at in range(total)], pa.string())
    values = draw(columns(_split(text[4:-1])[1], total))
    return pa.MapArray.from_arrays(offsets, keys, values, type=target)


def _split(text: str) -> list[str]:
    parts, depth = [""], 0
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


@st.composite
def tables(draw) -> tuple[dict[str, str], pa.RecordBatch]:
    declared = {f"c{at}": text for at, text in enumerate(draw(st.lists(types, min_size=1, max_size=4)))}
    rows = draw(st.integers(0, 5))
    arrays = [draw(columns(text, rows)) for text in declared.values()]
    return declared, pa.RecordBatch.from_arrays(arrays, names=list(declared))


def bits(rows: pa.RecordBatch) -> object:
    """What the rows hold, floats by their bits, so that a NaN is equal to itself and -0.0 differs from 0.0."""

    def spell(value: object) -> object:
        match value:
            case float():
                return struct.pack(">d", value)
            case dict():
                return {name: spell(inner) for name, inner in value.items()}
            case list() | tuple():
                return [spell(inner) for inner in value]
            case _:
                return value

    return [[spell(row) for row in _comparable(column).to_pylist()] for column in rows.columns]


def _comparable(array: pa.Array) -> pa.Array:
    """Nanoseconds have no Python value of their own; their ticks have."""
    if pa.types.is_timestamp(array.type):
        return array.view(pa.int64())
    if pa.types.is_struct(array.type):
        children = [_comparable(child) for child in array.flatten()]
        return pa.StructArray.from_arrays(children, names=[field.name for field in array.type])
    if pa.types.is_list(array.type):
        return pa.ListArray.from_arrays(array.offsets, _comparable(array.values))
    if pa.types.is_map(array.type):
        pairs = pa.StructArray.from_arrays([array.keys, _comparable(array.items)], names=["key", "value"])
        return pa.ListArray.from_arrays(array.offsets, pairs)
    return array


@settings(max_examples=150, deadline=None)
@given(tables())
def test_rows_come_back_from_their_bytes_as_they_were(table):
    _, rows = table
    values = encode_rows(rows)
    assert bits(decode_rows(values, rows.schema)) == bits(rows)
    assert encode_rows(rows.slice(1)).equals(values.slice(1)), "a slice gives the same bytes"


@settings(max_examples=100, deadline=None)
@given(tables())
def test_what_was_fitted_once_is_decoded_again_to_the_same_values(table):
    declared, rows = table
    fields = {name: parse_type(text) for name, text in declared.items()}
    fitted = convert_rows(rows, fields)
    schema = schema_of(fields)
    kept = fitted.rows
    block = pa.record_batch(
        [encode_rows(kept), pa.repeat(pa.scalar(schema.schema), kept.num_rows)], names=["value", "schema"]
    )
    again = DataFrameDecoder(fields, [schema], LIMITS).decode(block)
    assert not again.rejected
    assert bits(again.rows) == bits(kept)
    assert again.taken.tolist() == list(range(kept.num_rows))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=20) | st.binary(max_size=20).map(lambda tail: MARK + tail), max_size=6))
def test_whatever_the_bytes_each_is_a_row_or_a_rejection(values):
    fields = {name: parse_type(text) for name, text in {"a": "Array(String)", "b": "UInt16"}.items()}
    schema = schema_of(fields)
    good = encode_rows(pa.record_batch([pa.array([["x"]]), pa.array([7], pa.uint16())], names=["a", "b"]))
    block = pa.record_batch(
        [pa.array([*values, good[0].as_py()], pa.binary()), pa.repeat(schema.schema, len(values) + 1)],
        names=["value", "schema"],
    )
    decoded = DataFrameDecoder(fields, [schema], LIMITS).decode(block)
    places = [*decoded.taken.tolist(), *(found.index for found in decoded.rejected)]
    assert sorted(places) == list(range(len(values) + 1))
    assert len(values) in decoded.taken, "a good neighbour is not touched"


def test_rows_kept_under_older_fields_fit_the_fields_of_today():
    before = {"id": parse_type("UInt32")}
    now = {"id": parse_type("UInt64"), "note": parse_type("Nullable(String)")}
    schema = schema_of(before)
    values = encode_rows(pa.record_batch([pa.array([1, 2], pa.uint32())], names=["id"]))
    block = pa.record_batch([values, pa.repeat(schema.schema, 2)], names=["value", "schema"])
    decoded = DataFrameDecoder(now, [schema], LIMITS).decode(block)
    assert decoded.rows.to_pylist() == [{"id": 1, "note": None}, {"id": 2, "note": None}]


def test_messages_and_rows_of_frames_are_decoded_side_by_side():
    fields = {"id": parse_type("UInt32")}
    schema = schema_of(fields)
    row = encode_rows(pa.record_batch([pa.array([2], pa.uint32())], names=["id"]))[0].as_py()
    values = [b'{"id": 1}', row, b'{"id": "x"}', None, b'{"id": 4}', b'{"id": 5}']
    names = [None, schema.schema, None, None, None, schema.schema]
    block = pa.record_batch([pa.array(values, pa.binary()), pa.array(names)], names=["value", "schema"])
    own = JsonFormat().make_decoder(fields, [], LIMITS)
    decoded = MixedDecoder(
        own, DataFrameDecoder(fields, [schema], LIMITS), pa.schema([("id", pa.uint32())])
    ).decode(block)
    assert decoded.rows.to_pydict() == {"id": [1, 2, 4, 5]}
    assert decoded.taken.tolist() == [0, 1, 4, 5]
    assert [found.index for found in decoded.rejected] == [2]
    assert decoded.skipped.tolist() == [3]
    assert decoded.schemas.to_pylist() == [None, schema.schema, None, schema.schema]


@pytest.mark.parametrize("value", [300, -1, None])
def test_a_row_that_does_not_fit_is_told_and_its_neighbours_are_taken(value):
    fields = {"id": parse_type("UInt8"), "note": parse_type("String")}
    found = pa.record_batch(
        [pa.array([1, value, 3], pa.int64()), pa.array(["a", "b", "c"])], names=["id", "note"]
    )
    decoded = convert_rows(found, fields)
    assert decoded.rows.to_pylist() == [{"id": 1, "note": "a"}, {"id": 3, "note": "c"}]
    assert [(found.index, found.detail.split(":")[0]) for found in decoded.rejected] == [(1, "id")]
