"""INSERTs of parked batches: all must have ended before the table can prove that their rows are absent.

A refill of a table (`requests/handler.py`) asks for it, before it sends their rows again in other batches. An INSERT
that runs is listed by the server; one whose body is still arriving shows by its session alone, and without sessions by
nothing: then only time proves that it does not come any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncehouse.clickhouse.insert.deadline import under_way_seconds
from oncehouse.clickhouse.insert.lost_answer import end_attempts
from oncehouse.errors import TransientError
from oncehouse.ledger.catalog import batches
from oncehouse.ledger.models import BatchStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncehouse.clickhouse.client import Client
    from oncehouse.config.pipeline import Pipeline
    from oncehouse.ledger.catalog.database import Catalog
    from oncehouse.ledger.models import Attempt, LedgerBatch


def end_parked_inserts(
    client: Client, pipeline: Pipeline, catalog: Catalog, candidates: Sequence[LedgerBatch]
) -> None:
    """End what may still be on its way of parked batches; raises TransientError while anything is."""
    for batch in candidates:
        if batch.status is not BatchStatus.PARKED:
            continue
        past = batches.list_attempts(catalog, batch.batch_id)
        doubtful = [attempt for attempt in past if attempt.may_have_sent]
        sessions = [attempt.query_id for attempt in doubtful] if pipeline.clickhouse.insert_sessions else []
        what = f"batch {batch.batch_id} for {batch.table}"
        end_attempts(client, what, [attempt.query_id for attempt in past], sessions)
        if not pipeline.clickhouse.insert_sessions:
            _require_past(pipeline, what, doubtful, catalog.now())


def _require_past(pipeline: Pipeline, what: str, doubtful: Sequence[Attempt], now: float) -> None:
    under_way = under_way_seconds(
        insert_timeout=pipeline.clickhouse.insert_timeout, clock_difference=pipeline.max_clock_difference
    )
    left = max((attempt.started_at + under_way - now for attempt in doubtful), default=0.0)
    if left > 0:
        raise TransientError(
            f"{what}: without sessions (clickhouse.insert_sessions) an INSERT may still be arriving for {left:.0f} s; "
            "it is waited for"
        )
