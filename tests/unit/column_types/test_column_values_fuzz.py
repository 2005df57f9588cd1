"""Values of any type go into ClickHouse as the Arrow type that carries them, and come back as they were."""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator
from decimal import Context, Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clickhouse_engine import Engine, open_engine
from fuzzing import examples
from oncehouse.column_types import types as c
from oncehouse.column_types.parser import parse_type
from reference_readers import comparable

WIDE = Context(prec=100)
FIRST, LAST = -2208988800, 10413791999
"""Seconds of the years that DateTime64 holds, as far as 64 bits reach."""
SCALARS = [
    *(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64, 128, 256)),
    *(
        "Float32",
        "Float64",
        "Bool",
        "String",
        "Date",
        "Date32",
        "DateTime",
        "DateTime('Asia/Kolkata')",
        "UUID",
    ),
    *(
        "FixedString(1)",
        "FixedString(7)",
        "Decimal(1, 1)",
        "Decimal(9, 2)",
        "Decimal(18, 0)",
        "Decimal(38, 37)",
    ),
    *("Decimal(39, 5)", "Decimal(76, 76)", *(f"DateTime64({digits}, 'UTC')" for digits in range(10))),
    *(
        "DateTime64(3, 'Europe/Berlin')",
        "Enum8('it\\'s' = -128, '' = 0, 'é' = 127)",
        "Enum16('x' = -300, 'y' = 1000)",
    ),
]
LOW = ["String", "FixedString(3)", "Int8", "UInt256", "Date", "DateTime", "Float32"]
KEYS = [
    "String",
    "LowCardinality(String)",
    "Int64",
    "UInt256",
    "UUID",
    "Enum8('a' = 1, 'b' = 2)",
    "Date",
    "FixedString(2)",
]
LEAVES = (
    st.sampled_from(SCALARS)
    | st.sampled_from(SCALARS).map("Nullable({})".format)
    | st.sampled_from(LOW).map("LowCardinality({})".format)
    | st.sampled_from(LOW).map("LowCardinality(Nullable({}))".format)
)
TYPES = st.recursive(
    LEAVES,
    lambda inner: (
        inner.map("Array({})".format)
        | st.builds("Map({}, {})".format, st.sampled_from(KEYS), inner)
        | st.builds("Tuple(a {}, `b.c` {})".format, inner, inner)
    ),
    max_leaves=4,
)


def values(type_: c.ColumnType) -> st.SearchStrategy[Any]:
    match type_:
        case c.Nullable(inner=inner):
            return st.none() | values(inner)
        case c.LowCardinality(inner=inner):
            # Its dictionary has one zero.
            return values(inner).map(
                lambda value: 0.0 if value == 0.0 and isinstance(value, float) else value
            )
        case c.Array(item=item):
            return st.lists(values(item), max_size=3)
        case c.Map(key=key, value=value):
            return st.dictionaries(values(key), values(value), max_size=3).map(
                lambda found: list(found.items())
            )
        case c.Tuple(fields=fields):
            return st.fixed_dictionaries({name: values(inner) for name, inner in fields})
        case _:
            return scalars(type_)


