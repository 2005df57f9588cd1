"""What tables hold beyond what a catalog knows, and what a catalog that is older than them may make of it.

`assess_gap` is pure. It is exact or it refuses: a batch whose rows are all there has arrived, one of which some are
there is reported to a person, and one of which none is there may have come in other batches, as its ids show. Rows
under batches that the catalog does not know are events that were delivered; their ids are what keeps them from being
delivered again (`unknown_row_ids.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from oncehouse.clickhouse.batch_rows import count_by_batch, find_running_inserts
from oncehouse.clickhouse.insert.deadline import LOOKUP_TIMEOUT_SECONDS, under_way_seconds
from oncehouse.clickhouse.table_info import describe_table
from oncehouse.errors import PermanentError
from oncehouse.ledger.catalog.rollup import rolled_up_rows_of_all
from oncehouse.ledger.marks import read_marks
from oncehouse.ledger.models import BatchStatus, LedgerBatch
from oncehouse.ledger.stats.ledger_state import find_known_batches
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.maintenance.verify_rows import NO_BATCH

if TYPE_CHECKING:
    from oncehouse.clickhouse.client import Client
    from oncehouse.config.pipeline import Pipeline, Table
    from oncehouse.ledger.catalog.database import Catalog


@dataclass(frozen=True, kw_only=True)
class TableGap:
    table: Table
    rows_by_batch: Mapping[str, int]
    unknown: tuple[str, ...]
    """Batches that the catalog does not know by name."""
    rows_in_sum: int
    """Rows of batches that it once knew by name or took from the table, and knows only in sum now."""
    loses_rows: bool

    @property
    def excess(self) -> int:
        """Unknown rows that the ledger does not know in sum either."""
        return max(0, self.unknown_rows - self.rows_in_sum)

    @property
    def unknown_rows(self) -> int:
        return sum(self.rows_by_batch[batch_id] for batch_id in self.unknown)


def read_gaps(client: Client, pipeline: Pipeline, catalog: Catalog) -> tuple[TableGap, ...]:
    """Every table that is there, and what it holds beyond the catalog."""
    gaps = []
    for table in pipeline.tables:
        facts = describe_table(client, table.name)
        if facts is None:
            continue
        rows = count_by_batch(client, table.name, table.batch_column)
        known = find_known_batches(catalog, rows)
        unknown = tuple(sorted(set(rows) - known - {NO_BATCH}))
        gaps.append(
            TableGap(
                table=table,
                rows_by_batch=rows,
                unknown=unknown,
                rows_in_sum=rolled_up_rows_of_all(catalog).get(table.name, 0),
                loses_rows=facts.loses_rows,
            )
        )
    return tuple(gaps)


def require_quiet(client: Client, pipeline: Pipeline) -> None:
    """Nothing can be said about a table while a pipeline still inserts into it, or an INSERT may still arrive.

    Which attempts there were a lost catalog cannot say, so their sessions cannot be ended: time has to pass.
    """
    for table in pipeline.tables:
        if running := find_running_inserts(client, table.name):
            raise PermanentError(
                f"An INSERT into {table.name} is still running (query id {running[0]}), so a pipeline runs or has just "
                "died. Stop it, wait until the query is over, and try again; nothing was changed."
            )
    marks = read_marks(FileStore(pipeline.ledger.files), pipeline.pipeline)
    if (left := arriving_seconds(marks.sent_at, pipeline, now=time.time())) > 0:
        raise PermanentError(
            f"Rows were last sent so lately that an INSERT of a process that died may still arrive, for {left:.0f} s. "
            "Nothing was changed; stop the pipeline if it runs, wait until that time is over, and try again."
        )


def arriving_seconds(sent_at: Iterable[float], pipeline: Pipeline, *, now: float) -> float:
    """For how long an INSERT of those that were sent at these times may still arrive or run."""
    under_way = under_way_seconds(
        insert_timeout=pipeline.clickhouse.insert_timeout, clock_difference=pipeline.max_clock_difference
    )
    if pipeline.clickhouse.insert_sessions:
        under_way += LOOKUP_TIMEOUT_SECONDS
    newest = max(sent_at, default=now - under_way)
    # A mark of the future is one of a clock that differs: only the whole time is safe.
    return min(under_way, newest + under_way - now)


@dataclass(frozen=True, kw_only=True)
class SettledBatches:
    """What the tables prove of batches that the catalog knows."""

    arrived: tuple[str, ...]
    absent: tuple[str, ...]
    """Waiting, parked and loaded ones of which no row is there: never sent, deleted, or sent in other batches."""
    refused: tuple[str, ...]
    """Why the gap cannot be closed, for a person; empty where it can."""


def assess_gap(gaps: Sequence[TableGap], batches: Sequence[LedgerBatch]) -> SettledBatches:
    by_table = {gap.table.name: gap for gap in gaps}
    arrived, absent, refused = [], [], [*_unfit(gaps)]
    for batch in batches:
        gap = by_table.get(batch.table)
        if gap is None or batch.status is BatchStatus.REPLACED:
            continue
        there = gap.rows_by_batch.get(batch.batch_id, 0)
        if not there:
            absent.append(batch.batch_id)
        elif batch.status is not BatchStatus.IN_CLICKHOUSE and there == batch.rows:
            arrived.append(batch.batch_id)
        elif batch.status is not BatchStatus.IN_CLICKHOUSE:
            refused.append(_some(batch, there))
    return SettledBatches(arrived=tuple(arrived), absent=tuple(absent), refused=tuple(refused))


def _some(batch: LedgerBatch, there: int) -> str:
    return (
        f"{batch.table} holds {there} of the {batch.rows} rows of batch {batch.batch_id}, which was on its way. Delete "
        "the batch's rows, so that it is sent again whole"
    )


def _unfit(gaps: Sequence[TableGap]) -> Iterator[str]:
    for gap in gaps:
        name = gap.table.name
        if gap.loses_rows:
            # Also where nothing unknown is found: it may have been dropped.
            yield (
                f"{name} drops rows by itself (its engine, or a TTL), so it cannot say what was delivered. Bring back "
                "the catalog that has everything; or, where rows that come twice do no harm, go on without the marks "
                "(docs/repair.md, Tables that drop rows)"
            )
        elif gap.unknown and gap.table.id_column is None:
            yield f"{name} has no column of unique ids, so it is not known which events its rows are"
    for one, other in combinations(gaps, 2):
        if (one.unknown or other.unknown) and may_share(one.table, other.table) and _is_routed(one, other):
            yield (
                f"{one.table.name} and {other.table.name} take some of the same events, and which of them both should "
                "have is unknown. Delete the rows of "
                f"{len(one.unknown) + len(other.unknown)} batches that the catalog does not know, so that they are "
                "read again"
            )


def describe_missing(gaps: Sequence[TableGap], tables: Sequence[Table]) -> Iterator[str]:
    """A table that is not there has got none of the events that others have under unknown batches."""
    there = {gap.table.name for gap in gaps}
    for table in tables:
        others = [gap.table.name for gap in gaps if gap.unknown and may_share(gap.table, table)]
        if table.name not in there and others:
            yield (
                f"{table.name} is not in ClickHouse, but should have the events that {others[0]} holds under batches "
                "that the catalog does not know. Delete the rows of those batches, so that they are read again"
            )


def _is_routed(one: TableGap, other: TableGap) -> bool:
    return one.table.route is not None or other.table.route is not None


def may_share(one: Table, other: Table) -> bool:
    """Whether an event may go to both tables."""
    if one.route is None or other.route is None or one.route.field != other.route.field:
        return True
    if one.route.field is None:
        return True
    return bool(set(one.route.values or ()) & set(other.route.values or ()))
