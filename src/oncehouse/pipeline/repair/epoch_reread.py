"""Reads an epoch from Kafka once more, with the read task itself, into a folder that is removed reread.

The same code decides as the first time: what becomes an event, what a dead letter, what waits. Schemas that the
epoch's records were waiting for are left out, so that they wait reread. Raw bytes come back in the order of the epoch's
key files; an epoch whose counts differ from the ledger's is refused.

Kafka is read without Spark, by exactly the offsets that the epoch settled: a consumer that commits nothing and joins no
group is assigned one partition at a time, so records come in Kafka's order. Gaps among offsets are as they were:
aborted transactions. Records that retention or compaction has removed show in the counts; other records at the same
offsets are refused by leader epochs.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from oncehouse.common.kafka_client import describe_error
from oncehouse.common.leader_epochs import ask_epoch_ends
from oncehouse.common.process_folder import process_folder
from oncehouse.errors import PermanentError, TransientError
from oncehouse.ledger.models import DeadLetterKind
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.checks.record_sample import as_block
from oncehouse.pipeline.convert.rejection import Reason
from oncehouse.pipeline.formats.factory import needs_headers
from oncehouse.pipeline.ingest.kafka_source import client_settings, group_of
from oncehouse.pipeline.ingest.part_files import DEAD_LETTER_SCHEMA, RAW_SCHEMA, read_rows
from oncehouse.pipeline.ingest.read_plan import read_plan
from oncehouse.pipeline.ingest.read_task import read_records
from oncehouse.pipeline.schema.evolution import current
from oncehouse.pipeline.transform.plan_builder import plan_transform

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oncehouse.config.pipeline import Kafka, Pipeline
    from oncehouse.ledger.catalog.database import Catalog
    from oncehouse.ledger.models import DeadLetterFile, OffsetRange
    from oncehouse.ledger.stats.ledger_state import LedgerState
    from oncehouse.pipeline.ingest.manifest import ReadPlan, TaskManifest

# An epoch fits into memory, and nothing that is read here becomes a part.
_NO_CAP = 1 << 62
_MESSAGES_A_POLL = 10_000
_POLL_SECONDS = 0.2
_PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class RereadEpoch:
    raw: pa.Table
    """All events in the order of the epoch's key files."""
    dead_letters: Mapping[DeadLetterKind, pa.Table]


@contextmanager
def _plan(pipeline: Pipeline, catalog: Catalog, epoch: int, waited: set[str]) -> Iterator[ReadPlan]:
    now = current(pipeline, catalog)
    plan = read_plan(pipeline, catalog, epoch=epoch, token=0, whole=False)
    with tempfile.TemporaryDirectory(prefix="repair-", dir=process_folder()) as folder:
        yield replace(
            plan,
            files_root=folder,
            transform=plan_transform(now, token=0, files_root=folder),
            part_rows=_NO_CAP,
            part_bytes=_NO_CAP,
            schemas=tuple(schema for schema in plan.schemas if schema.schema not in waited),
        )


def read_epoch(
    pipeline: Pipeline, catalog: Catalog, kafka: Kafka, state: LedgerState, epoch: int
) -> RereadEpoch:
    """Raises PermanentError where Kafka no longer gives what the ledger counted."""
    ranges = tuple(span for number, span in state.ranges if number == epoch)
    waited = {
        schema
        for dead_letters in state.dead_letter_files
        if dead_letters.epoch == epoch and dead_letters.kind is DeadLetterKind.WAITING
        for schema in dead_letters.reasons
    }
    with _plan(pipeline, catalog, epoch, waited) as plan:
        blocks = reread_offsets(
            kafka, ranges, group=group_of(pipeline.pipeline), headers=needs_headers(pipeline)
        )
        reread = _gather(FileStore(plan.files_root), read_records(plan, "reread", blocks))
    _require_counts(state, epoch, reread, ranges)
    return reread


def _gather(store: FileStore, manifest: TaskManifest) -> RereadEpoch:
    chunks = sorted(manifest.chunks, key=lambda chunk: chunk.first)
    raw = [read_rows(store, chunk.raw).cast(RAW_SCHEMA) for chunk in chunks]
    dead_letters: dict[DeadLetterKind, list[pa.Table]] = {}
    for found in manifest.letters:
        dead_letters.setdefault(found.kind, []).append(read_rows(store, found.file).cast(DEAD_LETTER_SCHEMA))
    return RereadEpoch(
        raw=_detach(pa.concat_tables(raw) if raw else RAW_SCHEMA.empty_table()),
        dead_letters={kind: _detach(pa.concat_tables(tables)) for kind, tables in dead_letters.items()},
    )


def _detach(table: pa.Table) -> pa.Table:
    """In memory of its own: the files it was read from are about to go."""
    return table.unify_dictionaries().combine_chunks()


def _require_counts(
    state: LedgerState, epoch: int, reread: RereadEpoch, ranges: Sequence[OffsetRange]
) -> None:
    counts = next(row.counts for row in state.epochs if row.epoch == epoch)
    kept = sum(found.key_file.events for found in state.key_files if found.epoch == epoch)
    dead, waiting = (_rows(reread, kind) for kind in (DeadLetterKind.DEAD, DeadLetterKind.WAITING))
    found = {"events": (reread.raw.num_rows, counts.new + counts.duplicate)}
    if _is_limited(state, epoch):
        found["dead letters and waiting records"] = (dead + waiting, counts.dead_letter + counts.waiting)
    else:
        found |= {
            "dead letters": (dead, counts.dead_letter),
            "waiting records": (waiting, counts.waiting),
        }
    wrong = [f"{is_} {what} instead of {was}" for what, (is_, was) in found.items() if is_ != was]
    if kept != counts.new + counts.duplicate:
        wrong.append(f"key files of {kept} events, the others having left the window")
    if wrong:
        where = ", ".join(f"{s.topic}/{s.partition} offsets {s.start} to {s.end - 1}" for s in ranges)
        raise PermanentError(
            f"epoch {epoch} ({where}) read reread has {', '.join(wrong)}: Kafka has deleted or compacted records away, "
            "or the pipeline file reads them otherwise now. Nothing was changed."
        )


