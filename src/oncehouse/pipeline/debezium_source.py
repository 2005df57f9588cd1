"""Where a change stands in the log of its database, out of the envelope's `source`: for versions and identity.

PostgreSQL writes each change of a row at an own place in its log (lsn), MySQL and MariaDB in a file, at a
position, as a row of it. Two changes of one row never share a place, and the later one has the greater: rows
are locked while they change. Rows that one statement writes together may share it; their keys differ.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse import columns as c
from oncehouse.pipeline.json_times import Mask, null_mask

_TEXT = c.Nullable(inner=c.String())
_LONG = c.Nullable(inner=c.Integer(bits=64, signed=True))
_NAMES = ("db", "schema", "table")
# What names a place in a log, for the connectors that there are; those that a connector lacks are null.
_PLACES: dict[str, c.ColumnType] = {
    "lsn": _LONG,
    "file": _TEXT,
    "pos": _LONG,
    "row": _LONG,
    "commit_lsn": _TEXT,
    "change_lsn": _TEXT,
    "event_serial_no": _LONG,
    "scn": _TEXT,
    "commit_scn": _TEXT,
    "rs_id": _TEXT,
    "ssn": _LONG,
    "ord": _LONG,
}
SOURCE = c.Nullable(
    inner=c.Tuple(
        fields=(
            *((name, _TEXT) for name in _NAMES),
            *_PLACES.items(),
            ("ts_ms", _LONG),
            ("ts_us", _LONG),
            ("ts_ns", _LONG),
        )
    )
)
_POSITION_BITS = 40
_GREATEST = (1 << 63) - 1

Versions = np.ndarray[Any, np.dtype[np.uint64]]


def name_tables(source: pa.Array) -> pa.Array:
    """`database.schema.table`, as far as the database has each."""
    return _join([source.field(name) for name in _NAMES], ".")


def name_positions(source: pa.Array, snapshot: Mask) -> tuple[pa.Array, Mask]:
    """The place in the log as text, and which rows have none. A snapshot's row is apart from a change there."""
    pieces = [source.field(name).cast(pa.string()) for name in _PLACES]
    mark = pc.if_else(pa.array(snapshot), pa.scalar("snapshot"), pa.scalar(None, pa.string()))
    missing = np.ones(len(source), dtype=np.bool_)
    for piece in pieces:
        missing &= null_mask(piece)
    return _join([*pieces, mark], ":"), missing


def _join(pieces: list[pa.Array], between: str) -> pa.Array:
    """The pieces that are there, with the mark between them."""
    # Arrow can skip nulls by itself, but loses the rows that have nothing else (pyarrow 26).
    marked = [pc.fill_null(pc.binary_join_element_wise(between, piece, ""), "") for piece in pieces]
    return pc.utf8_slice_codeunits(pc.binary_join_element_wise(*marked, ""), start=1)


def count_versions(source: pa.Array, snapshot: Mask) -> tuple[pa.Array, Mask]:
    """A number that grows with every change of a row, and which rows have none.

    One bit stands below the place in the log: a change at the very place of a snapshot is the later one.
    """
    number, file = _numbers(source.field("lsn")), _file_numbers(source.field("file"))
    position = _numbers(source.field("pos"))
    in_file = (file >= 0) & (position >= 0)
    in_file &= (file < 1 << (62 - _POSITION_BITS)) & (position < 1 << _POSITION_BITS)
    number = np.where(number >= 0, number, np.where(in_file, (file << _POSITION_BITS) | position, -1))
    for name, factor in (("ts_ns", 1), ("ts_us", 1_000), ("ts_ms", 1_000_000)):
        ticks = _numbers(source.field(name))
        usable = (number < 0) & (ticks >= 0) & (ticks <= _GREATEST // factor)
        number = np.where(usable, np.where(usable, ticks, 0) * factor, number)
    missing = number < 0
    versions: Versions = (np.where(missing, 0, number).astype(np.uint64) << np.uint64(1)) | ~snapshot
    return pa.array(versions), missing


def _numbers(array: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    filled: np.ndarray[Any, np.dtype[np.int64]] = array.fill_null(-1).to_numpy(zero_copy_only=False)
    return filled


def _file_numbers(files: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """3 for binlog.000003; -1 where the name does not end so."""
    numbered = pc.match_substring_regex(files, r"\.[0-9]{1,9}$")
    digits = pc.replace_substring_regex(files, r"^.*\.([0-9]{1,9})$", r"\1")
    return _numbers(pc.if_else(numbered, digits, None).cast(pa.int64()))
