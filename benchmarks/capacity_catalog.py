"""What an epoch and a batch take in the catalog: rows entered by the ledger's own code into SQLite.

The bytes of each kind of row come from ledgers that differ in that kind alone. PostgreSQL takes about as much; its rows
are wider and its indexes the same.
"""

from __future__ import annotations

import tracemalloc
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from oncehouse.ledger.catalog import batches, retention
from oncehouse.ledger.catalog.batches import NewBatch
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.leases import acquire
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.models import (
    BatchStatus,
    Counts,
    DuplicateFile,
    EpochKind,
    FileRef,
    KeyFile,
    LedgerIdentity,
    OffsetRange,
    Part,
    Registration,
    Segment,
    Stage,
)
from oncehouse.pipeline.ingest.part_files import epoch_path

_EVENTS = 100_000
_MORE = 5


def measure(*, epochs: int) -> dict[str, float]:
    plain = _size(epochs)
    return {
        "catalog_bytes_an_epoch": plain,
        "catalog_bytes_a_range": (_size(epochs, ranges=_MORE) - plain) / (_MORE - 1),
        "catalog_bytes_a_part": (_size(epochs, parts=_MORE) - plain) / (_MORE - 1),
        "catalog_bytes_a_batch": _size(epochs, batched=True) - plain,
        "driver_bytes_a_file": _measure_paths(epochs),
    }


def _size(epochs: int, *, ranges: int = 1, parts: int = 1, batched: bool = False) -> float:
    """Bytes of a catalog by epoch, beyond those of an empty one."""
    with _fill(0) as empty, _fill(epochs, ranges=ranges, parts=parts, batched=batched) as catalog:
        return (_count_bytes(catalog) - _count_bytes(empty)) / epochs


def _count_bytes(catalog: Catalog) -> int:
    with catalog.engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        free = connection.exec_driver_sql("PRAGMA freelist_count").scalar_one()
        page = connection.exec_driver_sql("PRAGMA page_size").scalar_one()
    return int((pages - free) * page)


@contextmanager
def _fill(epochs: int, *, ranges: int = 1, parts: int = 1, batched: bool = False) -> Iterator[Catalog]:
    """In memory: its pages are those of a file."""
    catalog = Catalog("sqlite://", "benchmark")
    try:
        catalog.prepare()
        catalog.adopt(LedgerIdentity(fingerprint="[]", buckets=16))
        ingest = acquire(catalog, Stage.INGEST, holder="benchmark", lease_seconds=6000).token
        load = acquire(catalog, Stage.LOAD, holder="benchmark", lease_seconds=6000).token
        for epoch in range(1, epochs + 1):
            made = _registration(epoch, ranges, parts)
            register(catalog, ingest, made)
            if batched:
                _load(catalog, load, made)
        yield catalog
    finally:
        catalog.close()


def _load(catalog: Catalog, token: int, made: Registration) -> None:
    batch = NewBatch(batch_id=str(uuid.uuid4()), table="shop.events", parts=made.parts)
    batches.create_batches(catalog, token, [batch])
    attempt = batches.start_attempt(catalog, token, batch.batch_id)
    batches.finish_attempt(catalog, token, attempt, outcome="inserted", status=BatchStatus.IN_CLICKHOUSE)


def _registration(epoch: int, ranges: int, parts: int) -> Registration:
    names = [f"{epoch:010d}-1-{ordinal}" for ordinal in range(parts)]
    counts = Counts(read=_EVENTS * ranges, new=_EVENTS * ranges - 10, duplicate=10)
    return Registration(
        epoch=epoch,
        kind=EpochKind.KAFKA,
        started_at=1_767_225_600.0 + epoch,
        counts=counts,
        ranges=tuple(
            OffsetRange(topic="shop-events", partition=at, start=(epoch - 1) * _EVENTS, end=epoch * _EVENTS)
            for at in range(ranges)
        ),
        topic_ids={"shop-events": "b6ZcCzTwTQiz0dUAD9JXnQ"},
        key_files=tuple(
            KeyFile(
                key_file=name,
                ordinal=at,
                events=_EVENTS,
                keys=_file(epoch, f"r{at}-{uuid.uuid4().hex[:8]}.keys.arrow"),
                raw=_file(epoch, f"r{at}-{uuid.uuid4().hex[:8]}.raw.arrow"),
            )
            for at, name in enumerate(names)
        ),
        parts=tuple(
            Part(
                part=f"{name}-0",
                epoch=epoch,
                table="shop.events",
                key_file=name,
                ordinal=at,
                rows=_EVENTS,
                live_rows=_EVENTS,
                size_bytes=_EVENTS * 100,
                shape="0123456789abcdef",
                file=_file(epoch, f"r{at}-{uuid.uuid4().hex[:8]}.part.arrow"),
            )
            for at, name in enumerate(names)
        ),
        duplicate_files=(DuplicateFile(rows=10, file=_file(epoch, "d0-1-0a1b2c3d.duplicates.arrow")),),
        segments=(
            Segment(
                segment=f"{epoch:010d}-1-0",
                bucket_from=0,
                bucket_to=15,
                keys=counts.new,
                first_seen_from=0.0,
                first_seen_to=0.0,
                file=_file(epoch, "d0-1-0a1b2c3d.segment.arrow"),
            ),
        ),
    )


def _file(epoch: int, ending: str) -> FileRef:
    path = epoch_path("benchmark", epoch, 1, ending)
    return FileRef(path=path, size_bytes=1 << 20, checksum=uuid.uuid4().hex * 2)


def _measure_paths(epochs: int) -> float:
    """What retention holds in the driver's memory for each file that the catalog names."""
    with _fill(epochs) as catalog:
        retention.registered_paths(catalog)
        tracemalloc.start()
        found = retention.registered_paths(catalog)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak / len(found)
