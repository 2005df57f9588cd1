"""Verify: the ledger against itself, against its files, and against the rows in ClickHouse.

Changes nothing, and may run while the pipeline runs: the ledger is read at one moment, before the
tables are, so what arrives meanwhile is never a finding. Reports each difference, and what was not compared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from oncehouse.clickhouse.client import Client
from oncehouse.config.pipeline import Pipeline
from oncehouse.ledger.catalog.batches import WAITING
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.retention import registered_paths
from oncehouse.ledger.catalog.rollup import rolled_up_rows_of_all
from oncehouse.ledger.models import BatchStatus, LedgerBatch
from oncehouse.ledger.stats.ledger_state import LedgerState, find_known_batches, read_state
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.formats.factory import format_of
from oncehouse.pipeline.maintenance.verify_counts import check_counts
from oncehouse.pipeline.maintenance.verify_files import NamedFile, check_files, check_parts, list_files
from oncehouse.pipeline.maintenance.verify_report import Note, Subject, VerifyFinding, VerifyReport
from oncehouse.pipeline.maintenance.verify_rows import compare_table, find_unknown_batches, read_tables

__all__ = ["Note", "Subject", "VerifyFinding", "VerifyReport", "verify"]

STUCK_SECONDS = 3600.0
"""A batch that has waited this long is named by itself."""


def verify(
    pipeline: Pipeline, catalog: Catalog, store: FileStore, client: Client | None, *, files: bool
) -> VerifyReport:
    """Compare everything that can be compared; `files` also reads every byte of the ledger's files."""
    state = read_state(catalog)
    named = list_files(state)
    several_rows = format_of(pipeline.source).several_rows
    entries: list[VerifyFinding | Note] = [
        *check_counts(state, window_seconds=pipeline.identity.window, several_rows=several_rows)
    ]
    wanting = check_files(store, named, every_byte=files)
    entries += wanting
    at_fault = {finding.where for finding in wanting}
    damaged = frozenset(entry.file.path for entry in named if entry.where in at_fault)
    entries += check_parts(state, store, damaged=damaged, every_row=files)
    entries += _parked(state.batches)
    entries += _pending(state)
    entries += _unproven(state.batches)
    entries = _leave_out_moved(entries, named, catalog)
    compared, rows = _compare_tables(pipeline, catalog, client, state)
    entries += compared
    return VerifyReport(
        findings=tuple(entry for entry in entries if isinstance(entry, VerifyFinding)),
        notes=tuple(entry for entry in entries if isinstance(entry, Note)),
        epochs=len(state.epochs),
        parts=len(state.parts),
        batches=len(state.batches),
        files=len(named),
        rows_in_clickhouse=rows,
    )


def _leave_out_moved(
    entries: list[VerifyFinding | Note], named: Sequence[NamedFile], catalog: Catalog
) -> list[VerifyFinding | Note]:
    """Without files that the ledger has stopped to name meanwhile: they were packed, merged or past the window."""
    if not any(entry.kind is Subject.FILES for entry in entries):
        return entries
    paths: dict[str, set[str]] = defaultdict(set)
    for file in named:
        paths[file.where].add(file.file.path)
    still = registered_paths(catalog)
    return [
        entry
        for entry in entries
        if entry.kind is not Subject.FILES or not paths[entry.where] or paths[entry.where] & still
    ]


def _compare_tables(
    pipeline: Pipeline, catalog: Catalog, client: Client | None, state: LedgerState
) -> tuple[list[VerifyFinding | Note], int | None]:
    if client is None:
        message = "was not asked, so no rows were compared."
        return [Note(kind=Subject.ROWS, where="ClickHouse", message=message)], None
    tables, missing = read_tables(client, pipeline, state.batches)
    entries: list[VerifyFinding | Note] = [*missing]
    # Looked up after the tables were read: a batch that was made meanwhile is not taken for an unknown one.
    with catalog.snapshot() as view:
        known = find_known_batches(view, {batch_id for table in tables for batch_id in table.rows_by_batch})
        rolled_up = rolled_up_rows_of_all(view)
    for table in tables:
        mine = [batch for batch in state.batches if batch.table == table.table]
        entries += compare_table(table, mine)
        entries += find_unknown_batches(table, known, rolled_up=rolled_up.get(table.table, 0))
    configured = {table.name for table in pipeline.tables}
    for name in sorted({batch.table for batch in state.batches} - configured):
        message = "has batches in the ledger, but is not in the pipeline file any more; it was not compared."
        entries.append(Note(kind=Subject.ROWS, where=f"table {name}", message=message))
    return entries, sum(rows for table in tables for rows in table.rows_by_batch.values())


def _parked(batches: Sequence[LedgerBatch]) -> Iterator[VerifyFinding]:
    for batch in batches:
        if batch.status is BatchStatus.PARKED:
            yield VerifyFinding(
                kind=Subject.BATCHES,
                where=f"batch {batch.batch_id}",
                message=f"is parked, so its {batch.rows} rows wait for an operator: {batch.reason}. "
                "When the cause is gone: `oncehouse batches retry`.",
            )


def _unproven(batches: Sequence[LedgerBatch]) -> Iterator[Note]:
    """Loaded batches have a reason where nothing shows that their views have their rows."""
    found = Counter(
        batch.table
        for batch in batches
        if batch.status is BatchStatus.IN_CLICKHOUSE and batch.reason is not None
    )
    for table, number in sorted(found.items()):
        yield Note(
            kind=Subject.ROWS,
            where=table,
            message=f"has all rows of {number} batches of which nothing shows whether its materialized views have "
            "them: `oncehouse batches views` says what to do.",
        )


def _pending(state: LedgerState) -> Iterator[Note]:
    """What is on its way: no difference, but not compared either."""
    unbatched = [part for part in state.parts if part.batch_id is None and part.live_rows]
    if unbatched:
        rows = sum(part.live_rows for part in unbatched)
        message = f"{rows} rows in {len(unbatched)} parts wait for a batch."
        yield Note(kind=Subject.BATCHES, where="new events", message=message)
    waiting = [batch for batch in state.batches if batch.status in WAITING]
    for status, number in sorted(Counter(batch.status for batch in waiting).items()):
        rows = sum(batch.rows for batch in waiting if batch.status is status)
        message = f"{number} batches of {rows} rows are {status}: their rows may be in ClickHouse or not yet."
        yield Note(kind=Subject.BATCHES, where=f"batches {status}", message=message)
    for batch in waiting:
        if (age := state.now - batch.created_at) > STUCK_SECONDS:
            reason = f"; last: {batch.reason}" if batch.reason else ""
            message = f"has waited for {age / 3600:.1f} hours, after {batch.attempts} attempts{reason}"
            yield Note(kind=Subject.BATCHES, where=f"batch {batch.batch_id}", message=message)
