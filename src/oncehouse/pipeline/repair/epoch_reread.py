"""An epoch read from Kafka once more, by the read task itself, into a folder that is removed again.

The same code decides as at the first time: what becomes an event, what a dead letter, what waits. Schemas that the
epoch's records were waiting for are left out, so that they wait again. Raw bytes come back in the order of the epoch's
key files; what does not add up to what the ledger counted is refused.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from oncehouse.errors import PermanentError
from oncehouse.ledger.models import LetterKind
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.formats.factory import needs_headers
from oncehouse.pipeline.ingest.kafka_source import group_of
from oncehouse.pipeline.ingest.part_files import LETTER_SCHEMA, RAW_SCHEMA, read_rows
from oncehouse.pipeline.ingest.read_plan import read_plan
from oncehouse.pipeline.ingest.read_task import read_records
from oncehouse.pipeline.repair.kafka_reread import read_again
from oncehouse.pipeline.schema.evolution import current
from oncehouse.pipeline.transform.plan_builder import plan_shape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oncehouse.config.pipeline import Kafka, Pipeline
    from oncehouse.ledger.catalog.database import Catalog
    from oncehouse.ledger.models import DeadLetterFile, OffsetRange
    from oncehouse.ledger.stats.ledger_state import LedgerState
    from oncehouse.pipeline.ingest.manifest import ReadPlan, TaskManifest

# An epoch fits into memory, and nothing that is read here becomes a part.
_NO_CAP = 1 << 62


@dataclass(frozen=True, kw_only=True)
class EpochAgain:
    raw: pa.Table
    """All events in the order of the epoch's key files."""
    letters: Mapping[LetterKind, pa.Table]


@contextmanager
def _plan(pipeline: Pipeline, catalog: Catalog, epoch: int, waited: set[str]) -> Iterator[ReadPlan]:
    now = current(pipeline, catalog)
    plan = read_plan(pipeline, catalog, epoch=epoch, token=0, whole=False)
    with tempfile.TemporaryDirectory(prefix="oncehouse-repair-") as folder:
        yield replace(
            plan,
            files_root=folder,
            shape=plan_shape(now, token=0, files_root=folder),
            part_rows=_NO_CAP,
            part_bytes=_NO_CAP,
            schemas=tuple(schema for schema in plan.schemas if schema.schema not in waited),
        )


def read_epoch(
    pipeline: Pipeline, catalog: Catalog, kafka: Kafka, state: LedgerState, epoch: int
) -> EpochAgain:
    """Raises PermanentError where Kafka no longer gives what the ledger counted."""
    ranges = tuple(span for number, span in state.ranges if number == epoch)
    waited = {
        schema
        for letters in state.dead_letter_files
        if letters.epoch == epoch and letters.kind is LetterKind.WAITING
        for schema in letters.reasons
    }
    with _plan(pipeline, catalog, epoch, waited) as plan:
        blocks = read_again(kafka, ranges, group=group_of(pipeline.pipeline), headers=needs_headers(pipeline))
        again = _gather(FileStore(plan.files_root), read_records(plan, "again", blocks))
    _demand_counts(state, epoch, again, ranges)
    return again


def _gather(store: FileStore, manifest: TaskManifest) -> EpochAgain:
    chunks = sorted(manifest.chunks, key=lambda chunk: chunk.first)
    raw = [read_rows(store, chunk.raw).cast(RAW_SCHEMA) for chunk in chunks]
    letters: dict[LetterKind, list[pa.Table]] = {}
    for found in manifest.letters:
        letters.setdefault(found.kind, []).append(read_rows(store, found.file).cast(LETTER_SCHEMA))
    return EpochAgain(
        raw=_detach(pa.concat_tables(raw) if raw else RAW_SCHEMA.empty_table()),
        letters={kind: _detach(pa.concat_tables(tables)) for kind, tables in letters.items()},
    )


def _detach(table: pa.Table) -> pa.Table:
    """In memory of its own: the files it was read from are about to go."""
    return table.unify_dictionaries().combine_chunks()


def _demand_counts(state: LedgerState, epoch: int, again: EpochAgain, ranges: Sequence[OffsetRange]) -> None:
    counts = next(row.counts for row in state.epochs if row.epoch == epoch)
    kept = sum(found.key_file.events for found in state.key_files if found.epoch == epoch)
    found = {
        "events": (again.raw.num_rows, counts.new + counts.duplicate),
        "dead letters": (_rows(again, LetterKind.DEAD), counts.dead_letter),
        "waiting records": (_rows(again, LetterKind.WAITING), counts.waiting),
    }
    wrong = [f"{is_} {what} instead of {was}" for what, (is_, was) in found.items() if is_ != was]
    if kept != counts.new + counts.duplicate:
        wrong.append(f"key files of {kept} events, the others having left the window")
    if wrong:
        where = ", ".join(f"{s.topic}/{s.partition} offsets {s.start} to {s.end - 1}" for s in ranges)
        raise PermanentError(
            f"epoch {epoch} ({where}) read again has {', '.join(wrong)}: Kafka has deleted or compacted records away, "
            "or the pipeline file reads them otherwise now. Nothing was changed."
        )


def _rows(again: EpochAgain, kind: LetterKind) -> int:
    return again.letters[kind].num_rows if kind in again.letters else 0


def letters_of(
    again: EpochAgain, damaged: Sequence[DeadLetterFile], known: Sequence[pa.Table]
) -> tuple[pa.Table, ...]:
    """The letters of each damaged file of one kind: those that no sound file (`known`) has, in their order."""
    table = again.letters.get(damaged[0].kind, LETTER_SCHEMA.empty_table())
    held = {place for letters in known for place in _places(letters)}
    left = table.filter(pa.array([place not in held for place in _places(table)], pa.bool_()))
    pieces, start = [], 0
    for file in damaged:
        piece = left.slice(start, file.rows)
        start += file.rows
        counted = Counter(piece.column("schema" if file.kind is LetterKind.WAITING else "reason").to_pylist())
        if dict(counted) != file.reasons:
            raise PermanentError(
                f"the {file.kind} letters {file.dead_letter_file} read again are {dict(counted)}, the ledger has "
                f"{file.reasons}: which letter stood in which file cannot be told. Nothing was changed."
            )
        pieces.append(piece)
    return tuple(pieces)


def _places(letters: pa.Table) -> list[tuple[object, ...]]:
    columns = (letters.column(name).to_pylist() for name in ("topic", "partition", "offset", "row"))
    return list(zip(*columns, strict=True))
