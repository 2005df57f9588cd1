"""How a topic's status reads: what it does now, how far behind it is, and what a person has to know or do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from oncehouse.common.formatting import format_elapsed
from oncehouse.etl.quality.expectations import ExpectationOutcome
from oncehouse.etl.state.position import Position, format_position_time
from oncehouse.etl.state.topic_lease import failures

if TYPE_CHECKING:
    from oncehouse.etl.status import BackfillStatus, GapStatus, TopicStatus

_NOT_BEGUN_SECONDS = 40 * 365 * 86400


def list_notes(one: TopicStatus) -> Iterator[str]:
    """What does not fit a column: failures in full, who holds it, its open range, checks that did not hold."""
    if failures(one.state):
        yield without_name(one.topic, one.state.partition(": ")[2])
    if one.next != one.last:
        yield f"its range up to {format_position(one.next)} is open" + (
            f", {one.hostid} works on it" if one.hostid else ""
        )
    elif one.hostid:
        yield f"{one.hostid} works on it"
    yield from _list_other_work(one)
    for check in one.checks:
        if check.outcome == ExpectationOutcome.WARNED:
            yield f"warning of {check.ts[:19]}: expected {check.expectation}, found {check.figure}"


def _list_other_work(one: TopicStatus) -> Iterator[str]:
    """Jobs apart from the forward runs."""
    for source in one.declared:
        by = source.consumer or "a loader without a name"
        yield (
            f"{source.table} is declared up to {format_position_time(source.upto)} by {by}, "
            f"{format_elapsed(source.age_seconds)} ago"
        )
    for table, rows in one.rows_ahead.items():
        yield f"{rows:,} rows of {table} are further in the future than `ahead` allows, and wait until then"
    if one.late_rows or one.repaired_rows:
        yield f"{one.late_rows:,} rows came late and are not built, {one.repaired_rows:,} were repaired"
    if one.repair_why:
        yield f"its repair failed: {one.repair_why}"
    if one.backfill is not None:
        failed = f"; failed: {one.backfill.why}" if one.backfill.why else ""
        done = f"{one.backfill.rows:,} rows done, {one.backfill.rows_left:,} left"
        yield f"back-fill {_format_range(one.backfill)}: {done}{failed}"
    for gap in one.gaps:
        yield f"gap {_format_range(gap)}: {gap.rows:,} rows never built"


def _format_range(range_: GapStatus | BackfillStatus) -> str:
    first = format_position(range_.after) if range_.after.time_ms else "the start"
    return f"after {first} up to {format_position(range_.upto)}"


def without_name(topic: str, why: str) -> str:
    """A failure's text for a line that begins with the topic's name already."""
    return why.removeprefix(f"Topic {topic}").lstrip(": ")


def format_decision(one: TopicStatus) -> str:
    failed = failures(one.state)
    reason = one.reason.partition("; it has ")[0]  # the failure itself stands under the table
    if failed:
        return f"failed {failed}×, {reason or one.decision}"  # noqa: RUF001 - times
    return f"{one.decision}: {reason}" if reason else one.decision


def format_lag(one: TopicStatus) -> str:
    """How far the main source is ahead; the reason of a wait names other sources."""
    if not one.lag_seconds:
        return "-"
    lag = next(iter(one.lag_seconds.values()))
    if lag is None:
        return "empty"
    # From the beginning of time the lag would be decades, which does not read as "not begun".
    return "not begun" if lag > _NOT_BEGUN_SECONDS else format_elapsed(lag)


def format_position(position: Position) -> str:
    """As `etl seek` takes it."""
    return f"{format_position_time(position)},{position.id}" if position.time_ms else "-"
