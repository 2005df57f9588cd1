"""Where a message of an outbox is: its row, its places in Kafka, what the ledger made of it, its rows in ClickHouse.

Each stage is read by itself: a stage that is unavailable is reported, and the stages after it are read as far as
possible. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from oncehouse.clickhouse.batch_rows import count_of_batch
from oncehouse.clickhouse.client import connect
from oncehouse.config.pipeline import Pipeline
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.messaging.outbox.ids import time_of
from oncehouse.messaging.outbox.kafka_search import KafkaPlace, Scan
from oncehouse.messaging.outbox.lookup import OutboxRowView, RowState
from oncehouse.monitoring.record_trace import Destination, RecordTrace, RowTrace, trace_record
from oncehouse.monitoring.unavailable import NoAnswer, ask

# Clocks of writers, brokers and databases differ; a scan begins this much before the message was made.
_MARGIN_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class TableTrace:
    table: str
    batch_id: str
    rows: int
    """How many rows ClickHouse holds of the batch."""
    expected_rows: int
    this_event: int | None
    """How many of them are this message's; None where the table has no column for ids."""


@dataclass(frozen=True, kw_only=True)
class PipelineTrace:
    record: RecordTrace
    tables: tuple[TableTrace | NoAnswer, ...]


@dataclass(frozen=True, kw_only=True)
class MessageTrace:
    message_id: str
    outbox: OutboxRowView | NoAnswer
    kafka: Scan | NoAnswer
    pipeline: tuple[PipelineTrace, ...] | NoAnswer
    """What became of each place in Kafka."""

    @property
    def unreachable(self) -> tuple[str, ...]:
        """Why stages that were asked gave no answer."""
        stages: list[object] = [self.outbox, self.kafka, self.pipeline]
        if isinstance(self.pipeline, tuple):
            stages += [found for trace in self.pipeline for found in trace.tables]
        return tuple(stage.why for stage in stages if isinstance(stage, NoAnswer) and stage.failed)


ABSENT_ROW = NoAnswer(
    why="no such row: it was sent and cleaned up, or its transaction was rolled back",
    failed=False,
)


def find_places(
    row: OutboxRowView | NoAnswer,
    message_id: UUID,
    *,
    topics: Sequence[str],
    since: float | None,
    scan: Callable[[Sequence[str], float], Scan],
) -> Scan | NoAnswer:
    """By what the row says where it says it, else by a scan of its topic, or of these, from a time on."""
    view = None if isinstance(row, NoAnswer) else row
    if view is not None and view.partition is not None and view.offset is not None:
        place = KafkaPlace(
            topic=view.topic, partition=view.partition, offset=view.offset, timestamp=view.sent_at
        )
        return Scan(topics=(view.topic,), since=view.created_at, places=(place,), scanned=0, stopped=None)
    if view is not None and view.state in {RowState.PARKED, RowState.BEHIND}:
        return NoAnswer(why="not looked for: a parked message is in no topic", failed=False)
    searched = (view.topic,) if view is not None else tuple(topics)
    if not searched:
        return NoAnswer(
            why="not looked for: name its topic with --topic, or a --pipeline that reads it", failed=False
        )
    made_at = view.created_at if view is not None else time_of(message_id)
    begin = since if since is not None or made_at is None else made_at - _MARGIN_SECONDS
    if begin is None:
        return NoAnswer(
            why="not looked for: its id has no time in it; say from when on with --since", failed=False
        )
    return ask(lambda: scan(searched, begin))


def trace_places(
    pipeline: Pipeline, catalog: Catalog, places: Sequence[KafkaPlace]
) -> tuple[PipelineTrace, ...]:
    """What the pipeline made of the records at these places. Raises when the ledger cannot be read."""
    store = FileStore(pipeline.ledger.files)
    records = [
        trace_record(catalog, store, topic=place.topic, partition=place.partition, offset=place.offset)
        for place in places
    ]
    return tuple(
        PipelineTrace(
            record=record,
            tables=tuple(
                _ask_table(pipeline, row, destination)
                for row in record.rows
                for destination in row.destinations
            ),
        )
        for record in records
    )


def _ask_table(pipeline: Pipeline, row: RowTrace, destination: Destination) -> TableTrace | NoAnswer:
    batch = destination.batch
    table = next((found for found in pipeline.tables if found.name == destination.table), None)
    if batch is None or table is None:
        why = "waits in the ledger for its batch" if batch is None else "the pipeline file has it no longer"
        return NoAnswer(why=f"{destination.table}: {why}", failed=False)

    def count() -> TableTrace:
        rows, mine = count_of_batch(
            connect(pipeline.clickhouse),
            table.name,
            table.batch_column,
            batch.batch_id,
            id_column=table.id_column,
            unique_id=row.unique_id,
        )
        return TableTrace(
            table=table.name, batch_id=batch.batch_id, rows=rows, expected_rows=batch.rows, this_event=mine
        )

    return ask(count)
