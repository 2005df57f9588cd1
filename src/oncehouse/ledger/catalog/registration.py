"""Registering: the only way an event comes to exist.

One transaction demands that each range starts where the ledger ends, so a second settling of a range is refused
here and nowhere else; it writes counts, ranges, files and segments of an epoch, or nothing at all.
"""

from __future__ import annotations

import json

from sqlalchemy import Connection, func, insert, select, update

from oncehouse.errors import DataLossError, OffsetGapError, PermanentError
from oncehouse.ledger.catalog.database import Catalog, check_identity
from oncehouse.ledger.catalog.query_batches import settle_batch_in
from oncehouse.ledger.catalog.row_mappers import file_values, finish_request_in
from oncehouse.ledger.catalog.schema import (
    batches,
    dead_letter_files,
    duplicate_files,
    epochs,
    key_files,
    parts,
    positions,
    ranges,
)
from oncehouse.ledger.catalog.segments import insert_segments
from oncehouse.ledger.models import BatchStatus, EpochKind, LedgerBatch, OffsetRange, Registration, Stage


def register(catalog: Catalog, token: int, registration: Registration) -> None:
    """Settle an epoch: counts, ranges, parts, keys, duplicates and dead letters, or nothing at all."""
    if not registration.counts.balanced:
        raise PermanentError(
            f"Pipeline {catalog.pipeline}, epoch {registration.epoch}: the counts do not add up "
            f"({registration.counts}). Nothing was registered; this is a defect, please report it."
        )

    def run(connection: Connection) -> None:
        now = catalog.latest_in(connection)
        _require_next_epoch(connection, catalog, registration.epoch)
        if registration.identity is not None and (known := catalog.identity_in(connection)) is not None:
            check_identity(catalog.pipeline, known, registration.identity)
        _insert_epoch(connection, catalog, token, registration, now)
        _require_same_topics(connection, catalog, registration.topic_ids)
        for span in registration.ranges:
            _advance(connection, catalog, span, registration.topic_ids[span.topic], registration.epoch)
        if registration.query is not None:
            settle_batch_in(connection, catalog, registration.query, registration.epoch)
        _insert_files(connection, catalog, registration, now)
        if registration.request is not None:
            finish_request_in(connection, catalog, registration.request, _result(registration))

    catalog.write(Stage.INGEST, token, run)


def _require_next_epoch(connection: Connection, catalog: Catalog, epoch: int) -> None:
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


def _require_same_topics(connection: Connection, catalog: Catalog, topic_ids: dict[str, str]) -> None:
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
                f"Pipeline {catalog.pipeline}: topic {topic} was deleted and created again (its id was "
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
                leader_epoch=span.leader_epoch,
            )
        )


def _insert_files(connection: Connection, catalog: Catalog, registration: Registration, now: float) -> None:
    _require_key_files(connection, catalog, registration)
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
    for dead_letters in registration.dead_letter_files:
        connection.execute(
            insert(dead_letter_files).values(
                **own,
                dead_letter_file=dead_letters.dead_letter_file,
                kind=dead_letters.kind,
                rows_total=dead_letters.rows,
                reasons=json.dumps(dead_letters.reasons),
                registered_at=now,
                **file_values("file", dead_letters.file),
            )
        )
    for name in registration.tried_dead_letter_files:
        _mark_tried(connection, catalog, name, registration.epoch)
    for batch in registration.replaced_batches:
        _replace_batch(connection, catalog, batch)
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


def _replace_batch(connection: Connection, catalog: Catalog, batch: LedgerBatch) -> None:
    # A parked batch may have been retried since, and be on its way, in ClickHouse or parked again.
    replaced = connection.execute(
        update(batches)
        .where(
            batches.c.pipeline == catalog.pipeline,
            batches.c.batch_id == batch.batch_id,
            batches.c.status.in_([BatchStatus.IN_CLICKHOUSE, BatchStatus.PARKED]),
            batches.c.status == batch.status,
            batches.c.attempts == batch.attempts,
        )
        .values(status=BatchStatus.REPLACED)
    )
    if replaced.rowcount != 1:
        raise PermanentError(
            f"Pipeline {catalog.pipeline}: batch {batch.batch_id} has changed while its rows were to be sent "
            "again: it was retried, or replaced. Nothing was registered. Ask once more."
        )


def _require_key_files(connection: Connection, catalog: Catalog, registration: Registration) -> None:
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


def _result(registration: Registration) -> str:
    counts = registration.request_counts + registration.counts
    if registration.kind is EpochKind.REFILL:
        rows = sum(part.live_rows for part in registration.parts)
        return f"{rows} rows in {len(registration.parts)} parts are sent again"
    return (
        f"read {counts.read}, new {counts.new}, duplicate {counts.duplicate}, "
        f"dead letters {counts.dead_letter}, skipped {counts.skipped}"
        + (f", waiting {counts.waiting}" if counts.waiting else "")
    )