def _is_limited(state: LedgerState, epoch: int) -> bool:
    """Whether records named so many unknown schemas that some became dead letters: which ones goes by the files."""
    return any(
        Reason.SCHEMA_UNKNOWN in file.reasons for file in state.dead_letter_files if file.epoch == epoch
    )


def _rows(reread: RereadEpoch, kind: DeadLetterKind) -> int:
    return reread.dead_letters[kind].num_rows if kind in reread.dead_letters else 0


def split_dead_letters(
    reread: RereadEpoch, damaged: Sequence[DeadLetterFile], known: Sequence[pa.Table]
) -> tuple[pa.Table, ...]:
    """The dead letters of each damaged file of one kind: those that no sound file (`known`) has, in their order."""
    table = reread.dead_letters.get(damaged[0].kind, DEAD_LETTER_SCHEMA.empty_table())
    held = {place for dead_letters in known for place in _places(dead_letters)}
    left = table.filter(pa.array([place not in held for place in _places(table)], pa.bool_()))
    pieces, start = [], 0
    for file in damaged:
        piece = left.slice(start, file.rows)
        start += file.rows
        counted = Counter(
            piece.column("schema" if file.kind is DeadLetterKind.WAITING else "reason").to_pylist()
        )
        if dict(counted) != file.reasons:
            raise PermanentError(
                f"the {file.kind} letters {file.dead_letter_file} read reread are {dict(counted)}, the ledger has "
                f"{file.reasons}: which dead letter was in which file is unknown. Nothing was changed."
            )
        pieces.append(piece)
    return tuple(pieces)


def _places(dead_letters: pa.Table) -> list[tuple[object, ...]]:
    columns = (dead_letters.column(name).to_pylist() for name in ("topic", "partition", "offset", "row"))
    return list(zip(*columns, strict=True))


def reread_offsets(
    kafka: Kafka, ranges: Sequence[OffsetRange], *, group: str, headers: bool
) -> Iterator[pa.RecordBatch]:
    """Blocks as a read task gets them, in the order of topic, partition and offset.

    `group` is a consumer group that the user may read; the client needs a name, but does not join it.

    Raises PermanentError where the log was cut since and holds other records at these offsets.
    """
    _require_same_log(kafka, ranges, group)
    consumer = Consumer(
        {
            **client_settings(kafka),
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            # Offsets that are gone must not be taken for an order to begin somewhere else.
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
        }
    )
    try:
        for span in sorted(ranges):
            for messages in _read_span(consumer, span):
                block = as_block(kafka, messages)
                yield block if headers else block.drop_columns(["headers"])
    except KafkaException as error:
        raise _away(kafka, error) from error
    finally:
        consumer.close()


def _require_same_log(kafka: Kafka, ranges: Sequence[OffsetRange], group: str) -> None:
    spans = {(span.topic, span.partition): span for span in ranges if span.leader_epoch is not None}
    leader_epochs = {
        place: span.leader_epoch for place, span in spans.items() if span.leader_epoch is not None
    }
    try:
        answers = ask_epoch_ends(
            client_settings(kafka), leader_epochs, group=group, timeout_seconds=_PATIENCE_SECONDS
        )
    except KafkaException as error:
        raise _away(kafka, error) from error
    for place, answer in answers.items():
        span = spans[place]
        if not answer.holds(span.leader_epoch, span.end):
            raise PermanentError(
                f"Topic {span.topic} partition {span.partition}: Kafka's log was cut since offsets {span.start} to "
                f"{span.end - 1} were read (leader epoch {span.leader_epoch}), and holds other records at some of "
                "them. They cannot be read reread; nothing was changed."
            )


def _away(kafka: Kafka, error: KafkaException) -> TransientError:
    return TransientError(
        f"Kafka at {kafka.bootstrap_servers} does not give the records reread ({describe_error(error)}). Check that "
        "the broker is up; nothing was changed."
    )


def _read_span(consumer: Consumer, span: OffsetRange) -> Iterator[list[Message]]:
    consumer.assign([TopicPartition(span.topic, span.partition, span.start)])
    received_at = time.monotonic()
    while True:
        found = consumer.consume(_MESSAGES_A_POLL, timeout=_POLL_SECONDS)
        kept, ended = _sort_out(found, span)
        if kept:
            yield kept
        if ended:
            return
        if found:
            received_at = time.monotonic()
        elif time.monotonic() - received_at > _PATIENCE_SECONDS:
            raise TransientError(
                f"Kafka gave nothing more of topic {span.topic} partition {span.partition} up to offset {span.end} for "
                f"{_PATIENCE_SECONDS:.0f} s. Check that the broker is up; nothing was changed."
            )


def _sort_out(found: Sequence[Message], span: OffsetRange) -> tuple[list[Message], bool]:
    """The records of the range, and whether its end was seen: by a record behind it, or by the end of the log."""
    kept, ended = [], False
    for message in found:
        if (error := message.error()) is not None:
            if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - how the client names it
                raise KafkaException(error)
            ended = True
        elif int(message.offset() or 0) >= span.end:
            ended = True
        else:
            kept.append(message)
            ended = ended or int(message.offset() or 0) == span.end - 1
    return kept, ended
