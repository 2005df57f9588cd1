"""Epochs in the catalog: what is settled, up to which offsets, and with which files.

`register` is the only way an event comes to exist. It runs in one transaction that demands that each range
starts where the ledger ends, so a second settling of a range is refused here and nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import Connection, Row, func, insert, select, update

from oncehouse.errors import DataLossError, OffsetGapError, PermanentError
from oncehouse.ledger.catalog import Catalog
from oncehouse.ledger.records import (
    BatchStatus,
    Counts,
    DeadLetterFile,
    EpochKind,
    EpochRow,
    FileRef,
    KeyFile,
    OffsetRange,
    Registration,
    Segment,
    Stage,
)
from oncehouse.ledger.tables import (
    COUNTS,
    batches,
    dead_letter_files,
    duplicate_files,
    epoch_hours,
    epochs,
    key_files,
    parts,
    positions,
    ranges,
    requests,
    segments,
)


def next_epoch(catalog: Catalog) -> int:
    with catalog.read() as connection:
        last = connection.execute(
            select(func.max(epochs.c.epoch)).where(epochs.c.pipeline == catalog.pipeline)
        ).scalar_one()
    return (last or 0) + 1


def read_positions(catalog: Catalog) -> dict[tuple[str, int], int]:
    """Where the next epoch starts, by topic and partition."""
    with catalog.read() as connection:
        rows = connection.execute(select(positions).where(positions.c.pipeline == catalog.pipeline)).all()
    return {(row.topic, row.partition_id): row.next_offset for row in rows}


def read_topic_ids(catalog: Catalog) -> dict[str, str]:
    with catalog.read() as connection:
        rows = connection.execute(
            select(positions.c.topic, positions.c.topic_id)
            .where(positions.c.pipeline == catalog.pipeline)
            .distinct()
        ).all()
    return {row.topic: row.topic_id for row in rows}


def last_epoch_in(connection: Connection, catalog: Catalog) -> int:
    last = connection.execute(
        select(func.max(epochs.c.epoch)).where(epochs.c.pipeline == catalog.pipeline)
    ).scalar_one()
    return int(last or 0)


def register(catalog: Catalog, token: int, registration: Registration) -> None:
    """Settle an epoch: counts, ranges, parts, keys, duplicates and dead letters, or nothing at all."""
    if not registration.counts.balanced:
        raise PermanentError(
            f"Pipeline {catalog.pipeline}, epoch {registration.epoch}: the counts do not add up "
            f"({registration.counts}). Nothing was registered; this is a defect, please report it."
        )

    def run(connection: Connection) -> None:
        now = catalog.now_in(connection)
        _demand_next_epoch(connection, catalog, registration.epoch)
        _insert_epoch(connection, catalog, token, registration, now)
        _demand_same_topics(connection, catalog, registration.topic_ids)
        for span in registration.ranges:
            _advance(connection, catalog, span, registration.topic_ids[span.topic], registration.epoch)
        _insert_files(connection, catalog, registration, now)
        if registration.request is not None:
            finish_request_in(connection, catalog, registration.request, _result(registration.counts))

    catalog.write(Stage.INGEST, token, run)


def _demand_next_epoch(connection: Connection, catalog: Catalog, epoch: int) -> None:
    last = connection.execute(
        select(func.max(epochs.c.epoch)).where(epochs.c.pipeline == catalog.pipeline)
    ).scalar_one()
    if epoch != (last or 0) + 1:
        raise OffsetGapError(
            f"Pipeline {catalog.pipeline}: epoch {epoch} cannot be registered, the ledger ends with {last or 0}."
        )


def _insert_epoch(
    connection: Connection, catalog: Catalog, token: int, registration: Registration, now: float
) -> None:
    counts = registration.counts
    connection.execute(
        insert(epochs).values(
            pipeline=catalog.pipeline,
            epoch=registration.epoch,
            kind=registration.kind,
            token=token,
            started_at=registration.started_at,
            registered_at=now,
            rows_read=counts.read,
            rows_new=counts.new,
            rows_duplicate=counts.duplicate,
            rows_dead_letter=counts.dead_letter,
            rows_skipped=counts.skipped,
            rows_waiting=counts.waiting,
            conflicts=counts.conflicts,
        )
    )


def _demand_same_topics(connection: Connection, catalog: Catalog, topic_ids: dict[str, str]) -> None:
    for topic, topic_id in topic_ids.items():
        known = connection.execute(
            select(positions.c.topic_id).where(
                positions.c.pipeline == catalog.pipeline,
                positions.c.topic == topic,
                positions.c.topic_id != topic_id,
            )
        ).first()
        if known is not None:
            raise DataLossError(
                f"Pipeline {catalog.pipeline}: topic {topic} was deleted and made anew (its id was "
                f"{known.topic_id}, it is {topic_id}). Its offsets mean something else now. Give the pipeline a "
                "new name, or the topic another, so that nothing is mixed up."
            )


def _advance(connection: Connection, catalog: Catalog, span: OffsetRange, topic_id: str, epoch: int) -> None:
    if span.end < span.start:
        raise OffsetGapError(
            f"Pipeline {catalog.pipeline}: topic {span.topic} partition {span.partition}: a range cannot run "
            f"backwards, from offset {span.start} to {span.end}. Nothing was registered."
        )
    here = (
        positions.c.pipeline == catalog.pipeline,
        positions.c.topic == span.topic,
        positions.c.partition_id == span.partition,
    )
    row = connection.execute(select(positions.c.next_offset).where(*here)).first()
    if row is None:
        connection.execute(
            insert(positions).values(
                pipeline=catalog.pipeline,
                topic=span.topic,
                partition_id=span.partition,
                topic_id=topic_id,
                next_offset=span.end,
            )
        )
    else:
        if row.next_offset != span.start:
            raise OffsetGapError(
                f"Pipeline {catalog.pipeline}: topic {span.topic} partition {span.partition}: the epoch starts "
                f"at offset {span.start}, the ledger ends at {row.next_offset}. Nothing was registered."
            )
        connection.execute(update(positions).where(*here).values(next_offset=span.end))
    if span.end > span.start:
        connection.execute(
            insert(ranges).values(
                pipeline=catalog.pipeline,
                topic=span.topic,
                partition_id=span.partition,
                start_offset=span.start,
                end_offset=span.end,
                epoch=epoch,
            )
        )


def _insert_files(connection: Connection, catalog: Catalog, registration: Registration, now: float) -> None:
    _demand_key_files(connection, catalog, registration)
    own = {"pipeline": catalog.pipeline, "epoch": registration.epoch}
    for key_file in registration.key_files:
        connection.execute(
            insert(key_files).values(
                **own,
                key_file=key_file.key_file,
                ordinal=key_file.ordinal,
                events=key_file.events,
                registered_at=now,
                **file_values("keys", key_file.keys),
                **file_values("raw", key_file.raw),
            )
        )
    for part in registration.parts:
        connection.execute(
            insert(parts).values(
                **own,
                part=part.part,
                table_name=part.table,
                key_file=part.key_file,
                ordinal=part.ordinal,
                rows_total=part.rows,
                rows_live=part.live_rows,
                live_bytes=part.size_bytes,
                shape=part.shape,
                registered_at=now,
                **file_values("file", part.file),
            )
        )
    for duplicates in registration.duplicate_files:
        connection.execute(
            insert(duplicate_files).values(
                **own, rows_total=duplicates.rows, **file_values("file", duplicates.file)
            )
        )
    for letters in registration.dead_letter_files:
        connection.execute(
            insert(dead_letter_files).values(
                **own,
                dead_letter_file=letters.dead_letter_file,
                rows_total=letters.rows,
                reasons=json.dumps(letters.reasons),
                registered_at=now,
                **file_values("file", letters.file),
            )
        )
    for name in registration.tried_dead_letter_files:
        _mark_tried(connection, catalog, name, registration.epoch)
    for batch_id in registration.replaced_batches:
        _replace_batch(connection, catalog, batch_id)
    insert_segments(connection, catalog, registration.segments, now)


def _mark_tried(connection: Connection, catalog: Catalog, name: str, epoch: int) -> None:
    tried = connection.execute(
        update(dead_letter_files)
        .where(
            dead_letter_files.c.pipeline == catalog.pipeline,
            dead_letter_files.c.dead_letter_file == name,
            dead_letter_files.c.tried_in_epoch.is_(None),
        )
        .values(tried_in_epoch=epoch)
    )
    if tried.rowcount != 1:
        raise PermanentError(
            f"Pipeline {catalog.pipeline}: the dead letters {name} are unknown or were tried again already; "
            f"epoch {epoch} was not registered."
        )


def _replace_batch(connection: Connection, catalog: Catalog, batch_id: str) -> None:
    replaced = connection.execute(
        update(batches)
        .where(
            batches.c.pipeline == catalog.pipeline,
            batches.c.batch_id == batch_id,
            batches.c.status.in_([BatchStatus.IN_CLICKHOUSE, BatchStatus.PARKED]),
        )
        .values(status=BatchStatus.REPLACED)
    )
    if replaced.rowcount != 1:
        raise PermanentError(
            f"Pipeline {catalog.pipeline}: batch {batch_id} has changed while its rows were to be sent again; "
            "nothing was registered. Ask once more."
        )


def _demand_key_files(connection: Connection, catalog: Catalog, registration: Registration) -> None:
    """Parts may name key files of older epochs, which retention may have dropped in the meantime."""
    own = {key_file.key_file for key_file in registration.key_files}
    for name in sorted({part.key_file for part in registration.parts} - own):
        known = connection.execute(
            select(key_files.c.epoch).where(
                key_files.c.pipeline == catalog.pipeline, key_files.c.key_file == name
            )
        ).first()
        if known is None:
            raise PermanentError(
                f"Pipeline {catalog.pipeline}: the key file {name} has left the window meanwhile; nothing was "
                "registered. Ask once more."
            )


def insert_segments(
    connection: Connection, catalog: Catalog, added: Sequence[Segment], now: float | None = None
) -> None:
    """Enter segments; with `now`, keys first seen by this very epoch, otherwise their own times."""
    for segment in added:
        connection.execute(
            insert(segments).values(
                pipeline=catalog.pipeline,
                segment=segment.segment,
                bucket_from=segment.bucket_from,
                bucket_to=segment.bucket_to,
                keys_total=segment.keys,
                first_seen_from=segment.first_seen_from if now is None else now,
                first_seen_to=segment.first_seen_to if now is None else now,
                **file_values("file", segment.file),
            )
        )


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


def list_epochs(catalog: Catalog, *, limit: int | None = None) -> tuple[EpochRow, ...]:
    """Newest first."""
    query = select(epochs).where(epochs.c.pipeline == catalog.pipeline).order_by(epochs.c.epoch.desc())
    with catalog.read() as connection:
        return tuple(_epoch(row) for row in connection.execute(query.limit(limit)).all())


def total_counts(catalog: Catalog, *, kind: EpochKind = EpochKind.KAFKA) -> Counts:
    row = [0] * len(COUNTS)
    with catalog.read() as connection:
        for table in (epochs, epoch_hours):
            query = select(*(func.coalesce(func.sum(table.c[name]), 0) for name in COUNTS)).where(
                table.c.pipeline == catalog.pipeline, table.c.kind == kind
            )
            row = [
                total + int(value) for total, value in zip(row, connection.execute(query).one(), strict=True)
            ]
    return Counts(
        read=row[0],
        new=row[1],
        duplicate=row[2],
        dead_letter=row[3],
        skipped=row[4],
        waiting=row[5],
        conflicts=row[6],
    )


def list_ranges(catalog: Catalog) -> tuple[tuple[int, OffsetRange], ...]:
    """(epoch, range), by topic, partition and offset."""
    query = (
        select(ranges)
        .where(ranges.c.pipeline == catalog.pipeline)
        .order_by(ranges.c.topic, ranges.c.partition_id, ranges.c.start_offset)
    )
    with catalog.read() as connection:
        return tuple(
            (
                row.epoch,
                OffsetRange(
                    topic=row.topic, partition=row.partition_id, start=row.start_offset, end=row.end_offset
                ),
            )
            for row in connection.execute(query).all()
        )


def list_key_files(catalog: Catalog) -> tuple[tuple[int, float, KeyFile], ...]:
    """(epoch, registered at, key file), in the order in which they were settled."""
    query = (
        select(key_files)
        .where(key_files.c.pipeline == catalog.pipeline)
        .order_by(key_files.c.epoch, key_files.c.ordinal)
    )
    with catalog.read() as connection:
        return tuple(
            (
                row.epoch,
                row.registered_at,
                key_file_of(row),
            )
            for row in connection.execute(query).all()
        )


def key_file_of(row: Row[tuple[object, ...]]) -> KeyFile:
    return KeyFile(
        key_file=row.key_file,
        ordinal=row.ordinal,
        events=row.events,
        keys=file_ref(row, "keys", rows=row.events),
        raw=file_ref(row, "raw", rows=row.events),
    )


def list_duplicate_files(catalog: Catalog) -> dict[int, tuple[FileRef, ...]]:
    """By epoch."""
    query = select(duplicate_files).where(duplicate_files.c.pipeline == catalog.pipeline)
    found: dict[int, tuple[FileRef, ...]] = {}
    with catalog.read() as connection:
        for row in connection.execute(query.order_by(duplicate_files.c.file_path)).all():
            found[row.epoch] = (*found.get(row.epoch, ()), file_ref(row, "file", rows=row.rows_total))
    return found


def list_segments(catalog: Catalog) -> tuple[Segment, ...]:
    """The live segments of the key index."""
    query = (
        select(segments)
        .where(segments.c.pipeline == catalog.pipeline, segments.c.replaced_at.is_(None))
        .order_by(segments.c.first_seen_from, segments.c.segment)
    )
    with catalog.read() as connection:
        return tuple(
            Segment(
                segment=row.segment,
                bucket_from=row.bucket_from,
                bucket_to=row.bucket_to,
                keys=row.keys_total,
                first_seen_from=row.first_seen_from,
                first_seen_to=row.first_seen_to,
                file=file_ref(row, "file"),
            )
            for row in connection.execute(query).all()
        )


def replace_segments(
    catalog: Catalog,
    token: int,
    *,
    old: Sequence[str],
    new: Sequence[Segment],
    request: tuple[int, str] | None = None,
) -> None:
    """Put merged segments in the place of others, in one transaction; refused when one has gone already."""

    def run(connection: Connection) -> None:
        for name in old:
            replaced = connection.execute(
                update(segments)
                .where(
                    segments.c.pipeline == catalog.pipeline,
                    segments.c.segment == name,
                    segments.c.replaced_at.is_(None),
                )
                .values(replaced_at=catalog.clock, replaced_after_epoch=last_epoch_in(connection, catalog))
            )
            if replaced.rowcount != 1:
                raise PermanentError(
                    f"Pipeline {catalog.pipeline}: segment {name} is not in the key index any more; "
                    "the merge was given up and nothing changed."
                )
        insert_segments(connection, catalog, new)
        if request is not None:
            finish_request_in(connection, catalog, *request)

    catalog.write(Stage.INGEST, token, run)


def list_dead_letter_files(catalog: Catalog, *, open_only: bool = True) -> tuple[DeadLetterFile, ...]:
    query = select(dead_letter_files).where(dead_letter_files.c.pipeline == catalog.pipeline)
    if open_only:
        query = query.where(dead_letter_files.c.tried_in_epoch.is_(None))
    with catalog.read() as connection:
        return tuple(
            DeadLetterFile(
                dead_letter_file=row.dead_letter_file,
                epoch=row.epoch,
                rows=row.rows_total,
                reasons=json.loads(row.reasons),
                file=file_ref(row, "file"),
                registered_at=row.registered_at,
            )
            for row in connection.execute(
                query.order_by(dead_letter_files.c.epoch, dead_letter_files.c.dead_letter_file)
            ).all()
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


def _epoch(row: Row[tuple[object, ...]]) -> EpochRow:
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


def _result(counts: Counts) -> str:
    return (
        f"read {counts.read}, new {counts.new}, duplicate {counts.duplicate}, "
        f"dead letters {counts.dead_letter}, skipped {counts.skipped}"
    )
