"""Whatever schema and bytes: what Avro's own reader makes of a message, or a rejection, and never its neighbours'."""

from __future__ import annotations

import io
import json
import math
import random
import tracemalloc
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import examples
from oncehouse.column_types.parser import parse_type
from oncehouse.ledger.models import Schema
from oncehouse.pipeline.convert.rejection import Reason
from oncehouse.pipeline.formats.avro.decoder import AvroDecoder
from oncehouse.pipeline.formats.base import HEADERS, Decoded, DecodeLimits
from oncehouse.pipeline.formats.wire_prefix import VersionPlace, VersionSource

# (schema, declared type, values): a schema and everything that goes with it.
Case = tuple[Any, str, st.SearchStrategy[Any]]

LEAVES: list[Case] = [
    ("long", "Int64", st.integers(-(1 << 63), (1 << 63) - 1)),
    ("int", "Int32", st.integers(-(1 << 31), (1 << 31) - 1)),
    ("boolean", "Bool", st.booleans()),
    ("double", "Float64", st.floats()),
    ("float", "Float32", st.floats(width=32)),
    ("string", "String", st.text(max_size=20)),
    ("bytes", "FixedString(20)", st.binary(min_size=20, max_size=20)),
    ({"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}, "String", st.sampled_from("ABC")),
    ({"type": "fixed", "name": "F", "size": 3}, "FixedString(3)", st.binary(min_size=3, max_size=3)),
]


@st.composite
def cases(draw, depth: int = 0) -> Case:
    kinds = ["leaf", "union"] if depth > 2 else ["leaf", "union", "array", "map", "record"]
    match draw(st.sampled_from(kinds)):
        case "leaf":
            return draw(st.sampled_from(LEAVES))
        case "union":
            schema, type_, values = draw(st.sampled_from(LEAVES))
            return ["null", schema], f"Nullable({type_})", st.none() | values
        case "array":
            schema, type_, values = draw(cases(depth + 1))
            return {"type": "array", "items": schema}, f"Array({type_})", st.lists(values, max_size=40)
        case "map":
            schema, type_, values = draw(cases(depth + 1))
            inside = st.dictionaries(st.text(max_size=5), values, max_size=5)
            return {"type": "map", "values": schema}, f"Map(String, {type_})", inside
        case _:
            return draw(records(depth + 1))


@st.composite
def records(draw, depth: int = 0) -> Case:
    fields = draw(st.lists(cases(depth), min_size=1, max_size=4))
    names = [f"f{number}" for number in range(len(fields))]
    schema = {
        "type": "record",
        "name": f"R{depth}",
        "fields": [{"name": name, "type": one[0]} for name, one in zip(names, fields, strict=True)],
    }
    inside = ", ".join(f"{name} {one[1]}" for name, one in zip(names, fields, strict=True))
    return (
        schema,
        f"Tuple({inside})",
        st.fixed_dictionaries(dict(zip(names, (one[2] for one in fields), strict=True))),
    )


def name_apart(schema: Any, counter: list[int]) -> Any:
    """Named types may stand once only."""
    if isinstance(schema, dict):
        counter[0] += 1
        named = (
            {"name": f"N{counter[0]}"}
            if "name" in schema and "type" in schema and schema["type"] != "x"
            else {}
        )
        out = {key: name_apart(value, counter) for key, value in schema.items() if key != "fields"}
        if "fields" in schema:
            out["fields"] = [
                {"name": field["name"], "type": name_apart(field["type"], counter)}
                for field in schema["fields"]
            ]
        return out | named
    return [name_apart(one, counter) for one in schema] if isinstance(schema, list) else schema


def encode(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def decode(schema: Any, type_: str, messages: list[bytes], **limits: int) -> Decoded:
    decoder = AvroDecoder(
        fields=dict(parse_type(type_).fields),
        schemas=[Schema(schema="one", format="avro", definition=json.dumps(schema))],
        version_source=VersionSource(place=VersionPlace.NONE, schema="one"),
        limits=DecodeLimits(max_message_bytes=1 << 20, max_depth=limits.get("max_depth", 64)),
    )
    return decoder.decode(pa.record_batch({"value": pa.array(messages, pa.binary())}))


def plain(value: Any) -> Any:
    """Comparable, NaN included; maps come as lists of pairs."""
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case dict():
            return {key: plain(inner) for key, inner in value.items()}
        case list() if value and all(isinstance(one, tuple) for one in value):
            return {key: plain(inner) for key, inner in value}
        case list():
            return [plain(inner) for inner in value]
        case _:
            return value


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, dict) and not theirs:
        return ours in ({}, [])
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, list) and isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return ours == theirs


def accounted(decoded: Decoded, messages: int) -> bool:
    places = [*decoded.taken.tolist(), *(rejection.index for rejection in decoded.rejected)]
    return sorted([*places, *decoded.skipped.tolist()]) == list(range(messages))


@given(records(), st.data())
@examples(40)
def test_every_value_is_what_the_row_by_row_reader_says(case, data):
    schema, type_, values = case
    schema = name_apart(schema, [0])
    rows = data.draw(st.lists(values, min_size=1, max_size=30))
    messages = [encode(schema, row) for row in rows]
    decoded = decode(schema, type_, messages)
    assert not decoded.rejected
    for found, message in zip(decoded.rows.to_pylist(), messages, strict=True):
        expected = fastavro.schemaless_reader(io.BytesIO(message), schema, None)
        assert same(plain(found), plain(expected))


def read_alone(schema: Any, message: bytes) -> Any:
    """What Avro's reader says, or None where it fails or leaves bytes."""
    stream = io.BytesIO(message)
    try:
        value = fastavro.schemaless_reader(stream, schema, None)
    except Exception:  # noqa: BLE001 - whatever it raises, it does not take the message
        return None
    return value if stream.tell() == len(message) else None


def damage(message: bytes, chance: random.Random) -> bytes:
    body = bytearray(message)
    for _ in range(chance.randint(1, 3)):
        match chance.randint(0, 3):
            case 0 if body:
                body[chance.randrange(len(body))] = chance.choice(
                    [0, 1, 2, 127, 128, 255, chance.randrange(256)]
                )
            case 1:
                body.insert(chance.randint(0, len(body)), chance.randrange(256))
            case 2 if body:
                del body[chance.randrange(len(body))]
            case _:
                body = body[: chance.randint(0, len(body))]
    return bytes(body)


@given(records(), st.data(), st.integers(0, 1 << 32))
@examples(40)
def test_a_damaged_message_costs_only_itself(case, data, seed):
    schema, type_, values = case
    schema = name_apart(schema, [0])
    rows = data.draw(st.lists(values, min_size=2, max_size=30))
    chance = random.Random(seed)
    messages = [encode(schema, row) for row in rows]
    mixed = [damage(one, chance) if chance.random() < 0.5 else one for one in messages]
    decoded = decode(schema, type_, mixed)
    assert accounted(decoded, len(mixed))
    found = dict(zip(decoded.taken.tolist(), decoded.rows.to_pylist(), strict=True))
    for place, message in enumerate(mixed):
        if message == messages[place]:
            assert place in found, "a sound message was lost to its neighbours"
        if place in found:
            assert same(plain(found[place]), plain(read_alone(schema, message)))
        alone = decode(schema, type_, [message])
        assert (len(alone.taken) == 1) == (place in found)


@given(records(), st.lists(st.binary(max_size=60), min_size=1, max_size=30))
@examples(40)
def test_any_bytes_are_a_row_or_a_rejection(case, messages):
    schema, type_, _ = case
    decoded = decode(name_apart(schema, [0]), type_, messages)
    assert accounted(decoded, len(messages))


@given(st.lists(st.binary(max_size=20), max_size=20), st.data())
@examples(40)
def test_any_prefix_or_header_is_a_version_or_a_rejection(values, data):
    definition = '{"type":"record","name":"R","fields":[{"name":"a","type":"long"}]}'
    schemas = [Schema(schema="1", format="avro", definition=definition)]
    headers = st.none() | st.lists(
        st.fixed_dictionaries(
            {
                "key": st.none() | st.sampled_from(["v", "w"]),
                "value": st.none() | st.sampled_from([b"1", b"2", b"\xff"]),
            }
        ),
        max_size=3,
    )
    drawn = data.draw(st.lists(headers, min_size=len(values), max_size=len(values)))
    framed = [b"\0\0\0\0\1" + value if number % 2 else value for number, value in enumerate(values)]
    block = pa.record_batch({"value": pa.array(framed, pa.binary()), "headers": pa.array(drawn, HEADERS)})
    for version_source in (
        VersionSource(place=VersionPlace.PREFIX),
        VersionSource(place=VersionPlace.HEADER, header="v"),
    ):
        decoder = AvroDecoder(
            fields={"a": parse_type("Int64")},
            schemas=schemas,
            version_source=version_source,
            limits=DecodeLimits(max_message_bytes=1 << 20, max_depth=64),
        )
        decoded = decoder.decode(block)
        places = [*decoded.taken.tolist(), *(one.index for one in (*decoded.rejected, *decoded.waiting))]
        assert sorted(places) == list(range(len(values)))


TREE = {
    "type": "record",
    "name": "Tree",
    "fields": [
        {"name": "value", "type": "long"},
        {"name": "below", "type": {"type": "array", "items": "Tree"}},
        {"name": "next", "type": ["null", "Tree"]},
    ],
}
NOTHINGS = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "value", "type": "long"},
        {"name": "nulls", "type": {"type": "array", "items": {"type": "array", "items": "null"}}},
    ],
}


