"""The way of a message as people read it: a line or a few for each stage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from oncehouse.cli.output import format_time, say, show_facts
from oncehouse.common.formatting import format_elapsed

if TYPE_CHECKING:
    from oncehouse.messaging.outbox.kafka_search import Scan
    from oncehouse.messaging.outbox.lookup import OutboxRowView
    from oncehouse.monitoring.message_trace import MessageTrace, PipelineTrace
    from oncehouse.monitoring.record_trace import Destination, RecordTrace
    from oncehouse.monitoring.unavailable import NoAnswer


def show_trace(trace: MessageTrace) -> None:
    from oncehouse.monitoring.unavailable import NoAnswer

    say(f"message {trace.message_id}\n")
    pipeline = trace.pipeline
    stages = {
        "outbox": _no_answer(trace.outbox)
        if isinstance(trace.outbox, NoAnswer)
        else _describe_row(trace.outbox),
        "Kafka": _no_answer(trace.kafka)
        if isinstance(trace.kafka, NoAnswer)
        else _describe_scan(trace.kafka),
        "ledger": _no_answer(pipeline)
        if isinstance(pipeline, NoAnswer)
        else (line for found in pipeline for line in _describe_record(found.record)),
        "ClickHouse": iter(())
        if isinstance(pipeline, NoAnswer)
        else (line for found in pipeline for line in _describe_tables(found)),
    }
    show_facts({name: "\n".join(lines) or "nothing to ask for" for name, lines in stages.items()})


def _no_answer(stage: NoAnswer) -> Iterator[str]:
    yield f"cannot be asked: {stage.why}" if stage.failed else stage.why


def _describe_row(row: OutboxRowView) -> Iterator[str]:
    yield f"{row.state}, for topic {row.topic}, bucket {row.bucket}, {row.size_bytes:,} bytes"
    yield f"written {format_time(row.created_at)} ({format_elapsed(row.age_seconds)} ago)"
    if row.sent_at is not None:
        yield f"sent {format_time(row.sent_at)}"
    if row.parked_at is not None:
        behind = f" behind {row.behind}" if row.behind else ""
        yield f"parked {format_time(row.parked_at)}{behind}"
    if row.attempts:
        yield f"{row.attempts:,} attempts failed, the last with: {row.last_error}"


def _describe_scan(scan: Scan) -> Iterator[str]:
    for place in scan.places:
        yield f"{place.topic}/{place.partition}/{place.offset}, {format_time(place.timestamp)}"
    if not scan.scanned and scan.places:
        return
    scanned = f"{scan.scanned:,} messages of {', '.join(scan.topics)} from {format_time(scan.since)} on"
    if scan.stopped is None:
        yield f"looked at all {scanned}" if scan.places else f"not among all {scanned}"
    else:
        yield f"{'looked at' if scan.places else 'not among'} {scanned}; stopped because {scan.stopped}"
    if scan.perhaps_deleted and not scan.places:
        yield "what Kafka has deleted by its retention could not be looked at"


def _describe_record(record: RecordTrace) -> Iterator[str]:
    place = f"{record.topic}/{record.partition}/{record.offset}"
    epoch = "" if record.epoch is None else f" in epoch {record.epoch}, {format_time(record.settled_at)}"
    if not record.rows:
        yield f"{place}: {record.fate}{epoch}"
    for row in record.rows:
        number = f", row {row.row}" if len(record.rows) > 1 else ""
        why = f" ({row.reason})" if row.reason else ""
        unique = f", unique id {row.unique_id}" if row.unique_id else ""
        yield f"{place}{number}: {row.fate}{why}{epoch}{unique}"
        yield from (_describe_destination(destination) for destination in row.destinations)


def _describe_destination(destination: Destination) -> str:
    batch = destination.batch
    if batch is None:
        return f"  {destination.table}: part {destination.part}, waits for a batch"
    when = f", loaded {format_time(batch.loaded_at)}" if batch.loaded_at else ""
    why = f": {batch.reason}" if batch.reason else ""
    return f"  {destination.table}: part {destination.part}, batch {batch.batch_id} {batch.status}{when}{why}"


def _describe_tables(found: PipelineTrace) -> Iterator[str]:
    from oncehouse.monitoring.unavailable import NoAnswer

    for table in found.tables:
        if isinstance(table, NoAnswer):
            yield from _no_answer(table)
            continue
        mine = "" if table.this_event is None else f", {table.this_event:,} of them of this message"
        yield f"{table.table}: {table.rows:,} of the batch's {table.expected_rows:,} rows are there{mine}"
