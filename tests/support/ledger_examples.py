"""Small, valid pieces of a ledger for tests that fill a catalog by hand."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from oncehouse.ledger.catalog.batches import NewBatch
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.leases import acquire
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.models import (
    Counts,
    DeadLetterFile,
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
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.formats.base import HEADERS
from oncehouse.pipeline.ingest.part_files import DEAD_LETTER_SCHEMA, write_dead_letters

TOPIC = "orders"
TOPIC_ID = "topic-1"
TABLE = "shop.orders"
IDENTITY = LedgerIdentity(fingerprint="sha256:id(order_id)", buckets=16)


def make_file(path: str) -> FileRef:
    return FileRef(path=path, size_bytes=3, checksum="0" * 64)


def make_part(name: str, *, epoch: int = 1, table: str = TABLE, rows: int = 10, live_rows: int = 10) -> Part:
    return Part(
        part=name,
        epoch=epoch,
        table=table,
        key_file=f"keys-{epoch}",
        ordinal=0,
        rows=rows,
        live_rows=live_rows,
        size_bytes=live_rows * 100,
        file=make_file(f"parts/{name}"),
    )


def put_dead_letters(
    store: FileStore,
    name: str,
    rows: Sequence[tuple[int, str, bytes | None]],
    *,
    epoch: int = 1,
    at: datetime = datetime(2026, 1, 2, tzinfo=UTC),
    why: str = "why\x1b[2J",
) -> DeadLetterFile:
    """A file of dead letters in the store: offset, reason and value of each."""
    columns = [
        pa.array([TOPIC] * len(rows)).dictionary_encode(),
        pa.array([0] * len(rows), pa.int32()),
        pa.array([offset for offset, _, _ in rows], pa.int64()),
        pa.array([0] * len(rows), pa.int32()),
        pa.array([at] * len(rows), pa.timestamp("us", tz="UTC")),
        pa.array([None] * len(rows), pa.binary()),
        pa.array([value for _, _, value in rows], pa.binary()),
        pa.nulls(len(rows), HEADERS),
        pa.nulls(len(rows), pa.string()),
        pa.array([reason for _, reason, _ in rows]),
        pa.array([why] * len(rows)),
    ]
    table = pa.Table.from_arrays(columns, schema=DEAD_LETTER_SCHEMA)
    file = store.put(f"letters/{name}", lambda path: write_dead_letters(path, table))
    reasons = Counter(reason for _, reason, _ in rows)
    return DeadLetterFile(
        dead_letter_file=name, epoch=epoch, rows=len(rows), reasons=dict(reasons), file=file
    )


def make_segment(name: str) -> Segment:
    return Segment(
        segment=name,
        bucket_from=0,
        bucket_to=15,
        keys=10,
        first_seen_from=1.0,
        first_seen_to=2.0,
        file=make_file(f"segments/{name}"),
    )


def make_dead_letters(name: str, *, epoch: int = 1, rows: int = 1) -> DeadLetterFile:
    return DeadLetterFile(
        dead_letter_file=name,
        epoch=epoch,
        rows=rows,
        reasons={"not_json": rows},
        file=make_file(f"letters/{name}"),
    )


def make_registration(epoch: int = 1, start: int = 0, end: int = 10, **changes: Any) -> Registration:
    """An epoch that read offsets start to end of one partition, all of them new, into one part."""
    values: dict[str, Any] = {
        "epoch": epoch,
        "kind": EpochKind.KAFKA,
        "started_at": 1.0,
        "counts": Counts(read=end - start, new=end - start),
        "ranges": (OffsetRange(topic=TOPIC, partition=0, start=start, end=end),),
        "topic_ids": {TOPIC: TOPIC_ID},
        "key_files": (
            KeyFile(
                key_file=f"keys-{epoch}",
                ordinal=0,
                events=end - start,
                keys=make_file(f"keys/{epoch}"),
                raw=make_file(f"raw/{epoch}"),
            ),
        ),
        "parts": (make_part(f"part-{epoch}", epoch=epoch, rows=end - start, live_rows=end - start),),
    }
    return Registration(**(values | changes))


def take_lease(catalog: Catalog, stage: Stage = Stage.INGEST) -> int:
    return acquire(catalog, stage, holder="this test", lease_seconds=600).token


def register_epochs(catalog: Catalog, number: int = 1) -> int:
    """Register that many epochs of ten events each; returns the ingest token."""
    token = take_lease(catalog)
    for epoch in range(1, number + 1):
        register(catalog, token, make_registration(epoch, start=(epoch - 1) * 10, end=epoch * 10))
    return token


def make_batch(*parts: Part, table: str = TABLE) -> NewBatch:
    return NewBatch(batch_id=str(uuid.uuid4()), table=table, parts=parts)


def race(calls: list[Callable[[], object]]) -> list[object]:
    """Run all at the same moment; gives back each one's answer or error."""
    start = threading.Barrier(len(calls))
    answers: list[object] = [None] * len(calls)

    def run(at: int) -> None:
        start.wait()
        try:
            answers[at] = calls[at]()
        except Exception as error:  # noqa: BLE001 - handed to the test, which judges it
            answers[at] = error

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers
