"""Options by which commands say which dead letters are meant, and how they become a selection."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncehouse.pipeline.dead_letters.filter import Selection, Span
    from oncehouse.pipeline.dead_letters.jsonl import DeadLetterPosition

Reason = Annotated[
    str | None, typer.Option("--reason", help="Only dead letters of this reason, such as not_json.")
]
Topic = Annotated[str | None, typer.Option("--topic", help="Only dead letters of this topic.")]
Since = Annotated[
    str | None,
    typer.Option("--since", help="Only records of this time or later, such as 2026-11-15T12:00 (UTC)."),
]
Until = Annotated[str | None, typer.Option("--until", help="Only records before this time.")]
At = Annotated[str, typer.Argument(metavar="POSITION", help="topic/partition/offset, as the list shows it.")]
Ats = Annotated[
    list[str] | None,
    typer.Option(
        "--at",
        help="Only the dead letter at topic/partition/offset, or those at …/first-last; may be repeated.",
    ),
]

_POSITION = re.compile(r"(?P<topic>[^/]+)/(?P<partition>\d+)/(?P<offset>\d+)(?:/(?P<row>\d+))?")
_SPAN = re.compile(r"(?P<topic>[^/]+)/(?P<partition>\d+)/(?P<first>\d+)(?:-(?P<last>\d+))?")


def make_selection(
    *, reason: str | None, topic: str | None, since: str | None, until: str | None, at: Sequence[str] | None
) -> Selection:
    from oncehouse.pipeline.dead_letters.filter import Selection

    return Selection(
        reason=reason,
        topic=topic,
        since=parse_time(since),
        until=parse_time(until),
        positions=tuple(parse_span(text) for text in at or ()),
    )


def parse_time(text: str | None) -> float | None:
    """A moment in ISO 8601; without a zone it is meant in UTC."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"{text!r} is not a time; write it like 2026-11-15, 2026-11-15T12:30 or 2026-11-15T12:30:00+01:00"
        ) from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def parse_span(text: str) -> Span:
    from oncehouse.pipeline.dead_letters.filter import Span

    found = _SPAN.fullmatch(text)
    if found is None:
        raise ConfigurationError(
            f"{text!r} is not a position; write topic/partition/offset or topic/partition/first-last, such as "
            "events/0/42 or events/0/40-50"
        )
    first = int(found["first"])
    return Span(
        topic=found["topic"],
        partition=int(found["partition"]),
        first=first,
        last=int(found["last"] or first),
    )


def parse_position(text: str) -> DeadLetterPosition:
    from oncehouse.pipeline.dead_letters.jsonl import DeadLetterPosition

    found = _POSITION.fullmatch(text)
    if found is None:
        raise ConfigurationError(
            f"{text!r} is not a position; write topic/partition/offset, such as events/0/42 (and /row for one of "
            "several rows of a message)"
        )
    return DeadLetterPosition(
        topic=found["topic"],
        partition=int(found["partition"]),
        offset=int(found["offset"]),
        row=int(found["row"] or 0),
    )
