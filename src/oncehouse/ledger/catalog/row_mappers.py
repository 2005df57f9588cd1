"""Catalog rows as records, and the few statements that several writers share.

Each function takes an open connection or a row; none opens a transaction of its own.
"""

from __future__ import annotations

import json

from sqlalchemy import Connection, Row, func, select, update

from oncehouse.errors import PermanentError
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.schema import (
    epochs,
    requests,
)
from oncehouse.ledger.models import (
    Counts,
    DeadLetterFile,
    DeadLetterKind,
    EpochKind,
    EpochRow,
    FileRef,
    KeyFile,
    OffsetRange,
)


def last_epoch_in(connection: Connection, catalog: Catalog) -> int:
    last = connection.execute(
        select(func.max(epochs.c.epoch)).where(epochs.c.pipeline == catalog.pipeline)
    ).scalar_one()
    return int(last or 0)


def finish_request_in(connection: Connection, catalog: Catalog, request: int, result: str) -> None:
    done = connection.execute(
        update(requests)
        .where(
            requests.c.pipeline == catalog.pipeline,
            requests.c.request == request,
            requests.c.done_at.is_(None),
        )
        .values(done_at=catalog.clock, result=result)
    )
    if done.rowcount != 1:
        raise PermanentError(
            f"Pipeline {catalog.pipeline}: request {request} is unknown or done already; nothing was written."
        )


def key_file_of(row: Row[tuple[object, ...]]) -> KeyFile:
    return KeyFile(
        key_file=row.key_file,
        ordinal=row.ordinal,
        events=row.events,
        keys=file_ref(row, "keys", rows=row.events),
        raw=file_ref(row, "raw", rows=row.events),
    )


def dead_letter_file_of(row: Row[tuple[object, ...]]) -> DeadLetterFile:
    return DeadLetterFile(
        dead_letter_file=row.dead_letter_file,
        epoch=row.epoch,
        rows=row.rows_total,
        reasons=json.loads(row.reasons),
        file=file_ref(row, "file"),
        registered_at=row.registered_at,
        kind=DeadLetterKind(row.kind),
    )


def file_values(prefix: str, file: FileRef) -> dict[str, object]:
    return {
        f"{prefix}_path": file.path,
        f"{prefix}_bytes": file.size_bytes,
        f"{prefix}_checksum": file.checksum,
        f"{prefix}_row": file.row,
    }


def file_ref(row: Row[tuple[object, ...]], prefix: str, *, rows: int | None = None) -> FileRef:
    """The file of a catalog row; `rows` where the file may be a pack that holds others' rows too."""
    found = row._mapping  # noqa: SLF001 - SQLAlchemy's public way to address columns by name
    return FileRef(
        path=str(found[f"{prefix}_path"]),
        size_bytes=int(str(found[f"{prefix}_bytes"])),
        checksum=str(found[f"{prefix}_checksum"]),
        row=int(str(found[f"{prefix}_row"])),
        rows=rows,
    )


def offset_range_of(row: Row[tuple[object, ...]]) -> OffsetRange:
    return OffsetRange(
        topic=row.topic,
        partition=row.partition_id,
        start=row.start_offset,
        end=row.end_offset,
        leader_epoch=row.leader_epoch,
    )


def epoch_of(row: Row[tuple[object, ...]]) -> EpochRow:
    return EpochRow(
        epoch=row.epoch,
        kind=EpochKind(row.kind),
        token=row.token,
        started_at=row.started_at,
        registered_at=row.registered_at,
        counts=Counts(
            read=row.rows_read,
            new=row.rows_new,
            duplicate=row.rows_duplicate,
            dead_letter=row.rows_dead_letter,
            skipped=row.rows_skipped,
            waiting=row.rows_waiting,
            conflicts=row.conflicts,
        ),
    )
