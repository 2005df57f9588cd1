"""Whether the ledger's files are what the catalog says: there, whole, and with the rows that were counted.

Sizes are always compared; bytes with their checksums only when asked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from oncehouse.errors import CorruptFileError
from oncehouse.ledger.models import DuplicateFile, FileRef, Part
from oncehouse.ledger.stats.ledger_state import LedgerState, RegisteredKeyFile
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.dedup.deduplicate import live_events
from oncehouse.pipeline.formats.base import EVENT_COLUMN
from oncehouse.pipeline.ingest.part_files import read_rows
from oncehouse.pipeline.maintenance.verify_report import Subject, VerifyFinding

_CHECKS_AT_ONCE = 8


@dataclass(frozen=True, kw_only=True)
class NamedFile:
    where: str
    file: FileRef


def list_files(state: LedgerState) -> tuple[NamedFile, ...]:
    """Every file that the ledger needs, each once."""
    found: dict[str, NamedFile] = {}

    def add(where: str, file: FileRef) -> None:
        found.setdefault(file.path, NamedFile(where=where, file=file))

    for part in state.parts:
        add(f"part {part.part}", part.file)
    for registered in state.key_files:
        add(f"keys {registered.key_file.key_file}", registered.key_file.keys)
        add(f"raw bytes {registered.key_file.key_file}", registered.key_file.raw)
    for epoch, duplicates in state.duplicates.items():
        for duplicate in duplicates:
            add(f"duplicates of epoch {epoch}", duplicate.file)
    for dead_letters in state.dead_letter_files:
        add(f"dead letters {dead_letters.dead_letter_file}", dead_letters.file)
    for segment in state.segments:
        add(f"segment {segment.segment}", segment.file)
    return tuple(found.values())


def check_files(
    store: FileStore, files: tuple[NamedFile, ...], *, every_byte: bool
) -> tuple[VerifyFinding, ...]:
    verify = store.verify if every_byte else store.inspect

    def check(named: NamedFile) -> VerifyFinding | None:
        try:
            verify(named.file)
        except (CorruptFileError, OSError) as error:
            return VerifyFinding(kind=Subject.FILES, where=named.where, message=str(error))
        return None

    with ThreadPoolExecutor(_CHECKS_AT_ONCE, thread_name_prefix="oncehouse-verify") as pool:
        return tuple(finding for finding in pool.map(check, files) if finding is not None)


def check_parts(
    state: LedgerState, store: FileStore, *, damaged: frozenset[str], every_row: bool
) -> Iterator[VerifyFinding]:
    """A part's live rows are its rows without the duplicates that are written down.

    Where a part holds all events of its key file, counting the duplicates is enough; which events the others
    hold stands in their rows. Files in `damaged` were found wanting already and are not read.
    """
    sources = {registered.key_file.key_file: registered for registered in state.key_files}
    by_epoch: dict[int, list[tuple[Part, RegisteredKeyFile]]] = defaultdict(list)
    for part in state.parts:
        if (source := sources.get(part.key_file)) is not None:
            by_epoch[source.epoch].append((part, source))
    for epoch, members in by_epoch.items():
        duplicates = state.duplicates.get(epoch, ())
        if any(duplicate.file.path in damaged for duplicate in duplicates):
            continue
        try:
            by_ordinal = _count_by_ordinal(store, duplicates)
        except (CorruptFileError, pa.ArrowException, OSError, ValueError, KeyError) as error:
            where = f"duplicates of epoch {epoch}"
            yield VerifyFinding(kind=Subject.FILES, where=where, message=f"a file cannot be read: {error}")
            continue
        yield from _check_positions(epoch, duplicates, by_ordinal)
        for part, source in members:
            if not every_row and part.rows == source.key_file.events:
                yield from _compare(part, part.rows - by_ordinal.get(part.ordinal, 0))
            elif part.file.path not in damaged:
                yield from _check_every_row(store, part, source, duplicates)


def _check_positions(
    epoch: int, duplicates: tuple[DuplicateFile, ...], by_ordinal: dict[int, int]
) -> Iterator[VerifyFinding]:
    counted, written = sum(duplicate.rows for duplicate in duplicates), sum(by_ordinal.values())
    if counted != written:
        yield VerifyFinding(
            kind=Subject.COUNTS,
            where=f"duplicates of epoch {epoch}",
            message=f"the catalog counts {counted} positions, the files hold {written}",
        )


def _count_by_ordinal(store: FileStore, duplicates: tuple[DuplicateFile, ...]) -> dict[int, int]:
    counted: dict[int, int] = defaultdict(int)
    for duplicate in duplicates:
        with store.open(duplicate.file) as source:
            mine = pa.ipc.open_file(source).get_batch(0).slice(duplicate.file.row, duplicate.file.rows)
            ordinals = mine.column("ordinal").to_numpy()
            numbers, rows = np.unique(ordinals, return_counts=True)
        for ordinal, count in zip(numbers.tolist(), rows.tolist(), strict=True):
            counted[ordinal] += count
    return counted


def _check_every_row(
    store: FileStore, part: Part, source: RegisteredKeyFile, duplicates: tuple[DuplicateFile, ...]
) -> Iterator[VerifyFinding]:
    try:
        read = read_rows(store, part.file, [EVENT_COLUMN])
    except CorruptFileError as error:
        yield VerifyFinding(kind=Subject.FILES, where=f"part {part.part}", message=str(error))
        return
    events: npt.NDArray[np.uint32] = read.column(EVENT_COLUMN).to_numpy()
    if len(events) != part.rows:
        yield _finding(part, f"has {part.rows} rows in the catalog and {len(events)} in its file")
        return
    try:
        live = live_events(
            store,
            [duplicate.file for duplicate in duplicates],
            ordinal=part.ordinal,
            events=source.key_file.events,
        )
        live_rows = int(np.count_nonzero(live[events]))
    except IndexError:
        yield _finding(part, f"knows more events than the {source.key_file.events} of its key file")
        return
    yield from _compare(part, live_rows)


def _compare(part: Part, live_rows: int) -> Iterator[VerifyFinding]:
    if live_rows != part.live_rows:
        yield _finding(
            part,
            f"counts {part.live_rows} live rows, but {live_rows} of its {part.rows} rows are no duplicates",
        )


def _finding(part: Part, message: str) -> VerifyFinding:
    return VerifyFinding(kind=Subject.COUNTS, where=f"part {part.part}", message=message)
