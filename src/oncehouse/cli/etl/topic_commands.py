"""What people change by hand about a topic: seek, unlock, pause, resume, and back-fills."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from oncehouse.cli.arguments import AsJson
from oncehouse.cli.etl.options import (
    DEFAULT_SETTINGS,
    Etl,
    SettingsFile,
    TopicName,
    find_source,
    find_topic,
    open_etl,
    read_offsets,
)
from oncehouse.cli.output import say, show_json
from oncehouse.common.json_documents import Answer, Inlined
from oncehouse.config.field_types import parse_duration
from oncehouse.errors import ConfigurationError
from oncehouse.etl.lineage.topic import Template
from oncehouse.etl.state.models import Offset
from oncehouse.etl.state.position import MAX_ID, START, Position, before
from oncehouse.etl.status_text import format_position

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncehouse.etl.lineage.topic import Topic


@dataclass(frozen=True, kw_only=True)
class TopicOffset(
    Answer, of=("etl seek", "etl unlock", "etl pause", "etl resume", "etl backfill", "etl declare")
):
    offset: Inlined[Offset]


def seek(
    topic: TopicName,
    position: Annotated[
        str, typer.Argument(metavar="POSITION", help='"start", or a time in UTC with or without ",ID".')
    ],
    file: SettingsFile = DEFAULT_SETTINGS,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Although the table holds rows after POSITION: they are doubled.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Let the topic continue after POSITION. Rows that it has built stay: delete them first."""
    from oncehouse.etl.state import topic_lease, transitions
    from oncehouse.etl.steps.stale_queries import end_inserts

    wanted = parse_position(position)
    with open_etl(file) as etl:
        found = find_topic(etl, topic)
        snapshot = read_offsets(etl)
        seen = snapshot.offsets.get(found.topic) or topic_lease.new_offset(found.topic)
        no_worker = topic_lease.TopicWorker(hostid="", lease_seconds=etl.settings.lease)
        topic_lease.check_free(seen, no_worker, snapshot.now_ms)
        end_inserts(etl.client, found)  # of a process that died: what it still inserts would be doubled
        if not force:
            check_emptied(etl, found, wanted, max(seen.reached, seen.next))  # an open range may be there, too
        row = transitions.seek(
            etl.store,
            found.topic,
            wanted,
            lease_seconds=etl.settings.lease,
            drops_open=force,
            forced_upto=_find_newest(etl, found) if force else START,
            seen=None if force else seen,
        )
    _show_offset(row, f"{topic} goes on after {format_position(row.last)}", as_json=as_json)


def check_emptied(etl: Etl, topic: Topic, after: Position, upto: Position) -> None:
    """Refused when the table still holds rows of a range that is to be built again."""
    from oncehouse.etl.steps.source_ranges import count_range

    if after >= upto or not _has_positions(etl, topic):
        return
    if rows := count_range(etl.client, topic.dst, last=after, next_=upto):
        raise ConfigurationError(
            f"{topic.dst} still holds {rows} rows of what would be built again, and they would be doubled. Delete them "
            "first (TRUNCATE, DROP PARTITION or DELETE, and wait until it is done)."
        )


def _find_newest(etl: Etl, topic: Topic) -> Position:
    """The newest row of the table, where steps look for rows after their offsets."""
    from oncehouse.etl.steps.destination_check import find_newest_row

    is_checked = etl.store.view_table is None and _has_positions(etl, topic)
    return find_newest_row(etl.client, topic.dst) if is_checked else START


def _has_positions(etl: Etl, topic: Topic) -> bool:
    """Whether the rows of the table can be found by their positions."""
    from oncehouse.clickhouse.table_info import describe_table
    from oncehouse.etl.steps.destination_check import shows_positions

    facts = describe_table(etl.client, topic.dst) if topic.template is Template.STEP else None
    return facts is not None and shows_positions(facts)


def unlock(topic: TopicName, file: SettingsFile = DEFAULT_SETTINGS, *, as_json: AsJson = False) -> None:
    """Release the lease of the topic. Its open range stays, and runs again unchanged."""
    from oncehouse.monitoring.actions import unlock_topic

    _change(file, topic, unlock_topic, f"{topic} is free", as_json=as_json)


def pause(topic: TopicName, file: SettingsFile = DEFAULT_SETTINGS, *, as_json: AsJson = False) -> None:
    """Start no further step of the topic. A step that runs is finished."""
    from oncehouse.monitoring.actions import pause_topic

    with open_etl(file) as etl:
        row = pause_topic(etl, topic)
    under_way = f" after the step that {row.hostid} is at" if row.hostid else ""
    _show_offset(row, f"{topic} is paused{under_way}", as_json=as_json)


def resume(topic: TopicName, file: SettingsFile = DEFAULT_SETTINGS, *, as_json: AsJson = False) -> None:
    """Resume a paused topic, or one that late rows have stopped: these rows are accepted."""
    from oncehouse.monitoring.actions import resume_topic

    _change(file, topic, resume_topic, f"{topic} goes on", as_json=as_json)


