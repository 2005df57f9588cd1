"""What an attempt to load a batch begins with: its session on the server, and whether its token can be relied on.

`may_be_forgotten` is pure. What it is asked about, how many blocks the table has taken, comes with the request that
opens the session.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncehouse.clickhouse.block_counts import BlockCount, blocks_between, read_block_count
from oncehouse.clickhouse.client import connect
from oncehouse.clickhouse.deadlines import read_moment, remembered_seconds
from oncehouse.clickhouse.insert import query_id
from oncehouse.clickhouse.sessions import opening_settings
from oncehouse.errors import OncehouseError

if TYPE_CHECKING:
    from oncehouse.clickhouse.deadlines import Moment
    from oncehouse.clickhouse.describe import TableFacts
    from oncehouse.config import Pipeline
    from oncehouse.ledger.records import Attempt, Batch


@dataclass(frozen=True, kw_only=True)
class Opened:
    """What is known before an attempt is written down."""

    began: Moment
    count: BlockCount | None = None
    error: OncehouseError | None = None
    """ClickHouse could not be asked, so there is nothing to be sent."""


def is_doubtful(pipeline: Pipeline, facts: TableFacts | None, first: Attempt, now: Attempt) -> bool:
    """Whether the token of the first attempt may be lost by the time this one has ended."""
    timeout = pipeline.clickhouse.insert_timeout
    return may_be_forgotten(
        facts,
        then=BlockCount.parse(first.block_count),
        now=BlockCount.parse(now.block_count),
        seconds=now.started_at - first.started_at,
        seconds_ahead=timeout,
        remembered=remembered_seconds(insert_timeout=timeout, clock_difference=pipeline.max_clock_difference),
    )


def may_be_forgotten(
    facts: TableFacts | None,
    *,
    then: BlockCount | None,
    now: BlockCount | None,
    seconds: float,
    seconds_ahead: float,
    remembered: float,
) -> bool:
    """Whether the table may have lost a token since the first attempt, or may before a repeat is done.

    Every block that came between the two counts matters, whoever inserted it. What nobody can tell counts as lost.
    """
    blocks = blocks_between(then, now)
    # Less than nothing has passed where the catalog's clock was set back between two processes.
    if facts is None or blocks is None or not 0 <= seconds <= remembered:
        return True
    return not facts.remembers(blocks_since=blocks, seconds_since=seconds, seconds_ahead=seconds_ahead)


def open_attempt(pipeline: Pipeline, batch: Batch, facts: TableFacts | None) -> Opened:
    """One small request before an attempt is written down: it opens the session, and counts the table's blocks."""
    # Before anything else: a process that stands still from here on must not think that it has time.
    began = read_moment()
    session = query_id(batch.batch_id, batch.attempts + 1)
    settings = opening_settings(session) if pipeline.clickhouse.insert_sessions else {}
    try:
        count = read_block_count(connect(pipeline.clickhouse), batch.table, facts, settings)
    except OncehouseError as error:
        return Opened(began=began, error=error)
    return Opened(began=began, count=count)
