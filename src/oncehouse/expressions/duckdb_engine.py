"""The embedded engine that computes expressions: DuckDB, isolated.

It sees the columns it is given and nothing else: no files, no network, no extensions, no settings, one thread
and a fixed share of memory. `engine_field` says as what a declared column enters it, `plain_values` turns what
comes out into Arrow's own types, exact for every value.
"""

from __future__ import annotations

import json
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from oncehouse.column_types import types as c

MEMORY_LIMIT = "512MB"
MOST_DIGITS = 38

_SETTINGS = (
    "SET TimeZone = 'UTC'",
    # Without it 128-bit integers and UUIDs would leave as something else, and some of them wrong.
    "SET arrow_lossless_conversion = true",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)
_WIDE = pa.decimal256(39, 0)


def open_engine(*, explaining: bool = False) -> duckdb.DuckDBPyConnection:
    """A connection of its own to an empty database in memory; with `explaining`, plans are shown unoptimized."""
    engine = duckdb.connect(
        ":memory:",
        config={
            "threads": 1,
            "memory_limit": MEMORY_LIMIT,
            "temp_directory": "",
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            # Names in an expression must never be looked for among the variables of this program.
            "python_enable_replacements": False,
            "python_scan_all_frames": False,
        },
    )
    for setting in ("SET explain_output = 'all'", *_SETTINGS) if explaining else _SETTINGS:
        engine.execute(setting)
    return engine


def first_line(error: duckdb.Error) -> str:
    """What went wrong, without the excerpt of the statement, which is not the user's own text."""
    message = str(error).split("\nLINE ")[0]
    return " ".join(line.strip() for line in message.splitlines() if line.strip())


# -- what goes in -----------------------------------------------------------------------------------------


def engine_field(name: str, type_: c.ColumnType) -> pa.Field | None:
    """As what a column enters the engine; None when the engine has no exact type for it."""
    inner = c.bare(type_)
    match inner:
        case c.Uuid():
            return pa.field(name, pa.binary(16), metadata=_extension("arrow.uuid", ""))
        case c.Integer(bits=128, signed=signed):
            text = json.dumps({"type_name": "hugeint" if signed else "uhugeint", "vendor_name": "DuckDB"})
            return pa.field(name, pa.binary(16), metadata=_extension("arrow.opaque", text))
        case c.Integer(bits=256):
            return None
        case c.Decimal(precision=precision) if precision > MOST_DIGITS:
            return None
        case c.Array() | c.Map() | c.Tuple():
            nested = _nested_type(inner)
            return None if nested is None else pa.field(name, nested)
        case _:
            return pa.field(name, c.arrow_type(inner))


def _nested_type(type_: c.Array | c.Map | c.Tuple) -> pa.DataType | None:
    match type_:
        case c.Array(item=item):
            fields = [engine_field("item", item)]
        case c.Map(key=key, value=value):
            fields = [engine_field("key", key), engine_field("value", value)]
        case c.Tuple(fields=named):
            fields = [engine_field(name, inner) for name, inner in named]
    known = [field for field in fields if field is not None]
    if len(known) < len(fields):
        return None
    if isinstance(type_, c.Array):
        return pa.list_(known[0])
    if isinstance(type_, c.Map):
        return pa.map_(known[0].with_nullable(False), known[1])
    return pa.struct(known)


def _extension(name: str, text: str) -> dict[str, str]:
    return {"ARROW:extension:name": name, "ARROW:extension:metadata": text}


# -- what comes out ---------------------------------------------------------------------------------------


def plain_values(array: pa.Array) -> pa.Array:
    """The array in types that are Arrow's own: UUIDs as their bytes, 128-bit integers as wide decimals."""
    if not _holds_extension(array.type):
        return array
    if isinstance(array, pa.ExtensionArray):
        return _plain_extension(array)
    nulls = array.is_null() if array.null_count else None
    if pa.types.is_struct(array.type):
        children = [plain_values(array.field(place)) for place in range(array.type.num_fields)]
        return pa.StructArray.from_arrays(children, names=[field.name for field in array.type], mask=nulls)
    if pa.types.is_map(array.type):
        return pa.MapArray.from_arrays(
            _offsets(array), plain_values(array.keys), plain_values(array.items), mask=nulls
        )
    if pa.types.is_fixed_size_list(array.type):
        array = array.cast(pa.list_(array.type.value_field))
    return pa.ListArray.from_arrays(_offsets(array), plain_values(array.values), mask=nulls)


def _offsets(array: pa.Array) -> pa.Array:
    # Arrow takes no mask together with the offsets of a slice; these start where the values start.
    return pa.concat_arrays([array.offsets]) if array.offset else array.offsets


def _holds_extension(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return True
    return any(_holds_extension(kind.field(place).type) for place in range(kind.num_fields))


def _plain_extension(array: pa.ExtensionArray) -> pa.Array:
    name = getattr(array.type, "type_name", None)
    if isinstance(array.type, pa.Bool8Type):
        return array.storage.cast(pa.bool_())
    if name in {"hugeint", "uhugeint"}:
        return _wide_decimals(array.storage, signed=name == "hugeint")
    return array.storage


def _wide_decimals(stored: pa.Array, *, signed: bool) -> pa.Array:
    """16 bytes of an integer as the 32 of a decimal: the same number, sign drawn out."""
    rows = len(stored)
    low = np.frombuffer(stored.buffers()[1], dtype=np.uint8)[stored.offset * 16 : (stored.offset + rows) * 16]
    wide: np.ndarray[Any, np.dtype[np.uint8]] = np.zeros((rows, 32), dtype=np.uint8)
    wide[:, :16] = low.reshape(rows, 16)
    if signed:
        wide[wide[:, 15] >= 128, 16:] = 255
    validity = stored.is_valid().buffers()[1] if stored.null_count else None
    return pa.Array.from_buffers(_WIDE, rows, [validity, pa.py_buffer(wide)])
