"""Batches for the CLI and the dashboard: all of them, a page, or one with its parts and attempts.

Reads the ledger only. The SQL stands in `ledger/catalog/batches.py` and `ledger/stats/recent.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from oncehouse.ledger.catalog import batches as ledger_batches
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.models import Attempt, AttemptOutcome, BatchStatus, LedgerBatch, Part
from oncehouse.ledger.stats import recent


@dataclass(frozen=True, kw_only=True)
class BatchView:
    batch: LedgerBatch
    age_seconds: float
    due_in_seconds: float | None
    """Until the next attempt; none for batches that wait for no attempt."""


@dataclass(frozen=True, kw_only=True)
class BatchDetail:
    view: BatchView
    parts: tuple[Part, ...]
    attempts: tuple[Attempt, ...]
    outcome_unknown: bool
    """An attempt ended, or its driver died, and whether the rows arrived is not known."""


@dataclass(frozen=True, kw_only=True)
class BatchPage:
    batches: tuple[BatchView, ...]
    older: str | None
    """The batch after which the next page begins; none on the last."""


def list_batches(
    catalog: Catalog, *, statuses: Iterable[BatchStatus] | None = None, table: str | None = None
) -> tuple[BatchView, ...]:
    """Oldest first."""
    with catalog.snapshot() as view:
        now = view.now()
        found = ledger_batches.list_batches(view, statuses=statuses, table=table)
    return tuple(view_batch(batch, now) for batch in found)


def read_batch(catalog: Catalog, batch_id: str) -> BatchDetail:
    """One batch with its parts in order and every attempt; ConfigurationError when there is no such batch."""
    with catalog.snapshot() as view:
        batch = view_batch(ledger_batches.find_batch(view, batch_id), view.now())
        parts = tuple(loaded.part for loaded in ledger_batches.load_parts(view, batch_id))
        attempts = ledger_batches.list_attempts(view, batch_id)
    arrived = batch.batch.status is BatchStatus.IN_CLICKHOUSE
    unknown = not arrived and any(attempt.may_have_sent for attempt in attempts)
    return BatchDetail(view=batch, parts=parts, attempts=attempts, outcome_unknown=unknown)


def view_batch(batch: LedgerBatch, now: float) -> BatchView:
    waits = batch.status in ledger_batches.WAITING
    return BatchView(
        batch=batch,
        age_seconds=max(0.0, now - batch.created_at),
        due_in_seconds=max(0.0, batch.next_attempt_at - now) if waits else None,
    )


def list_batch_page(
    catalog: Catalog,
    *,
    status: BatchStatus | None = None,
    table: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> BatchPage:
    """Newest first. Raises ConfigurationError when the batch `after` is not there any more."""
    with catalog.snapshot() as view:
        now = view.now()
        found = recent.page_batches(
            view, statuses=None if status is None else [status], table=table, after=after, limit=limit + 1
        )
    shown = found[:limit]
    return BatchPage(
        batches=tuple(view_batch(batch, now) for batch in shown),
        older=shown[-1].batch_id if len(found) > limit else None,
    )


def rate_outcome(outcome: AttemptOutcome | None) -> Literal["done", "warn", "bad"]:
    """How the outcome of an attempt is shown; an attempt that runs, or whose driver died, has none."""
    match outcome:
        case AttemptOutcome.INSERTED | AttemptOutcome.ALREADY_THERE:
            return "done"
        case AttemptOutcome.FAILED:
            return "bad"
        case AttemptOutcome.VIEWS_UNPROVEN | AttemptOutcome.UNKNOWN | None:
            return "warn"