def _change(
    file: SettingsFile, topic: str, change: Callable[[Etl, str], Offset], message: str, *, as_json: bool
) -> None:
    with open_etl(file) as etl:
        row = change(etl, topic)
    _show_offset(row, message, as_json=as_json)


def _show_offset(row: Offset, message: str, *, as_json: bool) -> None:
    if as_json:
        show_json(TopicOffset(offset=row))
    else:
        say(message)


def declare(
    topic: Annotated[str, typer.Argument(metavar="SOURCE", help="A topic that only declares a source.")],
    position: Annotated[
        str | None,
        typer.Argument(
            metavar="POSITION",
            help="A time in UTC with or without ',ID': no row at or before it will arrive.",
        ),
    ] = None,
    file: SettingsFile = DEFAULT_SETTINGS,
    *,
    consumer: Annotated[
        str,
        typer.Option(
            "--as", metavar="NAME", help="Name of the loader that declares; from then on, no other may."
        ),
    ] = "etl declare",
    take_back: Annotated[
        bool, typer.Option("--withdraw", help="Use the newest row of the table again.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also move back, or replace the declaration of another loader.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Declare that a source is complete up to POSITION: no row at or before it will arrive."""
    from oncehouse.etl.state import declarations

    if (position is None) is not take_back:
        raise ConfigurationError("name a POSITION, or --withdraw the declaration: one of the two")
    with open_etl(file) as etl:
        source = find_source(etl, topic)
        read_offsets(etl)
        if position is None:
            row = declarations.withdraw(etl.store, source.topic)
            message = f"{source.dst} has come as far as its newest row"
        else:
            upto = parse_declared(position)
            row = declarations.declare(etl.store, source.topic, upto, consumer=consumer, is_forced=force)
            message = f"{source.dst} is declared to have come to {format_position(row.last)}"
    _show_offset(row, message, as_json=as_json)


def parse_declared(text: str) -> Position:
    """A time without an id: rows of that very time may still come."""
    upto = parse_position(text)
    if upto == START:
        raise ConfigurationError("a declaration needs a time; --withdraw takes it back")
    return upto


def backfill(
    topic: TopicName,
    file: SettingsFile = DEFAULT_SETTINGS,
    *,
    from_: Annotated[
        str,
        typer.Option("--from", metavar="POSITION", help="Where the range begins; the first row by default."),
    ] = "start",
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="POSITION", help="Where it ends; the position of the topic by default."),
    ] = None,
    every: Annotated[
        str, typer.Option("--every", metavar="TIME", help="Least time between two of its steps.")
    ] = "0s",
    maxstep: Annotated[
        int | None,
        typer.Option("--maxstep", min=1, help="Rows of the main source a step; the topic's by default."),
    ] = None,
    emptied: Annotated[
        bool, typer.Option("--emptied", help="The rows of the range were deleted: build them again.")
    ] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="End the back-fill of the topic.")] = False,
    as_json: AsJson = False,
) -> None:
    """Let `run` fill the gaps of a range, whenever no forward step of the topic is due."""
    from oncehouse.etl.state import backfill_transitions

    after, upto = parse_position(from_), None if to is None else parse_position(to)
    with open_etl(file) as etl:
        found = find_topic(etl, topic)
        seen = read_offsets(etl).offsets.get(found.topic)
        if cancel:
            row = backfill_transitions.cancel_backfill(etl.store, found.topic)
            _show_offset(row, f"{topic}: no further step of its back-fill is begun", as_json=as_json)
            return
        if emptied and seen is not None:
            check_emptied(etl, found, after, min(upto or seen.reached, seen.reached))
            upto = upto or seen.reached  # as far as was looked, wherever the topic is by now
        row = backfill_transitions.order_backfill(
            etl.store,
            found,
            after=after,
            upto=upto,
            every_seconds=_read_pace(every),
            maxstep_rows=maxstep,
            is_emptied=emptied,
            seen=seen,
            lease_seconds=etl.settings.lease,
        )
    _show_offset(
        row, f"{topic}: `oncehouse etl run` fills its gaps; status shows how far it is", as_json=as_json
    )


def _read_pace(text: str) -> float:
    try:
        return float(str(parse_duration(text)))
    except ValueError as error:
        raise ConfigurationError(f"--every: {error}") from None


def parse_position(text: str) -> Position:
    """`start`, or `2026-11-15T12:00:00.123,42`; without an id, before all rows of that time."""
    if text.strip().lower() == "start":
        return START
    time, comma, id_text = (part.strip() for part in text.partition(","))
    try:
        moment = datetime.fromisoformat(time)
        id_ = int(id_text) if comma else None
    except ValueError:
        raise ConfigurationError(
            f"{text!r} is no position; write start, 2026-11-15T12:00:00.123 or 2026-11-15T12:00:00.123,42"
        ) from None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    time_ms = round(moment.timestamp() * 1000)
    if time_ms < 0 or not 0 <= (id_ or 0) <= MAX_ID:
        raise ConfigurationError(f"{text!r} is out of range; times begin in 1970, ids end before 2^64")
    return before(time_ms) if id_ is None else Position(time_ms=time_ms, id=id_)
