"""Avro's schema resolution next to fastavro: a writer's schema, the newest one, and every field that the newest has."""

from __future__ import annotations

import io
import json
import math
import struct
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import examples
from oncehouse.column_types.parser import parse_type
from oncehouse.ledger.models import Schema
from oncehouse.pipeline.formats.avro.decoder import AvroDecoder
from oncehouse.pipeline.formats.base import DecodeLimits
from oncehouse.pipeline.formats.wire_prefix import VersionPlace, VersionSource
from reference_readers import comparable, kept_cases

Drawn = tuple[Any, Any, str, st.SearchStrategy[Any]]
"""The writer's schema, the newest, the declared type, and values that the writer may write."""

NAMES = st.sampled_from(["Place", "Person", "Thing"])
SPACES = st.sampled_from(["a", "b", "a.c"])
SYMBOLS = ["A", "B", "C", "D"]


class Names:
    """Full names that are taken: each may be defined once in a schema."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def draw(self, draw: Any) -> tuple[str, str]:
        name, space = draw(NAMES), draw(SPACES)
        number = 0
        while f"{space}{number or ''}.{name}" in self._taken:
            number += 1
        space = f"{space}{number or ''}"
        self._taken.add(f"{space}.{name}")
        return name, space


INT = st.integers(-(2**31), 2**31 - 1)
SCALARS: list[tuple[Any, Any, str, st.SearchStrategy[Any]]] = [
    ("int", "int", "Int64", INT),
    ("int", "long", "Int64", INT),
    ("long", "long", "Int64", st.integers(-(2**63), 2**63 - 1)),
    ("boolean", "boolean", "Bool", st.booleans()),
    ("float", "float", "Float32", st.floats(width=32)),
    ("float", "double", "Float64", st.floats(width=32)),
    ("double", "double", "Float64", st.floats()),
    ("string", "string", "String", st.text(max_size=5)),
]
DEFAULTS = {"int": 7, "long": -(2**40), "boolean": True, "float": 0.5, "double": -0.25, "string": "né"}


@st.composite
def nodes(draw, old: Names, new: Names, depth: int) -> Drawn:
    kinds = ["scalar", "enum", "optional"]
    if depth < 3:
        kinds += ["record", "record", "array", "map"]
    match draw(st.sampled_from(kinds)):
        case "scalar":
            return draw(st.sampled_from(SCALARS))
        case "enum":
            return draw(enums(old, new))
        case "optional":
            before, after, type_, values = draw(st.sampled_from(SCALARS) | enums(old, new))
            return ["null", before], ["null", after], f"Nullable({type_})", st.none() | values
        case "array":
            before, after, type_, values = draw(nodes(old, new, depth + 1))
            return _array(before), _array(after), f"Array({type_})", st.lists(values, max_size=4)
        case "map":
            before, after, type_, values = draw(nodes(old, new, depth + 1))
            pairs = st.dictionaries(st.text(max_size=2), values, max_size=3)
            return _map(before), _map(after), f"Map(String, {type_})", pairs
        case _:
            return draw(records(old, new, depth + 1))


def _array(item: Any) -> dict[str, Any]:
    return {"type": "array", "items": item}


def _map(value: Any) -> dict[str, Any]:
    return {"type": "map", "values": value}


@st.composite
def enums(draw, old: Names, new: Names) -> Drawn:
    before, (name, space) = _enum(SYMBOLS, *old.draw(draw)), new.draw(draw)
    kept = draw(st.lists(st.sampled_from(SYMBOLS), min_size=1, unique=True))
    after = _enum(kept, name, space) | {"default": draw(st.sampled_from(kept)), "aliases": [_full(before)]}
    return before, after, "String", st.sampled_from(SYMBOLS)


def _enum(symbols: list[str], name: str, space: str) -> dict[str, Any]:
    return {"type": "enum", "name": name, "namespace": space, "symbols": symbols}


def _full(schema: dict[str, Any]) -> str:
    return f"{schema['namespace']}.{schema['name']}"


@st.composite
def records(draw, old: Names, new: Names, depth: int = 0) -> Drawn:
    """Fields that stayed, were renamed with an alias, were dropped, or are new with a default."""
    before = {"type": "record", "namespace": "", "fields": []}
    before["name"], before["namespace"] = old.draw(draw)
    name, space = new.draw(draw)
    after = {"type": "record", "name": name, "namespace": space, "fields": [], "aliases": [_full(before)]}
    declared, values = [], {}
    for number in range(draw(st.integers(1, 4))):
        mine, theirs, type_, drawn = draw(nodes(old, new, depth))
        field = f"f{number}"
        match draw(st.sampled_from(["stays", "stays", "renamed", "dropped", "added"])):
            case "stays":
                before["fields"].append({"name": field, "type": mine})
                after["fields"].append({"name": field, "type": theirs})
            case "renamed":
                before["fields"].append({"name": f"old_{field}", "type": mine})
                after["fields"].append({"name": field, "type": theirs, "aliases": [f"old_{field}"]})
                values[f"old_{field}"] = drawn
            case "dropped":
                before["fields"].append({"name": field, "type": mine})
                values[field] = drawn
                continue
            case _:
                after["fields"].append({"name": field, "type": theirs, "default": _default(theirs)})
        if field in (one["name"] for one in before["fields"]):
            values[field] = drawn
        declared.append(f"{field} {type_}")
    if not declared:
        before["fields"].append({"name": "last", "type": "int"})
        after["fields"].append({"name": "last", "type": "int"})
        values["last"] = INT
        declared = ["last Int64"]
    order = draw(st.permutations(after["fields"]))
    after["fields"] = list(order)
    return before, after, f"Tuple({', '.join(declared)})", st.fixed_dictionaries(values)


def _default(schema: Any) -> Any:
    match schema:
        case str():
            return DEFAULTS[schema]
        case list():
            return None
        case {"type": "enum", "symbols": symbols}:
            return symbols[-1]
        case {"type": "array", "items": items}:
            return [_default(items)]
        case {"type": "map", "values": values}:
            return {"k": _default(values)}
        case {"fields": fields}:
            return {field["name"]: field.get("default", _default(field["type"])) for field in fields}
    raise AssertionError(schema)


@st.composite
def pairs(draw) -> Drawn:
    return draw(records(Names(), Names()))


def write(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def ours(old: Any, new: Any, type_: str, bodies: list[bytes]) -> list[Any]:
    decoder = AvroDecoder(
        fields=dict(parse_type(type_).fields),
        schemas=[
            Schema(schema=version, format="avro", definition=json.dumps(schema))
            for version, schema in (("1", old), ("2", new))
        ],
        version_source=VersionSource(place=VersionPlace.PREFIX),
        limits=DecodeLimits(max_message_bytes=1 << 20, max_depth=64),
    )
    decoded = decoder.decode(
        pa.record_batch({"value": pa.array([b"\0\0\0\0\1" + body for body in bodies], pa.binary())})
    )
    assert not decoded.rejected
    return decoded.rows.to_pylist()


def shaped(value: Any, schema: Any) -> Any:
    """As the row has it: the declared order of fields, maps as pairs, floats as wide as the schema has them."""
    match schema:
        case [_, inner]:
            return None if value is None else shaped(value, inner)
        case {"fields": fields}:
            found = {field["name"]: shaped(value[field["name"]], field["type"]) for field in fields}
            return dict(sorted(found.items()))
        case {"type": "array", "items": items}:
            return [shaped(item, items) for item in value]
        case {"type": "map", "values": values}:
            return [(key, shaped(item, values)) for key, item in value.items()]
        case "float" if math.isfinite(value):
            return struct.unpack("f", struct.pack("f", value))[0]
        case _:
            return value


def compare(old: Any, new: Any, type_: str, bodies: list[bytes]) -> None:
    for body, row in zip(bodies, ours(old, new, type_, bodies), strict=True):
        theirs = fastavro.schemaless_reader(io.BytesIO(body), old, new)
        assert comparable(row) == comparable(shaped(theirs, new)), (old, new, body)


@given(pairs(), st.data())
@examples(80)
def test_every_older_message_is_what_fastavro_resolves_it_to(case, data):
    old, new, type_, values = case
    rows = data.draw(st.lists(values, min_size=1, max_size=20))
    compare(old, new, type_, [write(old, row) for row in rows])


@pytest.mark.parametrize("case", kept_cases("avro.jsonl"), ids=lambda case: case["why"])
def test_what_fastavro_once_resolved_otherwise(case):
    compare(case["old"], case["new"], case["type"], [write(case["old"], row) for row in case["rows"]])
