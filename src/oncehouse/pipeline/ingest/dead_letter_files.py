"""Files of letters: written in rolling files of bounded size, and read again without reading more than is meant.

Used by the read task, which writes them, and by whoever lists, exports or edits letters. A file never changes;
whether it exists is the catalog's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from oncehouse.errors import CorruptFileError
from oncehouse.ledger.models import FileRef, LetterKind
from oncehouse.ledger.storage.file_store import REPAIR_ADVICE, FileStore
from oncehouse.pipeline.dead_letters.filter import FILTER_COLUMNS, Selection
from oncehouse.pipeline.ingest.manifest import LettersManifest, ReadPlan
from oncehouse.pipeline.ingest.part_files import LETTER_SCHEMA, epoch_path, write_letters

_SAMPLE = ("topic", "partition", "offset", "reason", "detail")


class LetterWriter:
    """Gathers letters of one kind, and writes them down whenever they fill a file."""

    def __init__(self, plan: ReadPlan, store: FileStore, attempt: str, kind: LetterKind) -> None:
        self._plan = plan
        self._store = store
        self._attempt = attempt
        self._kind = kind
        self._tables: list[pa.Table] = []
        self._reasons: Counter[str] = Counter()
        self._rows = 0
        self._bytes = 0
        self._written: list[LettersManifest] = []

    def add(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> None:
        table = pa.Table.from_arrays(list(columns), schema=LETTER_SCHEMA)
        self._tables.append(table)
        # What waits is counted by the schema it waits for.
        counted = pc.value_counts(table.column("schema" if self._kind is LetterKind.WAITING else "reason"))
        self._reasons.update(dict(zip(*(part.to_pylist() for part in counted.flatten()), strict=True)))
        self._rows += table.num_rows
        self._bytes += table.nbytes
        if self._rows >= self._plan.part_rows or self._bytes >= self._plan.part_bytes:
            self._end_file()

    def finish(self) -> tuple[LettersManifest, ...]:
        self._end_file()
        return tuple(self._written)

    def _end_file(self) -> None:
        if not self._rows:
            return
        table = pa.concat_tables(self._tables).unify_dictionaries()
        name = f"{self._attempt}-{len(self._written)}.{self._kind}.letters.parquet"
        path = epoch_path(self._plan.pipeline, self._plan.epoch, self._plan.token, name)
        file = self._store.put(path, lambda target: write_letters(target, table))
        first = table.slice(0, 1).select(list(_SAMPLE)).to_pylist()[0]
        self._written.append(
            LettersManifest(
                kind=self._kind,
                rows=table.num_rows,
                reasons=dict(self._reasons),
                sample="{topic}/{partition}/{offset}: {reason}: {detail}".format(**first),
                file=file,
            )
        )
        self._tables, self._reasons, self._rows, self._bytes = [], Counter(), 0, 0


@dataclass(frozen=True, kw_only=True)
class Found:
    """Letters of one row group, with their row numbers in the file."""

    rows: np.ndarray[tuple[int], np.dtype[np.int64]]
    letters: pa.Table


def find_letters(
    store: FileStore,
    file: FileRef,
    selection: Selection,
    *,
    newest_first: bool = False,
    before: int | None = None,
) -> Iterator[Found]:
    """Letters that are meant, a row group at a time; values are read only where there are any.

    `before` leaves out the letter of that row number and all behind it.
    """
    try:
        with pq.ParquetFile(store.local(file), memory_map=True, page_checksum_verification=True) as opened:
            metadata = opened.metadata
            starts = np.cumsum([0, *(metadata.row_group(n).num_rows for n in range(metadata.num_row_groups))])
            groups = selection.find_groups(metadata)
            for group in reversed(groups) if newest_first else groups:
                start = int(starts[group])
                if before is not None and start >= before:
                    continue
                chosen = _choose(opened, group, selection, None if before is None else before - start)
                if len(chosen):
                    letters = opened.read_row_group(group).take(pa.array(chosen))
                    yield Found(rows=chosen + start, letters=letters.cast(_schema_of(letters)))
    except (OSError, pa.ArrowException) as error:
        raise CorruptFileError(
            f"The dead letters {file.path} cannot be read ({error}): the file is damaged. {REPAIR_ADVICE}"
        ) from error


def _choose(
    opened: pq.ParquetFile, group: int, selection: Selection, end: int | None
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    columns = opened.read_row_group(group, columns=list(FILTER_COLUMNS))
    chosen = np.flatnonzero(selection.chosen(columns).to_numpy())
    return chosen if end is None else chosen[chosen < end]


def _schema_of(letters: pa.Table) -> pa.Schema:
    """The letters' own columns in their types, and what stands beside them as it is."""
    more = [letters.schema.field(name) for name in letters.column_names if name not in LETTER_SCHEMA.names]
    return pa.schema([*LETTER_SCHEMA, *more])


def may_hold(store: FileStore, file: FileRef, selection: Selection) -> bool:
    """Whether the file may hold letters that are meant, by its statistics alone."""
    if (
        not selection.positions
        and selection.topic is None
        and selection.since is None
        and selection.until is None
    ):
        return True
    try:
        with pq.ParquetFile(store.local(file), memory_map=True) as opened:
            return bool(selection.find_groups(opened.metadata))
    except (OSError, pa.ArrowException) as error:
        raise CorruptFileError(
            f"The dead letters {file.path} cannot be read ({error}): the file is damaged. {REPAIR_ADVICE}"
        ) from error
