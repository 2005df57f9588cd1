"""Edited dead letters: matched with the dead letters of the ledger, and kept with the originals.

Nothing is decoded here: an edit is a file of the ledger and a request, which the holder of the ingest lease
performs. The original bytes stay in the same file, for as long as the window is.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.errors import ConfigurationError
from oncehouse.ledger.models import DeadLetterFile, DeadLetterKind
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.dead_letters.filter import Selection, Span
from oncehouse.pipeline.dead_letters.jsonl import DeadLetterPosition, Edit, position_of
from oncehouse.pipeline.dead_letters.reader import find_dead_letters
from oncehouse.pipeline.ingest.part_files import DEAD_LETTER_SCHEMA, write_dead_letters

EDIT_SCHEMA = pa.schema([*DEAD_LETTER_SCHEMA, ("edited", pa.binary())])
"""A dead letter as it was, and the edited value."""

_POSITION = ("topic", "partition", "offset", "row")
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Matched:
    edits: tuple[DeadLetterFile, ...]
    """Files of edited letters, written and not yet named by the catalog; one a file of letters."""
    edited: int
    unchanged: int


def match_edits(
    store: FileStore, pipeline: str, files: Sequence[DeadLetterFile], edits: Iterable[Edit], *, now: float
) -> Matched:
    """Write down what was edited; raises ConfigurationError for an edit of what is no dead letter."""
    wanted = {edit.position: edit.value for edit in edits}
    written: list[DeadLetterFile] = []
    seen: set[DeadLetterPosition] = set()
    group = uuid.uuid4().hex
    for file in files:
        if len(seen) == len(wanted):
            break
        if tables := list(_find_edited(store, file, wanted, seen)):
            # By the time a sweep tells a file that was never registered from one that is about to be.
            path = f"{pipeline}/edits/{int(now)}-{group}-{len(written)}.parquet"
            written.append(_write(store, path, f"{group}-{len(written)}", file, pa.concat_tables(tables)))
    if missing := sorted(set(wanted) - seen):
        for found in written:
            store.delete(found.file.path)
        shown = ", ".join(str(position) for position in missing[:_SHOWN])
        raise ConfigurationError(
            f"{len(missing)} edited letters are no dead letters (any more): {shown}. Nothing was changed; take "
            "them out and try again."
        )
    edited = sum(found.rows for found in written)
    return Matched(edits=tuple(written), edited=edited, unchanged=len(seen) - edited)


def _find_edited(
    store: FileStore,
    file: DeadLetterFile,
    wanted: Mapping[DeadLetterPosition, bytes | None],
    seen: set[DeadLetterPosition],
) -> Iterator[pa.Table]:
    for found in find_dead_letters(store, file.file, _selection(wanted)):
        dead_letters = found.dead_letters
        places = [
            position_of(row)
            for row in dead_letters.select(["topic", "partition", "offset", "row"]).to_pylist()
        ]
        values = dead_letters.column("value").to_pylist()
        seen.update(place for place in places if place in wanted)
        changed = [at for at, place in enumerate(places) if place in wanted and wanted[place] != values[at]]
        if changed:
            new = pa.array([wanted[places[at]] for at in changed], pa.binary())
            yield dead_letters.take(pa.array(changed)).append_column("edited", new).cast(EDIT_SCHEMA)


def _selection(wanted: Mapping[DeadLetterPosition, bytes | None]) -> Selection:
    """One span a partition, from the first edited letter to the last: few enough to compare with statistics."""
    spans: dict[tuple[str, int], tuple[int, int]] = {}
    for place in wanted:
        first, last = spans.get((place.topic, place.partition), (place.offset, place.offset))
        spans[place.topic, place.partition] = (min(first, place.offset), max(last, place.offset))
    return Selection(
        positions=tuple(
            Span(topic=topic, partition=partition, first=first, last=last)
            for (topic, partition), (first, last) in spans.items()
        )
    )


def _write(
    store: FileStore, path: str, name: str, dead_letters: DeadLetterFile, table: pa.Table
) -> DeadLetterFile:
    file = store.put(path, lambda target: write_dead_letters(target, table.unify_dictionaries()))
    return DeadLetterFile(
        dead_letter_file=name,
        kind=DeadLetterKind.EDIT,
        epoch=0,
        rows=table.num_rows,
        reasons={dead_letters.dead_letter_file: table.num_rows},
        file=file,
    )


def apply_edits(dead_letters: pa.Table, edits: Sequence[pa.Table]) -> tuple[pa.Table, pa.ChunkedArray]:
    """The letters with edited values in place of their own, and for each whether it was edited."""
    edited = pa.concat_tables(edits).combine_chunks()
    # The last edit of a dead letter counts.
    newest = edited.take(pa.array(np.arange(edited.num_rows)[::-1]))
    found = pc.index_in(format_positions(dead_letters), value_set=format_positions(newest).combine_chunks())
    meant = pc.is_valid(found)
    values = pc.if_else(meant, newest.column("edited").take(found), dead_letters.column("value"))
    at = dead_letters.column_names.index("value")
    return dead_letters.set_column(at, DEAD_LETTER_SCHEMA.field("value"), values), meant


def format_positions(dead_letters: pa.Table) -> pa.ChunkedArray:
    """topic/partition/offset/row, one text a letter."""
    return pc.binary_join_element_wise(
        *(dead_letters.column(name).cast(pa.string()) for name in _POSITION), "/"
    )
