"""Dead letters tried again: an epoch over a fixed list of letters instead of Kafka's offsets.

Files of letters never change. A replay takes whole files: what was asked for is decoded again, the rest is
carried over, and what fails once more is written down anew. The files it took are marked as tried, so each
letter stands in exactly one open file. Position and bytes stay the original ones, so an event that has arrived
in the meantime is a duplicate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.ledger.files import FileStore
from oncehouse.ledger.records import FileRef, LetterKind
from oncehouse.pipeline.manifest import ReadPlan, TaskManifest
from oncehouse.pipeline.parts import LETTER_SCHEMA, PARTITIONS, read_rows
from oncehouse.pipeline.reading import ReadTask


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which letters to try again: all, those of a reason, of schemas, or single positions."""

    reason: str | None = None
    schemas: tuple[str, ...] = ()
    positions: tuple[tuple[str, int, int], ...] = ()

    def to_arguments(self) -> dict[str, object]:
        return {"reason": self.reason, "positions": [list(position) for position in self.positions]}

    @staticmethod
    def from_arguments(arguments: dict[str, object]) -> Selection:
        reason, positions = arguments.get("reason"), arguments.get("positions") or []
        if not isinstance(positions, list):
            positions = []
        return Selection(
            reason=None if reason is None else str(reason),
            positions=tuple(
                (str(topic), int(partition), int(offset)) for topic, partition, offset in positions
            ),
        )

    def chosen(self, letters: pa.Table) -> pa.ChunkedArray:
        """For each letter whether it is asked for."""
        wanted = pa.chunked_array([np.ones(letters.num_rows, dtype=np.bool_)])
        if self.reason is not None:
            wanted = pc.equal(letters.column("reason"), self.reason)
        if self.schemas:
            known = pc.is_in(letters.column("schema"), value_set=pa.array(self.schemas))
            wanted = pc.and_(wanted, known)
        if self.positions:
            asked = [f"{topic}/{partition}/{offset}" for topic, partition, offset in self.positions]
            places = pc.binary_join_element_wise(
                letters.column("topic").cast(pa.string()),
                letters.column("partition").cast(pa.string()),
                letters.column("offset").cast(pa.string()),
                "/",
            )
            wanted = pc.and_(wanted, pc.is_in(places, value_set=pa.array(asked)))
        return wanted


@dataclass(frozen=True, kw_only=True)
class ReplayPlan:
    read: ReadPlan
    attempt: str
    files: tuple[FileRef, ...]
    selection: Selection
    kind: LetterKind = LetterKind.DEAD


def read_letters(store: FileStore, files: Sequence[FileRef]) -> pa.Table:
    tables = [read_rows(store, file).cast(LETTER_SCHEMA) for file in files]
    return pa.concat_tables(tables).unify_dictionaries() if tables else LETTER_SCHEMA.empty_table()


def replay(plan: ReplayPlan) -> TaskManifest:
    """The work of one replay task."""
    letters = read_letters(FileStore(plan.read.files_root), plan.files)
    # Letters of a topic that the pipeline no longer reads stay letters.
    known = pc.is_in(letters.column("topic").cast(pa.string()), value_set=pa.array(plan.read.topics))
    wanted = pc.and_(plan.selection.chosen(letters), known)
    task = ReadTask(plan.read, plan.attempt, ordered=True)
    for block in _as_records(plan.read, letters.filter(wanted)).to_batches(max_chunksize=50_000):
        task.add(block)
    task.carry(letters.filter(pc.invert(wanted)), plan.kind)
    return task.finish()


def _as_records(plan: ReadPlan, letters: pa.Table) -> pa.Table:
    """Letters in the shape in which records come from Kafka, in Kafka's order."""
    ordinals = pc.index_in(letters.column("topic").cast(pa.string()), value_set=pa.array(plan.topics))
    source = pc.add(pc.multiply(ordinals, PARTITIONS), letters.column("partition")).cast(pa.int32())
    names = ("offset", "row", "timestamp", "key", "value", "headers", "schema")
    records = pa.table([source, *(letters.column(name) for name in names)], names=["source", *names])
    return records.sort_by([(name, "ascending") for name in ("source", "offset", "row")]).combine_chunks()
