"""Whether the tables in ClickHouse hold the rows of every batch: no fewer, no more, and no others.

`compare_table` is pure. Tables whose engine merges rows away or whose rows expire may hold fewer rows of a
batch and never more, so that is what is compared there, and a note says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from oncehouse.clickhouse.batch_rows import count_by_batch, count_distinct_by_batch
from oncehouse.clickhouse.client import Client
from oncehouse.clickhouse.table_info import TableFacts, describe_table
from oncehouse.config.pipeline import Pipeline, Table
from oncehouse.ledger.models import BatchStatus, LedgerBatch
from oncehouse.pipeline.maintenance.verify_report import Note, Subject, VerifyFinding

NO_BATCH = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, kw_only=True)
class TableRows:
    """What a table holds."""

    table: str
    rows_by_batch: Mapping[str, int]
    ids_by_batch: Mapping[str, int] | None
    """Different unique ids; none where the table has no column for them."""
    why_fewer: str | None
    """Why rows may have gone by the table's own doing; none where every row must be there."""


def read_tables(
    client: Client, pipeline: Pipeline, batches: Sequence[LedgerBatch]
) -> tuple[tuple[TableRows, ...], tuple[VerifyFinding, ...]]:
    """The rows of every table of the pipeline that should have some."""
    used = {batch.table for batch in batches}
    read, missing = [], []
    for table in pipeline.tables:
        facts = describe_table(client, table.name)
        if facts is not None:
            read.append(_read(client, table, facts))
        elif table.name in used:
            missing.append(
                VerifyFinding(
                    kind=Subject.ROWS,
                    where=f"table {table.name}",
                    message="has batches, but does not exist in ClickHouse, or the user may not see it",
                )
            )
    return tuple(read), tuple(missing)


def _read(client: Client, table: Table, facts: TableFacts) -> TableRows:
    why = None
    if facts.merges_rows:
        why = f"the engine {facts.engine} merges rows away"
    elif facts.expires_rows:
        why = "the table has a TTL"
    ids = None
    if table.id_column is not None:
        ids = count_distinct_by_batch(client, table.name, table.batch_column, table.id_column)
    return TableRows(
        table=table.name,
        rows_by_batch=count_by_batch(client, table.name, table.batch_column),
        ids_by_batch=ids,
        why_fewer=why,
    )


def compare_table(found: TableRows, batches: Sequence[LedgerBatch]) -> Iterator[VerifyFinding | Note]:
    """Every batch of the table against its rows there."""
    sent = there = 0
    for batch in batches:
        rows = found.rows_by_batch.get(batch.batch_id, 0)
        if batch.status is BatchStatus.IN_CLICKHOUSE:
            sent += batch.rows
            there += rows
        where = f"batch {batch.batch_id} in {found.table}"
        if (message := _compare_counts(batch, rows, may_be_fewer=found.why_fewer is not None)) is not None:
            yield VerifyFinding(kind=Subject.ROWS, where=where, message=message)
        elif batch.status is BatchStatus.IN_CLICKHOUSE and found.ids_by_batch is not None:
            # Rows doubled and rows lost may balance out; their ids do not.
            ids = found.ids_by_batch.get(batch.batch_id, 0)
            if rows > ids:
                message = f"has {rows} rows in ClickHouse, but only {ids} unique ids: some stand twice"
                yield VerifyFinding(kind=Subject.ROWS, where=where, message=message)
    if found.why_fewer is not None:
        yield Note(
            kind=Subject.ROWS,
            where=f"table {found.table}",
            message=f"holds {there} of the {sent} rows that were sent. Because {found.why_fewer}, what is "
            "missing cannot be distinguished from what went as it should; only rows too many were looked for.",
        )


def _compare_counts(batch: LedgerBatch, rows: int, *, may_be_fewer: bool) -> str | None:
    match batch.status:
        case BatchStatus.REPLACED if rows:
            return (
                f"was sent again in other batches, but {rows} of its rows are there still: they are doubled"
            )
        case BatchStatus.NEW if rows and not batch.attempts:
            return f"was never sent, but ClickHouse holds {rows} rows of it"
        case _ if rows > batch.rows:
            return f"has {batch.rows} rows, but ClickHouse holds {rows}: {rows - batch.rows} are doubled"
        case BatchStatus.IN_CLICKHOUSE if rows < batch.rows and not may_be_fewer:
            return f"has {batch.rows} rows, but ClickHouse holds {rows}: {batch.rows - rows} are missing"
        case _:
            return None


def find_unknown_batches(
    found: TableRows, known: set[str], *, rolled_up: int
) -> Iterator[VerifyFinding | Note]:
    """Rows whose batch no ledger knows; of batches past the window only the sum of their rows is known."""
    unknown = {batch_id: rows for batch_id, rows in found.rows_by_batch.items() if batch_id not in known}
    without_batch = unknown.pop(NO_BATCH, 0)
    if without_batch:
        yield Note(
            kind=Subject.ROWS,
            where=f"table {found.table}",
            message=f"{without_batch} rows have no batch id: others wrote them, and they were not compared.",
        )
    total = sum(unknown.values())
    if rolled_up and (total == rolled_up or (total < rolled_up and found.why_fewer is not None)):
        yield Note(
            kind=Subject.ROWS,
            where=f"table {found.table}",
            message=f"{total} rows are of batches past the window, of which the ledger knows the sum only.",
        )
    elif rolled_up:
        yield VerifyFinding(
            kind=Subject.ROWS,
            where=f"table {found.table}",
            message=f"ClickHouse holds {total} rows of batches past the window, the ledger knows {rolled_up}",
        )
    else:
        for batch_id, rows in sorted(unknown.items()):
            yield VerifyFinding(
                kind=Subject.ROWS,
                where=f"batch {batch_id} in {found.table}",
                message=f"ClickHouse holds {rows} rows of a batch that the ledger does not know",
            )