def number(value: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, "long", value)
    return out.getvalue()


BOMBS = {
    "a count of 2^62": number(1) + number(1 << 62),
    "a negative count of 2^63": number(1) + number(-(1 << 63)) + number(1),
    "twenty thousand levels down": b"\x02\x02" * 20_000,
    "twenty thousand levels on": (b"\x02\x00\x02") * 20_000,
    "four thousand blocks of one": number(1) + (b"\x01\x02" + b"\x02\x00\x00") * 4_000 + b"\x00\x00",
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize(
    "fields", ["Tuple(value Int64)", "Tuple(value Int64, below Array(Tuple(value Int64)))"]
)
def test_a_bomb_takes_no_memory_and_no_neighbour(bomb, fields):
    good = encode(TREE, {"value": 5, "below": [], "next": None})
    tracemalloc.start()
    decoded = decode(TREE, fields, [good, BOMBS[bomb], good] * 3)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200 << 20
    assert accounted(decoded, 9)
    assert set(decoded.taken.tolist()) >= {0, 2, 3, 5, 6, 8}


@pytest.mark.parametrize("bomb", ["twenty thousand levels down", "twenty thousand levels on"])
@pytest.mark.parametrize("messages", [1, 40])
def test_depth_never_reaches_the_end_of_the_stack(bomb, messages):
    decoded = decode(TREE, "Tuple(value Int64)", [BOMBS[bomb][:1500]] * messages, max_depth=400)
    assert {rejection.reason for rejection in decoded.rejected} == {Reason.TOO_DEEP}


BUSHES = {
    "by unions": {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": ["R", "null"]}, {"name": "b", "type": ["null", "R"]}],
    },
    "by itself": {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": "R"}, {"name": "b", "type": "R"}],
    },
}


def bush_of_nothing(levels: int) -> Any:
    if levels == 0:
        return "null"
    below = bush_of_nothing(levels - 1)
    again = below if isinstance(below, str) else below["name"]
    fields = [{"name": "a", "type": below}, {"name": "b", "type": again}]
    return {"type": "record", "name": f"R{levels}", "fields": fields}


@pytest.mark.parametrize("bush", BUSHES)
@pytest.mark.parametrize("messages", [1, 40])
def test_what_is_broken_is_not_followed_into_every_branch(bush, messages):
    schema = {
        "type": "record",
        "name": "Top",
        "fields": [{"name": "id", "type": "long"}, {"name": "r", "type": BUSHES[bush]}],
    }
    values = [b"\x02" * number for number in (1, 5, 500)] + [b"\x00" * 500]
    decoded = decode(schema, "Tuple(id Int64)", values * messages)
    assert len(decoded.rejected) == 4 * messages


def test_records_that_hold_nothing_many_times_over_take_no_time():
    schema = {
        "type": "record",
        "name": "Top",
        "fields": [{"name": "id", "type": "long"}, {"name": "r", "type": bush_of_nothing(40)}],
    }
    assert decode(schema, "Tuple(id Int64)", [b"\x02"] * 40).rows.to_pylist() == [{"id": 1}] * 40


def test_values_without_bytes_cannot_fill_the_memory():
    lists = b"".join(number(64) + number(0) for _ in range(20_000))
    many = number(1) + number(20_000) + lists + number(0)
    huge = number(1) + number(1) + number(1 << 40) + number(0) + number(0)
    tracemalloc.start()
    decoded = decode(NOTHINGS, "Tuple(value Int64, nulls Array(Array(Nullable(Int64))))", [many, huge, many])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert decoded.taken.tolist() == [0, 2]
    assert peak < 400 << 20
