"""Where a change stands in the log of its database, out of the envelope's `source`: for identity.

PostgreSQL writes each change of a row at an own place in its log (lsn), MySQL and MariaDB in a file, at a
position, as a row of it. Two changes of one key never share a place. They may stand in another order than they took
effect, though: a row can be written before, and committed after, the deletion of the one whose key it takes. So
places distinguish changes and say nothing about which is newer; connectors write changes to Kafka in their order.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.column_types import types as c
from oncehouse.pipeline.convert.masks import Mask, null_mask

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
        )
    )
)


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
