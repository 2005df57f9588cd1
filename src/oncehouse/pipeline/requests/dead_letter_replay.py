"""Replays dead letters: an epoch over a fixed list of dead letters instead of Kafka's offsets.

Files of dead letters never change. A replay takes whole files: the selected dead letters are decoded again, the rest
is carried over, and what fails once more is written to new files. The files it took are marked as tried, so each dead
letter is in exactly one open file. The position stays the original one, and so do the bytes unless they were edited,
so an event that has arrived in the meantime is a duplicate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.ledger.models import DeadLetterFile, DeadLetterKind, FileRef
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.dead_letters.edits import apply_edits
from oncehouse.pipeline.dead_letters.filter import Selection
from oncehouse.pipeline.ingest.epoch_sizing import FIRST_RECORDS
from oncehouse.pipeline.ingest.manifest import ReadPlan, TaskManifest
from oncehouse.pipeline.ingest.part_files import DEAD_LETTER_SCHEMA, PARTITIONS, read_rows
from oncehouse.pipeline.ingest.read_task import ReadTask


@dataclass(frozen=True, kw_only=True)
class ReplayPlan:
    read: ReadPlan
    attempt: str
    files: tuple[FileRef, ...]
    selection: Selection
    kind: DeadLetterKind = DeadLetterKind.DEAD
    edits: tuple[FileRef, ...] = ()
    """Files of EDIT_SCHEMA: the letters they name are decoded from their edited values, and no others."""
    expired: bool = False
    """Records that have waited for their schema too long: those that would wait on become dead letters."""


def group_files(
    files: Sequence[DeadLetterFile], *, rows: int, size_bytes: int
) -> Iterator[tuple[FileRef, ...]]:
    """The files in groups that one task can hold; a file that is larger by itself is a group of its own."""
    group: list[FileRef] = []
    group_rows = group_bytes = 0
    for found in files:
        if group and (group_rows + found.rows > rows or group_bytes + found.file.size_bytes > size_bytes):
            yield tuple(group)
            group, group_rows, group_bytes = [], 0, 0
        group.append(found.file)
        group_rows, group_bytes = group_rows + found.rows, group_bytes + found.file.size_bytes
    if group:
        yield tuple(group)


def split_for_epochs(
    files: Sequence[DeadLetterFile], *, most_rows: int
) -> Iterator[Sequence[DeadLetterFile]]:
    """The files of one epoch after the other: a small one first, then larger ones, as when Kafka is read.

    What an epoch has settled stays, so that a process that never lives long gets on. A file that is larger by itself is
    an epoch of its own.
    """
    begin = total = 0
    rows = FIRST_RECORDS
    for end, found in enumerate(files):
        if end > begin and total + found.rows > min(rows, most_rows):
            yield files[begin:end]
            begin, total, rows = end, 0, rows * 2
        total += found.rows
    if files:
        yield files[begin:]


def read_dead_letters(store: FileStore, files: Sequence[FileRef]) -> pa.Table:
    tables = [read_rows(store, file, DEAD_LETTER_SCHEMA.names).cast(DEAD_LETTER_SCHEMA) for file in files]
    return pa.concat_tables(tables).unify_dictionaries() if tables else DEAD_LETTER_SCHEMA.empty_table()


def replay(plan: ReplayPlan) -> TaskManifest:
    """The work of one replay task."""
    store = FileStore(plan.read.files_root)
    dead_letters = read_dead_letters(store, plan.files)
    if plan.edits:
        dead_letters, meant = apply_edits(dead_letters, [read_rows(store, file) for file in plan.edits])
    else:
        meant = plan.selection.chosen(dead_letters)
    topics = dead_letters.column("topic").cast(pa.string())
    read = _with_topics(plan.read, topics) if plan.kind is DeadLetterKind.WAITING else plan.read
    # Dead letters of a topic that the pipeline no longer reads stay letters.
    wanted = pc.and_(meant, pc.is_in(topics, value_set=pa.array(read.topics)))
    task = ReadTask(read, plan.attempt, ordered=True, may_wait=not plan.expired)
    for block in _as_records(read, dead_letters.filter(wanted)).to_batches(max_chunksize=50_000):
        task.add(block)
    task.carry(dead_letters.filter(pc.invert(wanted)), plan.kind)
    return task.finish()


def _with_topics(plan: ReadPlan, topics: pa.ChunkedArray) -> ReadPlan:
    """What waits was good when it came, also where the pipeline has stopped reading its topic since."""
    more = set(pc.unique(topics).to_pylist()) - set(plan.topics)
    return replace(plan, topics=(*plan.topics, *sorted(more)))


def _as_records(plan: ReadPlan, dead_letters: pa.Table) -> pa.Table:
    """Letters in the shape in which records come from Kafka, in Kafka's order."""
    ordinals = pc.index_in(dead_letters.column("topic").cast(pa.string()), value_set=pa.array(plan.topics))
    source = pc.add(pc.multiply(ordinals, PARTITIONS), dead_letters.column("partition")).cast(pa.int32())
    names = ("offset", "row", "timestamp", "key", "value", "headers", "schema")
    records = pa.table([source, *(dead_letters.column(name) for name in names)], names=["source", *names])
    return records.sort_by([(name, "ascending") for name in ("source", "offset", "row")]).combine_chunks()
