"""The read model: what a pipeline's ledger says, as frozen values that command line, web and metrics share.

Reads the ledger only, changes nothing, and evaluates nothing. Ages are counted on the catalog's clock. Text that
came out of records is made safe to print here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.dead_letters import count_reasons
from oncehouse.ledger.catalog.epochs import read_positions
from oncehouse.ledger.catalog.leases import list_leases
from oncehouse.ledger.catalog.query_batches import list_settled
from oncehouse.ledger.catalog.requests import list_requests
from oncehouse.ledger.catalog.rollup import rolled_up_rows
from oncehouse.ledger.models import BatchStatus, Request, Stage
from oncehouse.ledger.stats import summary
from oncehouse.ledger.stats.awaited_schemas import AwaitedSchemas
from oncehouse.ledger.stats.summary import BatchTotals, EpochTotals, IndexTotals, OpenParts

__all__ = [
    "BatchStatus",
    "BatchTotals",
    "EpochTotals",
    "IndexTotals",
    "LeaseView",
    "OpenParts",
    "Overview",
    "PartitionPosition",
    "QueryView",
    "list_lease_views",
    "read_overview",
]

SCHEMAS_SHOWN = 20
"""How many schemas that records wait for are named; records can name any number."""

# By ledger, for as long as it stays open: dashboard and metrics read each of them every few seconds.
_AWAITED: WeakKeyDictionary[Catalog, AwaitedSchemas] = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class PartitionPosition:
    topic: str
    partition: int
    next_offset: int
    lag: int | None
    """Offsets that no epoch has settled; none when Kafka was not asked."""


@dataclass(frozen=True, kw_only=True)
class LeaseView:
    stage: Stage
    holder: str
    token: int
    ends_in_seconds: float
    """Not above zero: no process runs the stage."""
    pause: str | None = None
    """What the holder waits for before it goes on; none while it works."""


@dataclass(frozen=True, kw_only=True)
class QueryView:
    """Batches of a stream, a caller or an import that are settled."""

    query: str
    batches: int
    last_batch: int


@dataclass(frozen=True, kw_only=True)
class Overview:
    pipeline: str
    now: float
    epochs: tuple[EpochTotals, ...]
    positions: tuple[PartitionPosition, ...]
    lag: int | None
    open_parts: tuple[OpenParts, ...]
    batches: tuple[BatchTotals, ...]
    rows_in_clickhouse: dict[str, int]
    """By table: rows of all batches that ClickHouse has confirmed, those past the window too."""
    oldest_waiting_seconds: float | None
    """How long the oldest row that is not in ClickHouse has waited in the ledger."""
    dead_letters: dict[str, int]
    """By reason: those that were not tried again."""
    waiting: dict[str, int]
    """Records that wait for a schema, by its name: the most frequent ones, those first."""
    conflicts: int
    """Duplicates whose payload differs from the event that came first."""
    key_index: IndexTotals
    leases: tuple[LeaseView, ...]
    requests: tuple[Request, ...]
    queries: tuple[QueryView, ...]
    waiting_others: int = 0
    """Records that wait for any other schema."""
    unproven_views: dict[str, int] = field(default_factory=dict)
    """By table: loaded batches of which nothing shows that the table's materialized views have their rows."""


def read_overview(catalog: Catalog, *, end_offsets: Mapping[tuple[str, int], int] | None = None) -> Overview:
    """Everything at one moment; with Kafka's end offsets also how far behind it is."""
    with catalog.snapshot() as view:
        now = view.now()
        epochs = summary.sum_epochs(view)
        positions = _positions(read_positions(view), end_offsets)
        batches = summary.sum_batches(view)
        waiting_since = summary.find_oldest_waiting(view)
        awaited = _AWAITED.setdefault(catalog, AwaitedSchemas()).read(view).top(SCHEMAS_SHOWN)
        return Overview(
            pipeline=catalog.pipeline,
            now=now,
            epochs=epochs,
            positions=positions,
            lag=None if end_offsets is None else sum(position.lag or 0 for position in positions),
            open_parts=summary.sum_open_parts(view),
            batches=batches,
            rows_in_clickhouse=_arrived(batches, rolled_up_rows(view)),
            oldest_waiting_seconds=None if waiting_since is None else max(0.0, now - waiting_since),
            dead_letters=count_reasons(view),
            waiting=awaited.schemas,
            waiting_others=awaited.others,
            conflicts=sum(totals.counts.conflicts for totals in epochs),
            key_index=summary.sum_index(view),
            leases=_leases(view, now),
            requests=list_requests(view),
            queries=tuple(_query(query, spans) for query, spans in list_settled(view).items()),
            unproven_views=summary.count_unproven(view),
        )


def _query(query: str, spans: tuple[tuple[int, int, int], ...]) -> QueryView:
    batches = sum(last - first + 1 for first, last, _ in spans)
    return QueryView(query=query, batches=batches, last_batch=spans[-1][1])


def _positions(
    settled: Mapping[tuple[str, int], int], end_offsets: Mapping[tuple[str, int], int] | None
) -> tuple[PartitionPosition, ...]:
    """Partitions that were never read are listed when Kafka names them: all they hold is behind."""
    places = sorted({*settled, *(end_offsets or {})})
    found = []
    for topic, partition in places:
        next_offset = settled.get((topic, partition), 0)
        end = None if end_offsets is None else end_offsets.get((topic, partition))
        lag = None if end is None else max(0, end - next_offset)
        found.append(PartitionPosition(topic=topic, partition=partition, next_offset=next_offset, lag=lag))
    return tuple(found)


def _arrived(batches: Iterable[BatchTotals], rolled_up: Mapping[str, int]) -> dict[str, int]:
    rows = dict(rolled_up)
    for found in batches:
        if found.status is BatchStatus.IN_CLICKHOUSE:
            rows[found.table] = rows.get(found.table, 0) + found.rows
    return dict(sorted(rows.items()))


def list_lease_views(catalog: Catalog) -> tuple[LeaseView, ...]:
    """Who runs each stage, by the catalog's own clock."""
    return _leases(catalog, catalog.now())


def _leases(catalog: Catalog, now: float) -> tuple[LeaseView, ...]:
    return tuple(
        LeaseView(
            stage=lease.stage,
            holder=lease.holder,
            token=lease.token,
            ends_in_seconds=max(0.0, lease.expires_at - now),
            pause=lease.pause,
        )
        for lease in list_leases(catalog)
    )
