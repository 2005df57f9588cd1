"""Where a change stands in the log of its database, out of the envelope's `source`: for identity.

PostgreSQL writes each change of a row at an own place in its log (lsn), MySQL and MariaDB in a file, at a
position, as a row of it. Two changes of one key never share a place, but for those of one transaction that MySQL has
compressed (binlog_transaction_compression): all of its events stand at its position, and each numbers its rows from 0.
So a change in a binary log is named by the images of its row, too. They are bytes that the connector writes again when
it delivers a change again; the order of a change in its transaction, which connectors can write too, is not: it begins
again where a connector goes on in the middle of one.

Changes may stand in another order than they took effect: a row can be written before, and committed after, the deletion
of the one whose key it takes. So places distinguish changes and say nothing about which is newer; connectors write
changes to Kafka in their order.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.column_types import types as c
from oncehouse.common.hashing import xxh3_hashes
from oncehouse.pipeline.convert.masks import Mask, flags, null_mask

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
    "lcr_position": _TEXT,
    "scn_idx": _LONG,
}
CONNECTORS = ("postgresql", "mysql", "mariadb", "sqlserver", "oracle", "db2", "informix")
"""Those whose envelopes hold rows, and whose logs distinguish two changes of a row."""
_SOURCE = rb',\s*"source"\s*:\s*\{'
_FIRST_SOURCE = rb"(?s)" + _SOURCE + rb".*$"
_LAST_SOURCE = rb"(?s)^(.*)" + _SOURCE + rb".*$"
_ENVELOPE = rb'^\s*\{\s*"before"\s*:'
SOURCE = c.Nullable(
    inner=c.Tuple(
        fields=(
            ("connector", _TEXT),
            *((name, _TEXT) for name in _NAMES),
            *_PLACES.items(),
        )
    )
)


def name_tables(source: pa.Array) -> pa.Array:
    """`database.schema.table`, as far as the database has each."""
    return _join([source.field(name) for name in _NAMES], ".")


def name_positions(source: pa.Array, snapshot: Mask, payloads: pa.Array) -> tuple[pa.Array, Mask]:
    """The place in the log as text, and which rows have none. A snapshot's row is apart from a change there."""
    pieces = [source.field(name).cast(pa.string()) for name in _PLACES]
    mark = pc.if_else(pa.array(snapshot), pa.scalar("snapshot"), pa.scalar(None, pa.string()))
    missing = np.ones(len(source), dtype=np.bool_)
    for piece in pieces:
        missing &= null_mask(piece)
    return _join([*pieces, mark, _name_images(source, snapshot, payloads)], ":"), missing


def _name_images(source: pa.Array, snapshot: Mask, payloads: pa.Array) -> pa.Array:
    """The hash of a row's images where it was read from a binary log; null elsewhere.

    An envelope whose members stand in another order than the connector's own has been written by something else, which
    might write it in another way the next time; its images count nowhere.
    """
    named = ~null_mask(source.field("file")) & ~snapshot
    if named.any():
        named &= flags(pc.match_substring_regex(payloads, _ENVELOPE))
    rows = np.flatnonzero(named)
    if not len(rows):
        return pa.nulls(len(payloads), pa.string())
    hashes = pa.array(xxh3_hashes(cut_images(payloads.take(pa.array(rows))))).cast(pa.string())
    return hashes.take(pa.array(np.cumsum(named) - 1, mask=~named))


def cut_images(payloads: pa.Array) -> pa.Array:
    """An envelope's beginning with the row before and after: all that stands before its last member `source`."""
    images = pc.replace_substring_regex(payloads, _FIRST_SOURCE, b"")
    several = pc.count_substring_regex(payloads, _SOURCE)
    places = np.flatnonzero(flags(pc.greater(several, 1)))
    if not len(places):
        return images
    mask = np.zeros(len(payloads), dtype=np.bool_)
    mask[places] = True
    cut = pc.replace_substring_regex(payloads.take(pa.array(places)), _LAST_SOURCE, rb"\1")
    return pc.replace_with_mask(images, pa.array(mask), cut)


def _join(pieces: list[pa.Array], between: str) -> pa.Array:
    """The pieces that are there, with the mark between them."""
    # Arrow can skip nulls by itself, but loses the rows that have nothing else (pyarrow 26).
    marked = [pc.fill_null(pc.binary_join_element_wise(between, piece, ""), "") for piece in pieces]
    return pc.utf8_slice_codeunits(pc.binary_join_element_wise(*marked, ""), start=1)
