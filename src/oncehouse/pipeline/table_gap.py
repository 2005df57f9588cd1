"""What tables hold beyond what a catalog knows, and what a catalog that is older than them may make of it.

`judge_gap` is pure. It is exact or it refuses: a batch or part whose rows are all there has arrived, one of which none
is there has not, and one of which some are there is told to a person. Rows under batches that the catalog does not know
are events that were delivered; their ids are what keeps them from being delivered again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from oncehouse.clickhouse.counting import count_by_batch
from oncehouse.clickhouse.describe import describe_table
from oncehouse.clickhouse.unique_ids import read_unique_ids, running_inserts
from oncehouse.errors import PermanentError
from oncehouse.ledger.audit import find_known_batches
from oncehouse.ledger.batches import WAITING
from oncehouse.ledger.history import rolled_up_rows_of_all
from oncehouse.ledger.keyindex import Keys, find, first_of_each, sort_order
from oncehouse.ledger.records import Batch, BatchStatus, Part
from oncehouse.pipeline.payloads import UNKNOWN
from oncehouse.pipeline.verify_rows import NO_BATCH

if TYPE_CHECKING:
    from oncehouse.clickhouse.client import Client
    from oncehouse.config import Pipeline, Table
    from oncehouse.ledger.catalog import Catalog

# So many ids are held at a time.
_IDS_AT_ONCE = 4_000_000
_ALL = (1 << 64) - 1


@dataclass(frozen=True, kw_only=True)
class TableGap:
    table: Table
    rows_by_batch: Mapping[str, int]
    strange: tuple[str, ...]
    """Batches that the catalog does not know by name."""
    excess: int
    """Their rows that it does not know in sum either."""
    loses_rows: bool

    @property
    def strange_rows(self) -> int:
        return sum(self.rows_by_batch[batch_id] for batch_id in self.strange)


def read_gaps(client: Client, pipeline: Pipeline, catalog: Catalog) -> tuple[TableGap, ...]:
    """Every table that is there, and what it holds beyond the catalog."""
    gaps = []
    for table in pipeline.tables:
        facts = describe_table(client, table.name)
        if facts is None:
            continue
        rows = count_by_batch(client, table.name, table.batch_column)
        known = find_known_batches(catalog, rows)
        strange = tuple(sorted(set(rows) - known - {NO_BATCH}))
        in_sum = rolled_up_rows_of_all(catalog).get(table.name, 0)
        gaps.append(
            TableGap(
                table=table,
                rows_by_batch=rows,
                strange=strange,
                excess=max(0, sum(rows[batch_id] for batch_id in strange) - in_sum),
                loses_rows=facts.loses_rows,
            )
        )
    return tuple(gaps)


def demand_quiet(client: Client, pipeline: Pipeline) -> None:
    """Nothing can be said about a table while a pipeline still inserts into it."""
    for table in pipeline.tables:
        if running := running_inserts(client, table.name):
            raise PermanentError(
                f"An INSERT into {table.name} is still running (query id {running[0]}), so a pipeline runs or has just "
                "died. Stop it, wait until the query is over, and try again; nothing was changed."
            )


@dataclass(frozen=True, kw_only=True)
class Settled:
    """What the tables prove of batches that the catalog knows."""

    arrived: tuple[str, ...]
    gone: tuple[str, ...]
    """Loaded ones of which no row is there: deleted, or sent again in batches that the catalog does not know."""
    refused: tuple[str, ...]
    """Why the gap cannot be closed, for a person; empty where it can."""


def judge_gap(gaps: Sequence[TableGap], batches: Sequence[Batch]) -> Settled:
    by_table = {gap.table.name: gap for gap in gaps}
    arrived, gone, refused = [], [], [*_unfit(gaps)]
    for batch in batches:
        gap = by_table.get(batch.table)
        there = gap.rows_by_batch.get(batch.batch_id, 0) if gap is not None else 0
        if batch.status in (*WAITING, BatchStatus.PARKED):
            if there == batch.rows:
                arrived.append(batch.batch_id)
            elif there:
                refused.append(_some(batch, there))
        elif batch.status is BatchStatus.IN_CLICKHOUSE and gap is not None and not there:
            gone.append(batch.batch_id)
    return Settled(arrived=tuple(arrived), gone=tuple(gone), refused=tuple(refused))


def _some(batch: Batch, there: int) -> str:
    return (
        f"{batch.table} holds {there} of the {batch.rows} rows of batch {batch.batch_id}, which was on its way. Delete "
        "the batch's rows, so that it is sent again whole"
    )


def _unfit(gaps: Sequence[TableGap]) -> Iterator[str]:
    for gap in gaps:
        name = gap.table.name
        if gap.loses_rows:
            yield f"{name} drops rows by itself (its engine, or a TTL), so it cannot say what was delivered"
        elif gap.strange and gap.table.id_column is None:
            yield f"{name} has no column of unique ids, so nobody can say which events its rows are"
    for one, other in combinations(gaps, 2):
        if (one.strange or other.strange) and may_share(one.table, other.table) and _is_routed(one, other):
            yield (
                f"{one.table.name} and {other.table.name} take some of the same events, and which of them both should "
                "have cannot be told. Delete the rows of "
                f"{len(one.strange) + len(other.strange)} batches that the catalog does not know, so that they are "
                "read again"
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


# -- ids ----------------------------------------------------------------------------------------------------


def slices(rows: int, buckets: int) -> tuple[tuple[int, int], ...]:
    """Ranges of buckets, both ends included, so many that one range's ids can be held at a time."""
    number = 1
    while number < buckets and rows > number * _IDS_AT_ONCE:
        number *= 2
    width = buckets // number
    return tuple((at * width, (at + 1) * width - 1) for at in range(number))


