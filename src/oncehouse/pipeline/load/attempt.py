"""What an attempt to load a batch starts with: its session on the server, and what is known of earlier attempts.

If the answer of an earlier attempt was lost, its token decides whether a repeated INSERT is harmless. `is_doubtful`
says whether the table may have forgotten that token; `may_forget_attempt` is its pure core. The number of blocks that
the table has taken comes with the request that opens the session. What follows from it is decided in
`clickhouse/insert/lost_answer.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncehouse.clickhouse.client import connect
from oncehouse.clickhouse.insert.block_counts import (
    BlockCount,
    blocks_between,
    most_own_blocks,
    read_block_count,
)
from oncehouse.clickhouse.insert.deadline import (
    LOOKUP_TIMEOUT_SECONDS,
    read_moment,
    remembered_seconds,
    under_way_seconds,
)
from oncehouse.clickhouse.insert.session_fence import explain_refusal, make_open_settings
from oncehouse.common.query_ids import attempt_query_id
from oncehouse.errors import OncehouseError
from oncehouse.ledger.catalog import batches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oncehouse.clickhouse.insert.deadline import Moment
    from oncehouse.clickhouse.table_info import TableFacts
    from oncehouse.config.pipeline import Pipeline
    from oncehouse.ledger.catalog.database import Catalog
    from oncehouse.ledger.models import Attempt, LedgerBatch


@dataclass(frozen=True, kw_only=True)
class OpenedAttempt:
    """What is known before an attempt is written down."""

    began: Moment
    count: BlockCount | None = None
    error: OncehouseError | None = None
    """ClickHouse could not be asked, so there is nothing to be sent."""


def is_doubtful(
    pipeline: Pipeline,
    catalog: Catalog,
    facts: TableFacts | None,
    table: str,
    doubtful: Sequence[Attempt],
    now: Attempt,
) -> bool:
    """Whether the token of the first of these attempts may be lost by the time this one has ended.

    They are those that may have sent rows. What is known to have sent none says nothing of the token.
    """
    first, timeout = doubtful[0], pipeline.clickhouse.insert_timeout

    def count_own() -> int:
        return most_own_blocks(batches.count_attempts(catalog, table, since=first.started_at), facts)

    return may_forget_attempt(
        facts,
        blocks=blocks_since([past.block_count for past in doubtful], now.block_count, count_own),
        seconds=now.started_at - first.started_at,
        seconds_ahead=timeout,
        remembered=remembered_seconds(insert_timeout=timeout, clock_difference=pipeline.max_clock_difference),
    )


def open_sessions(pipeline: Pipeline, doubtful: Sequence[Attempt], now: Attempt) -> tuple[str, ...]:
    """Sessions of attempts that are young enough for their INSERT to be under way still."""
    if not pipeline.clickhouse.insert_sessions:
        return ()
    under_way = LOOKUP_TIMEOUT_SECONDS + under_way_seconds(
        insert_timeout=pipeline.clickhouse.insert_timeout, clock_difference=pipeline.max_clock_difference
    )
    return tuple(past.query_id for past in doubtful if now.started_at - past.started_at <= under_way)


def blocks_since(counts: Sequence[str | None], now: str | None, count_own: Callable[[], int]) -> int | None:
    """How many blocks the table took since the first of these counts; None where that cannot be known.

    Where the first attempt had no count, because the table keeps none or the version before made it, the catalog's own
    attempts count, each with as many blocks as one may have. Other writers are not seen then.
    """
    known = [count for count in counts if count is not None]
    own = count_own() if counts[0] is None else 0
    if not known:
        return own
    blocks = blocks_between(BlockCount.parse(known[0]), BlockCount.parse(now))
    return None if blocks is None else max(blocks, own)


def may_forget_attempt(
    facts: TableFacts | None,
    *,
    blocks: int | None,
    seconds: float,
    seconds_ahead: float,
    remembered: float,
) -> bool:
    """Whether the table may have lost a token since the first attempt, or may before a repeat is done.

    Every block since then counts, from any writer. If the number is not known, the token counts as lost.
    """
    # Less than nothing has passed where the catalog's clock was set back between two processes.
    if facts is None or blocks is None or not 0 <= seconds <= remembered:
        return True
    return not facts.remembers(blocks_since=blocks, seconds_since=seconds, seconds_ahead=seconds_ahead)


def open_attempt(pipeline: Pipeline, batch: LedgerBatch, facts: TableFacts | None) -> OpenedAttempt:
    """One small request before an attempt is written down: it opens the session, and counts the table's blocks."""
    # Before anything else: a process that stands still from here on must not think that it has time.
    began = read_moment()
    session = attempt_query_id(batch.batch_id, batch.attempts + 1)
    settings = make_open_settings(session) if pipeline.clickhouse.insert_sessions else {}
    try:
        count = read_block_count(connect(pipeline.clickhouse), batch.table, facts, settings)
    except OncehouseError as error:
        return OpenedAttempt(began=began, error=explain_refusal(error))
    return OpenedAttempt(began=began, count=count)
