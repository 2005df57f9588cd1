"""`oncehouse etl status`, and what people change by hand: seek, unlock, pause, resume.

Status is what the scheduler itself would decide now, with its reasons; it changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from oncehouse.cli.arguments import AsJson
from oncehouse.cli.etl_opening import (
    DEFAULT_SETTINGS,
    Etl,
    SettingsFile,
    TopicName,
    find_topic,
    open_etl,
    read_offsets,
)
from oncehouse.cli.etl_status_text import show_status, spell_position_time
from oncehouse.cli.output import say, show_json
from oncehouse.errors import ConfigurationError
from oncehouse.etl.records import START, Offset, Position, Template

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from oncehouse.etl.check_log import CheckRow
    from oncehouse.etl.offsets import OffsetStore
    from oncehouse.etl.planning import Decision
    from oncehouse.etl.records import SourceState, Topic

_REWOUND = (
    "Rows after that are built again: TRUNCATE the table or DROP its partitions first. After a DELETE it still "
    "remembers its inserts, and drops ranges that are the same as before."
)


@dataclass(frozen=True, kw_only=True)
class TopicStatus:
    topic: str
    dst: str
    decision: str
    """`due`, `resume`, `waiting` or `paused`."""
    reason: str
    """Why it waits."""
    last: Position
    next: Position
    rows: int
    """Of the last step."""
    state: str
    hostid: str
    lag_seconds: dict[str, float | None]
    """Source and how far its newest row is ahead of `last`; None: it has no rows."""
    checks: tuple[CheckRow, ...] = ()
    """What became of its expectations when they were last looked at."""


def status(file: SettingsFile = DEFAULT_SETTINGS, *, as_json: AsJson = False) -> None:
    """Show where each topic stands, how far its sources are ahead, and why it waits."""
    with open_etl(file) as etl:
        found = read_status(etl)
    if as_json:
        show_json({"topics": found})
        return
    show_status(found)


def read_status(etl: Etl) -> list[TopicStatus]:
    from oncehouse.etl.planning import due_steps
    from oncehouse.etl.sources import read_sources, tables_to_ask

    snapshot = read_offsets(etl)
    sources = read_sources(etl.client, tables_to_ask(etl.work))
    decisions = due_steps(
        etl.work, snapshot.offsets, sources, snapshot.now_ms, lease_seconds=etl.settings.lease
    )
    makers = {topic.dst: topic.topic for topic in etl.work}
    described = (
        _describe(_look_closer(etl, decision), makers, snapshot.offsets, sources) for decision in decisions
    )
    return _add_checks(etl, described)


def _add_checks(etl: Etl, described: Iterable[TopicStatus]) -> list[TopicStatus]:
    """Results of expectations that the lineage has now; others are history."""
    from oncehouse.etl.check_log import read_latest_checks
    from oncehouse.etl.expectations import spell_expectation

    wanted = {topic.topic: {spell_expectation(one) for one in topic.expect} for topic in etl.work}
    if not any(wanted.values()):
        return list(described)
    latest = read_latest_checks(etl.client, etl.settings.database)
    return [
        replace(
            one,
            checks=tuple(row for row in latest.get(one.topic, ()) if row.expectation in wanted[one.topic]),
        )
        for one in described
    ]


def _look_closer(etl: Etl, decision: Decision) -> Decision:
    """A topic may be due by its times and yet have no row up to there: its new ones wait for a slower source."""
    from oncehouse.etl.planning import Due, Waiting
    from oncehouse.etl.sources import find_range

    topic = decision.topic
    if not isinstance(decision, Due) or topic.template != Template.STEP:
        return decision
    last, upper_ms = decision.offset.last, decision.upper_ms
    if find_range(etl.client, topic.depends_on[0], last=last, upper_ms=upper_ms, maxstep_rows=1) is not None:
        return decision
    bound = spell_position_time(Position(time_ms=upper_ms, id=0))
    reason = f"its new rows are after {bound}, where its slowest source less the delay is"
    return Waiting(topic=topic, offset=decision.offset, reason=reason)


def _describe(
    decision: Decision,
    makers: Mapping[str, str],
    offsets: Mapping[str, Offset],
    sources: Mapping[str, SourceState],
) -> TopicStatus:
    topic, offset = decision.topic, decision.offset
    return TopicStatus(
        topic=topic.topic,
        dst=topic.dst,
        decision=type(decision).__name__.lower(),
        reason=getattr(decision, "reason", ""),
        last=offset.last,
        next=offset.next,
        rows=offset.rows,
        state=offset.state,
        hostid=offset.hostid,
        lag_seconds={
            table: _lag_seconds(newest, offset.last)
            for table in topic.depends_on
            for newest in [_newest(table, makers, offsets, sources)]
        },
    )


def _newest(
    table: str, makers: Mapping[str, str], offsets: Mapping[str, Offset], sources: Mapping[str, SourceState]
) -> Position | None:
    """The newest row of a table that was asked; of another one, how far the topic that builds it has come."""
    if table in sources:
        return sources[table].newest
    built = offsets.get(makers.get(table, ""))
    return built.last if built is not None and built.last != START else None


def _lag_seconds(newest: Position | None, last: Position) -> float | None:
    return None if newest is None else max(0, newest.time_ms - last.time_ms) / 1000


def seek(
    topic: TopicName,
    position: Annotated[
        str, typer.Argument(metavar="POSITION", help='"start", or a time in UTC with or without ",ID".')
    ],
    file: SettingsFile = DEFAULT_SETTINGS,
    *,
    as_json: AsJson = False,
) -> None:
    """Let the topic go on after POSITION. Rows that it has already built are not taken back."""
    from oncehouse.etl import offsets

    wanted = parse_position(position)
    with open_etl(file) as etl:
        name = _name(etl, topic)
        before = read_offsets(etl).offsets.get(name)
        row = offsets.seek(etl.store, name, wanted, lease_seconds=etl.settings.lease)
    told = f"{topic} goes on after {spell_position_time(row.last)}, {row.last.id}"
    if before is not None and row.last < before.last:
        told += f"\n{_REWOUND}"
    _show_offset(row, told, as_json=as_json)


def unlock(topic: TopicName, file: SettingsFile = DEFAULT_SETTINGS, *, as_json: AsJson = False) -> None:
    """Free the topic from whoever holds it. Its open range stays, and runs again unchanged."""
    from oncehouse.etl import offsets

    _change(file, topic, offsets.unlock, f"{topic} is free", as_json=as_json)


def pause(topic: TopicName, file: SettingsFile = DEFAULT_SETTINGS, *, as_json: AsJson = False) -> None:
    """Begin no further step of the topic."""
    from oncehouse.etl import offsets

    _change(file, topic, offsets.pause, f"{topic} is paused", as_json=as_json)


def resume(topic: TopicName, file: SettingsFile = DEFAULT_SETTINGS, *, as_json: AsJson = False) -> None:
    """Let a paused topic go on."""
    from oncehouse.etl import offsets

    _change(file, topic, offsets.resume, f"{topic} goes on", as_json=as_json)


def _change(
    file: SettingsFile, topic: str, change: Callable[[OffsetStore, str], Offset], told: str, *, as_json: bool
) -> None:
    with open_etl(file) as etl:
        row = change(etl.store, _name(etl, topic))
    _show_offset(row, told, as_json=as_json)


def _name(etl: Etl, topic: str) -> str:
    found: Topic = find_topic(etl, topic)
    read_offsets(etl)  # tells what to do when there is no table yet
    return found.topic


def _show_offset(row: Offset, told: str, *, as_json: bool) -> None:
    if as_json:
        show_json(row)
    else:
        say(told)


def parse_position(text: str) -> Position:
    """`start`, or `2026-11-15T12:00:00.123,42`; without an id, before all rows of that time."""
    if text.strip().lower() == "start":
        return START
    time, comma, id_text = (part.strip() for part in text.partition(","))
    try:
        moment = datetime.fromisoformat(time)
        id_ = int(id_text) if comma else 0
    except ValueError:
        raise ConfigurationError(
            f"{text!r} is no position; write start, 2026-11-15T12:00:00.123 or 2026-11-15T12:00:00.123,42"
        ) from None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    time_ms = round(moment.timestamp() * 1000)
    if time_ms < 0 or not 0 <= id_ < 1 << 64:
        raise ConfigurationError(f"{text!r} is out of range; times begin in 1970, ids end before 2^64")
    return Position(time_ms=time_ms, id=id_)
