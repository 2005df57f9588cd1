"""`oncehouse outbox status`, `retry` and `drop`: how the outbox stands, and a hand on what is parked."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from oncehouse.cli.arguments import DEFAULT_MESSAGING_FILE, AsJson, MessagingFile
from oncehouse.cli.output import decode_text, say, show_facts, show_json, show_table
from oncehouse.cli.pager import paged
from oncehouse.common.formatting import format_elapsed
from oncehouse.common.json_documents import Answer, Inlined

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncehouse.messaging.outbox.open import OpenedOutbox
    from oncehouse.messaging.outbox.parked import ParkedChange, ParkedMessage, ParkedSelection
    from oncehouse.messaging.outbox.status import OutboxStatus

Ids = Annotated[
    list[UUID] | None, typer.Option("--id", metavar="ID", help="A parked message; may be repeated.")
]
Topic = Annotated[str | None, typer.Option("--topic", help="All parked messages of this topic.")]
All = Annotated[bool, typer.Option("--all", help="All parked messages.")]


@dataclass(frozen=True, kw_only=True)
class OutboxFigures(Answer, of=("outbox status",)):
    status: Inlined[OutboxStatus]


@dataclass(frozen=True, kw_only=True)
class ReleasedMessages(Answer, of=("outbox retry",)):
    moved: Inlined[ParkedChange]


@dataclass(frozen=True, kw_only=True)
class DroppedMessages(Answer, of=("outbox drop",)):
    dropped: bool
    moved: Inlined[ParkedChange]


@paged()
def status(file: MessagingFile = DEFAULT_MESSAGING_FILE, *, as_json: AsJson = False) -> None:
    """Show what waits and for how long, what is parked and why, and which relays are alive."""
    with open_file(file) as outbox:
        found = outbox.status()
    if as_json:
        show_json(OutboxFigures(status=found))
        return
    show_facts(list_facts(found))
    if found.relays:
        say("")
        show_table(
            ["relay", "buckets", "state"],
            [
                (r.holder, r.buckets, "gone" if not r.live else "asleep" if r.asleep else "busy")
                for r in found.relays
            ],
            empty="",
        )
    if found.parked:
        say("")
        show_parked(found.parked_messages)
        if found.parked > len(found.parked_messages):
            say(f"and {found.parked - len(found.parked_messages):,} more")


def list_facts(found: OutboxStatus) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "outbox": found.table,
        "waiting": found.waiting,
        "oldest": format_age(found.oldest_seconds),
        "parked": found.parked,
        "behind them": found.behind,
    }
    if found.sent_kept:
        facts["sent, kept"] = found.sent_kept
    if found.failing:
        facts["failing"] = f"{found.attempts:,} attempts so far, the last: {found.last_error}"
    if not any(relay.live for relay in found.relays):
        facts["relays"] = "none at work; `oncehouse outbox relay` starts one"
    elif found.free_buckets:
        facts["buckets without a relay"] = found.free_buckets
    return facts


def show_parked(messages: tuple[ParkedMessage, ...]) -> None:
    show_table(
        ["parked", "topic", "key", "behind", "attempts", "age", "why"],
        [
            (m.id, m.topic, decode_text(m.key), m.behind, m.attempts, format_age(m.age_seconds), m.error)
            for m in messages
        ],
        empty="nothing is parked",
    )


def retry(
    file: MessagingFile = DEFAULT_MESSAGING_FILE,
    *,
    ids: Ids = None,
    topic: Topic = None,
    every: All = False,
    as_json: AsJson = False,
) -> None:
    """Send parked messages again, and what waits behind them, in their order."""
    which = _which(ids, topic, every=every)
    with open_file(file) as outbox:
        moved = outbox.retry(which)
    if as_json:
        show_json(ReleasedMessages(moved=moved))
    else:
        say(f"let go: {moved.messages:,} messages, and {moved.freed:,} that waited behind them")


def drop(
    file: MessagingFile = DEFAULT_MESSAGING_FILE,
    *,
    ids: Ids = None,
    topic: Topic = None,
    every: All = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; they are never sent.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show parked messages; with --yes, delete them unsent. What waits behind them is sent."""
    which = _which(ids, topic, every=every)
    with open_file(file) as outbox:
        moved = outbox.drop(which) if yes else outbox.count(which)
    if as_json:
        show_json(DroppedMessages(dropped=yes, moved=moved))
        return
    said = "dropped" if yes else "nothing was changed; --yes would drop"
    say(f"{said}: {moved.messages:,} messages; {moved.freed:,} that wait behind them are sent")


@contextmanager
def open_file(file: Path) -> Iterator[OpenedOutbox]:
    from oncehouse.messaging.outbox.open import open_outbox
    from oncehouse.messaging.settings import load_messaging

    settings = load_messaging(file)
    with open_outbox(settings.require_database(), settings.outbox.table) as opened:
        yield opened


def _which(ids: list[UUID] | None, topic: str | None, *, every: bool) -> ParkedSelection:
    from oncehouse.messaging.outbox.parked import ParkedSelection

    return ParkedSelection(ids=ids or (), topic=topic, all=every)


def format_age(seconds: float | None) -> str | None:
    return None if seconds is None else format_elapsed(max(0.0, seconds))