def scalars(type_: c.ColumnType) -> st.SearchStrategy[Any]:  # noqa: C901, PLR0911 - one case a type
    match type_:
        case c.Integer(bits=bits, signed=signed):
            numbers = st.integers(type_.least, type_.greatest) | st.sampled_from(
                [type_.least, type_.greatest]
            )
            return (
                numbers
                if bits <= 64
                else numbers.map(lambda n: n.to_bytes(bits // 8, "little", signed=signed))
            )
        case c.Float(bits=bits):
            return st.floats(width=bits)
        case c.Decimal(precision=precision, scale=scale):
            most = 10**precision - 1
            return st.integers(-most, most).map(lambda n: Decimal(n).scaleb(-scale, WIDE))
        case c.Bool():
            return st.booleans()
        case c.FixedString(length=length):
            return st.binary(min_size=length, max_size=length)
        case c.Uuid():
            return st.uuids().map(lambda found: found.bytes)
        case c.Date(wide=wide):
            return st.integers(-25567, 120529) if wide else st.integers(0, 2**16 - 1)
        case c.DateTime():
            return st.integers(0, 2**32 - 1)
        case c.DateTime64(precision=precision):
            step = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}[c.unit_of(type_)] // 10**precision
            most = (2**63 - 1) // step
            ticks = st.integers(max(FIRST * 10**precision, -most), min(LAST * 10**precision, most))
            return ticks.map(lambda n: n * step)
        case c.Enum(members=members):
            return st.sampled_from([name for name, _ in members])
        case _:
            return st.text(max_size=5)


@st.composite
def tables(draw) -> tuple[list[str], pa.Table]:
    names = draw(st.lists(TYPES, min_size=1, max_size=3))
    count = draw(st.integers(1, 5))
    arrays = []
    for name in names:
        type_ = parse_type(name)
        drawn = draw(st.lists(values(type_), min_size=count, max_size=count))
        arrays.append(pa.array(drawn, c.arrow_type(type_)))
    return names, pa.table(arrays, names=[f"c{number}" for number in range(len(names))])


def listed(array: pa.Array, type_: c.ColumnType) -> list[Any]:  # noqa: PLR0911 - one case a type
    """Values as the type means them, whichever Arrow type carries them."""
    match type_:
        case c.Nullable(inner=inner) | c.LowCardinality(inner=inner):
            return listed(array, inner)
        case c.Array(item=item):
            items, ends = listed(array.values, item), array.offsets.to_pylist()
            return [items[start:end] for start, end in pairwise(ends)]
        case c.Map(key=key, value=value):
            pairs = list(zip(listed(array.keys, key), listed(array.items, value), strict=True))
            ends = array.offsets.to_pylist()
            return [sorted(pairs[start:end], key=repr) for start, end in pairwise(ends)]
        case c.Tuple(fields=fields):
            columns = {name: listed(array.field(name), inner) for name, inner in fields}
            return [{name: column[row] for name, column in columns.items()} for row in range(len(array))]
        case c.Uuid():
            return [getattr(value, "bytes", value) for value in array.to_pylist()]
        case c.Enum(members=members) if pa.types.is_integer(array.type):
            named = {number: name for name, number in members}
            return [None if number is None else named[number] for number in array.to_pylist()]
        case c.Date() | c.DateTime() | c.DateTime64():
            wide = pa.int32() if pa.types.is_date32(array.type) else pa.int64()
            return array.cast(wide).to_pylist()
        case _:
            return array.to_pylist()


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    pytest.importorskip("chdb")
    with open_engine() as engine:
        yield engine


def carry(engine: Engine, folder: Path, names: list[str], table: pa.Table) -> pa.Table:
    name = f"t{uuid.uuid4().hex}"
    file = folder / f"{name}.arrow"
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    columns = ", ".join(f"c{number} {type_}" for number, type_ in enumerate(names))
    queries = [
        f"CREATE TABLE {name} ({columns}) ENGINE = Memory",
        f"INSERT INTO {name} FROM INFILE '{file}' FORMAT ArrowStream",
        f"SELECT * FROM {name}",
        f"DROP TABLE {name}",
    ]
    answers = engine.ask(queries, "ArrowStream")
    file.unlink()
    for answer in answers:
        assert isinstance(answer, bytes), (names, answer)
    return pa.ipc.open_stream(io.BytesIO(answers[2])).read_all().combine_chunks()


@given(tables())
@examples(20)
def test_values_come_back_from_clickhouse_as_they_were(engine, tmp_path_factory, drawn):
    names, table = drawn
    back = carry(engine, tmp_path_factory.getbasetemp(), names, table)
    for number, name in enumerate(names):
        sent, found = (
            listed(side.column(number).combine_chunks(), parse_type(name)) for side in (table, back)
        )
        assert comparable(found) == comparable(sent), name
