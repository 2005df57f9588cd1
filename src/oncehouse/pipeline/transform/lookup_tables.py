"""Look-ups on the driver: a user's file becomes a file of the ledger that all tasks of an epoch read.

Types are declared, so a file that changes can change values but never types. A look-up is read when its file
has changed since the last epoch and pinned under its checksum; what is pinned is needed by running tasks only,
so the copy before goes when the next is made, and the sweep takes what a dead process left.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from oncehouse.column_types.parser import parse_type
from oncehouse.column_types.types import ColumnType, String, bare, is_nullable
from oncehouse.common.formatting import format_bytes
from oncehouse.errors import ConfigurationError
from oncehouse.expressions.duckdb_engine import first_line
from oncehouse.ledger.models import FileRef
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.convert.convert import convert
from oncehouse.pipeline.convert.value_errors import explain_value
from oncehouse.pipeline.formats.json.decoder import JsonDecoder
from oncehouse.pipeline.transform.lookup_join import COLUMN_PREFIX, KEY
from oncehouse.pipeline.transform.plan import PinnedLookup

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Lookup, Pipeline

MAX_FILE_BYTES = 64 << 20
MAX_MEMORY_BYTES = 256 << 20
"""Every worker holds a look-up in memory; what is larger belongs into ClickHouse, joined there."""

_Stamp = tuple[int, int, int]

# What this process has pinned, by pipeline, token and look-up: the file's stamp, and its copy in the ledger.
_pinned: dict[tuple[str, str, int, str], tuple[_Stamp, FileRef]] = {}


def pin_lookups(pipeline: Pipeline, store: FileStore, *, token: int) -> tuple[PinnedLookup, ...]:
    """Copies of all look-ups as they are now; a file that has not changed keeps its copy."""
    return tuple(
        PinnedLookup(
            name=name, field=lookup.event_field, file=_pin(store, pipeline, name, lookup, token=token)
        )
        for name, lookup in pipeline.shape.lookups.items()
    )


def _pin(store: FileStore, pipeline: Pipeline, name: str, lookup: Lookup, *, token: int) -> FileRef:
    place = (store.root, pipeline.pipeline, token, name)
    stamp = _stamp(name, lookup)
    before = _pinned.get(place)
    if before is not None and before[0] == stamp:
        return before[1]
    table = read_lookup(name, lookup, parse_type(pipeline.source.decoded_fields[lookup.event_field]))
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    path = f"{pipeline.pipeline}/lookups/{token}-{digest}-{os.urandom(6).hex()}.parquet"
    file = store.put(path, lambda target: pq.write_table(table, target, compression="lz4"))
    _pinned[place] = stamp, file
    if before is not None:
        store.delete(before[1].path)
    return file


def _stamp(name: str, lookup: Lookup) -> _Stamp:
    try:
        found = Path(lookup.file).stat()
    except OSError as error:
        raise _refusal(name, lookup, f"cannot be read: {error.strerror}; correct `file`") from None
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_lookup(name: str, lookup: Lookup, key_type: ColumnType) -> pa.Table:
    """The file as a table of declared types: the key, then the columns; raises ConfigurationError."""
    if _stamp(name, lookup)[1] > MAX_FILE_BYTES:
        raise _refusal(
            name, lookup, f"is larger than {format_bytes(MAX_FILE_BYTES)}; join it in ClickHouse instead"
        )
    types = {lookup.key: bare(key_type)} | {
        column: parse_type(text) for column, text in lookup.columns.items()
    }
    try:
        found = _READERS[Path(lookup.file).suffix.lower()](Path(lookup.file), types)
    except duckdb.Error as error:
        raise _refusal(name, lookup, f"cannot be read: {first_line(error)}") from error
    except (OSError, pa.ArrowException, KeyError, _MismatchError) as error:
        raise _refusal(name, lookup, f"cannot be read: {error}") from error
    if found.nbytes > MAX_MEMORY_BYTES:
        raise _refusal(
            name,
            lookup,
            f"takes more than {format_bytes(MAX_MEMORY_BYTES)} of memory; join it in ClickHouse instead",
        )
    _require_keys(name, lookup, found.column(lookup.key).combine_chunks())
    columns = [found.column(lookup.key), *(found.column(column) for column in lookup.columns)]
    return pa.table(columns, names=[KEY, *(f"{COLUMN_PREFIX}{column}" for column in lookup.columns)])


def _refusal(name: str, lookup: Lookup, what: str) -> ConfigurationError:
    return ConfigurationError(f"shape.lookups.{name}: {lookup.file} {what}")


def _require_keys(name: str, lookup: Lookup, keys: pa.Array) -> None:
    if keys.null_count:
        raise _refusal(name, lookup, f"has rows without a key: {lookup.key!r} must be filled in each")
    counts = pc.value_counts(keys)
    repeated = pc.greater(counts.field("counts"), 1).index(pa.scalar(True)).as_py()
    if repeated >= 0:
        key = counts.field("values")[repeated].as_py()
        raise _refusal(name, lookup, f"has the key {key!r} more than once; a look-up has one row a key")


# -- the kinds of files -----------------------------------------------------------------------------------


class _MismatchError(Exception):
    """A value cannot be of its declared type; the text says where."""


def _read_parquet(path: Path, types: Mapping[str, ColumnType]) -> pa.Table:
    names = pq.read_schema(path).names
    _require_columns(types, names)
    return _convert_all(pq.read_table(path, columns=list(types)), types)


def _read_csv(path: Path, types: Mapping[str, ColumnType]) -> pa.Table:
    with csv.open_csv(path) as opened:
        _require_columns(types, opened.schema.names)
    options = csv.ConvertOptions(
        include_columns=list(types), column_types=dict.fromkeys(types, pa.string()), strings_can_be_null=False
    )
    table = csv.read_csv(path, convert_options=options)
    for place, (name, type_) in enumerate(types.items()):
        # Nothing between two commas is no number; for a text it is the empty text.
        if is_nullable(type_) and not isinstance(bare(type_), String):
            column = table.column(name)
            absent = pc.equal(column, "")
            table = table.set_column(place, name, pc.if_else(absent, pa.scalar(None, pa.string()), column))
    return _convert_all(table, types)


def _read_json(path: Path, types: Mapping[str, ColumnType]) -> pa.Table:
    """Objects in lines or in a list, each read as an event's JSON would be."""
    with duckdb.connect(":memory:", config={"threads": 1, "memory_limit": "1GB"}) as engine:
        objects = engine.execute(
            "SELECT CAST(json AS VARCHAR) FROM read_json_objects(?, format = 'auto')", [str(path)]
        ).fetchall()
    values = pa.array([text.encode() for (text,) in objects], pa.binary())
    decoded = JsonDecoder(fields=types, max_message_bytes=MAX_FILE_BYTES, max_depth=64).decode(values)
    if decoded.rejected:
        first = decoded.rejected[0]
        raise _MismatchError(f"row {first.index + 1}: {first.detail}")
    return pa.Table.from_batches([decoded.rows])


_READERS = {
    ".parquet": _read_parquet,
    ".csv": _read_csv,
    ".json": _read_json,
    ".jsonl": _read_json,
    ".ndjson": _read_json,
}


def _require_columns(types: Mapping[str, ColumnType], names: list[str]) -> None:
    missing = [name for name in types if names.count(name) != 1]
    if missing:
        raise _MismatchError(f"it has no column {missing[0]!r} or several; it has {', '.join(names)}")


def _convert_all(table: pa.Table, types: Mapping[str, ColumnType]) -> pa.Table:
    columns = {}
    for name, type_ in types.items():
        given = table.column(name).combine_chunks()
        converted = convert(given, type_)
        if converted.bad is not None:
            row = int(np.flatnonzero(converted.bad)[0])
            raise _MismatchError(f"row {row + 1}, column {name!r}: {explain_value(given[row], type_)}")
        columns[name] = converted.array
    return pa.table(columns)
