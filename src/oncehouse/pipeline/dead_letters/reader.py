"""Reads files of dead letters, and of them no more than a selection asks for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from oncehouse.errors import CorruptFileError
from oncehouse.ledger.models import FileRef
from oncehouse.ledger.storage.file_store import REPAIR_ADVICE, FileStore
from oncehouse.pipeline.dead_letters.filter import FILTER_COLUMNS, Selection
from oncehouse.pipeline.ingest.part_files import DEAD_LETTER_SCHEMA


@dataclass(frozen=True, kw_only=True)
class FoundDeadLetters:
    """Letters of one row group, with their row numbers in the file."""

    rows: np.ndarray[tuple[int], np.dtype[np.int64]]
    dead_letters: pa.Table


def find_dead_letters(
    store: FileStore,
    file: FileRef,
    selection: Selection,
    *,
    newest_first: bool = False,
    before: int | None = None,
) -> Iterator[FoundDeadLetters]:
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
                    dead_letters = opened.read_row_group(group).take(pa.array(chosen))
                    yield FoundDeadLetters(
                        rows=chosen + start, dead_letters=dead_letters.cast(_schema_of(dead_letters))
                    )
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


def _schema_of(dead_letters: pa.Table) -> pa.Schema:
    """The columns of dead letters in their types, and other columns as they are."""
    more = [
        dead_letters.schema.field(name)
        for name in dead_letters.column_names
        if name not in DEAD_LETTER_SCHEMA.names
    ]
    return pa.schema([*DEAD_LETTER_SCHEMA, *more])


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
