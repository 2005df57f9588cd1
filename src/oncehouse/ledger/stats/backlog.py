"""How many bytes of the ledger's files wait for ClickHouse, and how many an epoch adds; summed by the database.

A key file and its raw bytes count for as long as one of its parts waits. What lies in a pack was loaded before and
stays for the window in any case, so it does not count, even when a refill sends its rows once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select, union

from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.epochs import next_epoch
from oncehouse.ledger.catalog.schema import batches, key_files, parts, segments
from oncehouse.ledger.models import NOT_ARRIVED

_EPOCHS_READ = 20
_PACKED = "%/packs/%"


@dataclass(frozen=True, kw_only=True)
class Kept:
    """All that the ledger keeps of events, loaded or not."""

    size_bytes: int
    since: float
    """When the oldest of it was registered."""


def sum_backlog(catalog: Catalog) -> int:
    """Bytes of the files of events that are not in ClickHouse yet, parked ones included."""
    unsent = select(batches.c.batch_id).where(
        batches.c.pipeline == catalog.pipeline, batches.c.status.in_([str(one) for one in NOT_ARRIVED])
    )
    alive = (parts.c.pipeline == catalog.pipeline, parts.c.rows_live > 0)
    # Two questions, for which there is an index, instead of one with an `or`, for which there is none.
    waiting = [(*alive, parts.c.batch_id.is_(None)), (*alive, parts.c.batch_id.in_(unsent))]
    rows = [
        select(func.sum(parts.c.file_bytes)).where(*those, parts.c.file_path.not_like(_PACKED))
        for those in waiting
    ]
    keys_and_raw = select(func.sum(key_files.c.keys_bytes + key_files.c.raw_bytes)).where(
        key_files.c.pipeline == catalog.pipeline,
        key_files.c.key_file.in_(union(*(select(parts.c.key_file).where(*those) for those in waiting))),
        key_files.c.raw_path.not_like(_PACKED),
    )
    return _sum(catalog, *rows, keys_and_raw)


def largest_epoch(catalog: Catalog) -> int:
    """Bytes of the files of the largest of the newest epochs: what the next one may need."""
    newest = next_epoch(catalog) - _EPOCHS_READ
    own_keys = (
        select(key_files.c.epoch, func.sum(key_files.c.keys_bytes + key_files.c.raw_bytes))
        .where(key_files.c.pipeline == catalog.pipeline, key_files.c.epoch >= newest)
        .where(key_files.c.raw_path.not_like(_PACKED))
        .group_by(key_files.c.epoch)
    )
    own_parts = (
        select(parts.c.epoch, func.sum(parts.c.file_bytes))
        .where(parts.c.pipeline == catalog.pipeline, parts.c.epoch >= newest)
        .where(parts.c.file_path.not_like(_PACKED))
        .group_by(parts.c.epoch)
    )
    sizes: dict[int, int] = {}
    with catalog.read() as connection:
        for query in (own_keys, own_parts):
            for epoch, size in connection.execute(query).all():
                sizes[epoch] = sizes.get(epoch, 0) + int(size)
    return max(sizes.values(), default=0)


def sum_kept(catalog: Catalog) -> Kept | None:
    """None while nothing was read."""
    queries = (
        _sum_files(catalog, key_files.c.keys_path, key_files.c.keys_bytes),
        _sum_files(catalog, key_files.c.raw_path, key_files.c.raw_bytes),
        _sum_files(catalog, parts.c.file_path, parts.c.file_bytes),
        _sum_files(catalog, segments.c.file_path, segments.c.file_bytes),
    )
    oldest = select(func.min(key_files.c.registered_at)).where(key_files.c.pipeline == catalog.pipeline)
    with catalog.read() as connection:
        since = connection.execute(oldest).scalar()
    return None if since is None else Kept(size_bytes=_sum(catalog, *queries), since=float(since))


def _sum_files(catalog: Catalog, path: ColumnElement[str], size_bytes: ColumnElement[int]) -> Select[Any]:
    """Each file once: a pack is named by all whose rows it holds."""
    each = (
        select(func.max(size_bytes).label("size_bytes"))
        .where(path.table.c.pipeline == catalog.pipeline)
        .group_by(path)
        .subquery()
    )
    return select(func.sum(each.c.size_bytes))


def _sum(catalog: Catalog, *queries: Select[Any]) -> int:
    with catalog.read() as connection:
        found = [connection.execute(query).scalar_one() for query in queries]
    # A sum of nothing is null, and PostgreSQL's of whole numbers is a decimal.
    return sum(int(one or 0) for one in found)