def read_strange_ids(
    client: Client, gap: TableGap, *, bucket_from: int = 0, bucket_to: int = 0, buckets: int = 1
) -> Keys:
    """The ids of rows whose batch the catalog does not know, sorted, each once."""
    width = (1 << 64) // buckets
    found = list(
        read_unique_ids(
            client,
            gap.table.name,
            batch_column=gap.table.batch_column,
            id_column=gap.table.id_column or "",
            batch_ids=gap.strange,
            first=bucket_from * width,
            last=min((bucket_to + 1) * width - 1, _ALL),
        )
    )
    return sorted_keys([hi for hi, _ in found], [lo for _, lo in found])


def sorted_keys(
    hi: Sequence[np.ndarray[tuple[int], np.dtype[np.uint64]]],
    lo: Sequence[np.ndarray[tuple[int], np.dtype[np.uint64]]],
) -> Keys:
    high = np.concatenate([*hi, np.empty(0, dtype=np.uint64)])
    low = np.concatenate([*lo, np.empty(0, dtype=np.uint64)])
    order = sort_order(high, low)
    keys = Keys(hi=high[order], lo=low[order], payload=np.full(len(order), UNKNOWN, dtype=np.uint64))
    return keys.take(first_of_each(keys))


def same_ids(one: Keys, other: Keys) -> bool:
    return np.array_equal(one.hi, other.hi) and np.array_equal(one.lo, other.lo)


def count_there(live: Keys, strange: Keys) -> int:
    return int(np.count_nonzero(find(strange, live.hi, live.lo) >= 0))


def judge_part(part: Part, live: Keys, strange: Keys) -> bool:
    """Whether an open part has arrived; raises where only some of its rows have."""
    there = count_there(live, strange)
    if there not in (0, len(live)):
        raise PermanentError(
            f"{part.table} holds {there} of the {len(live)} rows of part {part.part} under batches that the catalog "
            "does not know. Delete the rows of those batches, so that they are read again; nothing was changed."
        )
    return there > 0
