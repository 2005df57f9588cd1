"""`oncehouse dlq`: the dead letters of a consumer, in their Kafka topic: list, show one, replay, purge.

A dead letter is named by its position in the dead-letter topic, `topic/partition/offset`; where dead letters are
chosen, the position that the message had first does as well.
"""

from __future__ import annotations

import heapq
import sys
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oncehouse.cli.arguments import DEFAULT_MESSAGING_FILE, AsJson, MessagingFile
from oncehouse.cli.output import decode_text, format_time, say, show_facts, show_json, show_table, text_width
from oncehouse.cli.pager import paged
from oncehouse.cli.pipeline.dead_letter_options import parse_time
from oncehouse.common.json_documents import Answer, Inlined
from oncehouse.config.field_types import check_topic
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from oncehouse.messaging.retries.dead_letter_store import DeadLetterStore, ReplayResult
    from oncehouse.messaging.retries.dead_letters import (
        DeadLetterSelection,
        ErrorCount,
        ReplayMarks,
        TopicDeadLetter,
    )

app = typer.Typer(
    no_args_is_help=True,
    help="Dead letters of consumers, in their Kafka topic: list them, show one, replay, purge.",
)

_Topic = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help="The topic whose dead letters are meant, or its dead-letter topic."),
]
_Position = Annotated[
    str, typer.Argument(metavar="POSITION", help="topic/partition/offset, as the list shows it.")
]
_Named = Annotated[
    bool,
    typer.Option(
        "--named", help="TOPIC is the dead-letter topic itself, although its name does not end in .dlq."
    ),
]
_Error = Annotated[
    str | None, typer.Option("--error", help="Only dead letters whose error contains this text.")
]
_Since = Annotated[
    str | None,
    typer.Option(
        "--since", help="Only dead letters that failed at this time or later, such as 2026-11-15T12:00 (UTC)."
    ),
]
_At = Annotated[
    list[str] | None,
    typer.Option(
        "--at",
        help="Only the dead letter at topic/partition/offset, or those at …/first-last; may be repeated.",
    ),
]
_Limit = Annotated[int, typer.Option("--limit", min=0, help="List at most this many, newest first.")]
_BEGINNING_CHARACTERS = 200


@dataclass(frozen=True, kw_only=True)
class DlqDeadLetter:
    position: str
    origin: str | None
    origin_time: str | None
    attempts: int | None
    error: str | None
    failed_at: str | None
    replayed: bool
    begins: str | None


@dataclass(frozen=True, kw_only=True)
class Header:
    name: str
    value: bytes | None


@dataclass(frozen=True, kw_only=True)
class DlqList(Answer, of=("dlq list",)):
    topic: str
    errors: Mapping[str, ErrorCount]
    newest: list[DlqDeadLetter]


@dataclass(frozen=True, kw_only=True)
class DlqDeadLetterDetail(Answer, of=("dlq show",)):
    letter: Inlined[DlqDeadLetter]
    key: bytes | None
    value: bytes | None
    value_text: str | None
    headers: list[Header]


@dataclass(frozen=True, kw_only=True)
class ReplayedDeadLetters(Answer, of=("dlq replay",)):
    topic: str
    done: Inlined[ReplayResult]


@dataclass(frozen=True, kw_only=True)
class PurgedDeadLetters(Answer, of=("dlq purge",)):
    topic: str
    deleted: int
    never_replayed: int


@app.command("list")
@paged()
def list_(
    topic: _Topic,
    file: MessagingFile = DEFAULT_MESSAGING_FILE,
    *,
    error: _Error = None,
    since: _Since = None,
    at: _At = None,
    limit: _Limit = 20,
    named: _Named = False,
    as_json: AsJson = False,
) -> None:
    """Count dead letters by error, and list the newest."""
    from oncehouse.messaging.retries.dead_letters import count_by_error, select_dead_letters

    store, choice = open_store(topic, file, named=named), make_choice(error, since, at)
    marks = store.read_marks()
    newest: list[tuple[float, int, TopicDeadLetter]] = []

    def keep_newest() -> Any:
        for number, dead_letter in enumerate(select_dead_letters(store.read(), choice)):
            entry = (dead_letter.failed_at or 0.0, number, dead_letter)
            (heapq.heappush if len(newest) < limit else heapq.heappushpop)(newest, entry)
            yield dead_letter

    counts = count_by_error(keep_newest(), marks)
    shown = [dead_letter for _, _, dead_letter in sorted(newest, reverse=True)][:limit]
    if as_json:
        newest_first = [_describe(dead_letter, marks) for dead_letter in shown]
        show_json(DlqList(topic=store.topic, errors=counts, newest=newest_first))
    else:
        _show_counts(counts, empty=f"no dead letters in {store.topic}")
        for dead_letter in shown:
            _show_line(dead_letter, marks)


@app.command()
@paged()
def show(
    position: _Position, file: MessagingFile = DEFAULT_MESSAGING_FILE, *, as_json: AsJson = False
) -> None:
    """Show one dead letter with its headers and bytes."""
    from oncehouse.messaging.message import parse_position
    from oncehouse.messaging.retries.retry_routing import own_headers

    place = parse_position(position)
    if place is None:
        raise ConfigurationError(
            f"{position!a} is not a position; write topic/partition/offset, such as events.dlq/0/42"
        )
    store = open_store(place.topic, file, named=True)
    dead_letter = store.find(place.partition, place.offset)
    if dead_letter is None:
        raise ConfigurationError(
            f"No dead letter at {position}; `oncehouse dlq list {place.topic}` shows those there are."
        )
    marks = store.read_marks()
    message, described = dead_letter.message, _describe(dead_letter, marks)
    own = [(name, value) for name, value in own_headers(message)]
    if as_json:
        show_json(
            DlqDeadLetterDetail(
                letter=described,
                key=message.key,
                value=message.value,
                value_text=decode_text(message.value),
                headers=[Header(name=name, value=value) for name, value in own],
            )
        )
        return
    facts = {name: value for name, value in vars(described).items() if name != "begins"}
    show_facts(facts | {"key": decode_text(message.key)})
    for name, value in own:
        say(f"{name}: {decode_text(value) or ''}")
    say("")
    say(decode_text(message.value) or "(no value)")


@app.command()
def replay(
    topic: _Topic,
    file: MessagingFile = DEFAULT_MESSAGING_FILE,
    *,
    error: _Error = None,
    since: _Since = None,
    at: _At = None,
    to: Annotated[
        str | None, typer.Option("--to", help="Send to this topic, not to where they came from.")
    ] = None,
    named: _Named = False,
    as_json: AsJson = False,
) -> None:
    """Send dead letters back to where they came from; each once, however often this is asked for or cut off."""
    store, choice = open_store(topic, file, named=named), make_choice(error, since, at)
    done = store.replay(choice, to=None if to is None else _check(to))
    if as_json:
        show_json(ReplayedDeadLetters(topic=store.topic, done=done))
        return
    say(f"{done.sent:,} sent, {done.known:,} replayed before")
    if done.strangers:
        say(
            f"{done.strangers:,} left: they do not say that they came from a topic of {store.topic}; name one by --to"
        )


@app.command()
def purge(
    topic: _Topic,
    file: MessagingFile = DEFAULT_MESSAGING_FILE,
    *,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            help="Only dead letters that failed before this time; a partition ends at the first newer one.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
    named: _Named = False,
    as_json: AsJson = False,
) -> None:
    """Delete dead letters permanently, after a summary and a question."""
    from oncehouse.messaging.retries.dead_letters import count_by_error, plan_purge

    store = open_store(topic, file, named=named)
    marks = store.read_marks()
    ends, gone = plan_purge(store.read(), parse_time(until))
    counts = count_by_error(gone, marks)
    lost = sum(tally.letters - tally.replayed for tally in counts.values())
    if not as_json:
        _show_counts(counts, empty=f"no dead letters to purge in {store.topic}")
    if gone and not yes:
        _ask(
            f"\nDelete {len(gone):,} dead letters of {store.topic}, {lost:,} of them never replayed?",
            as_json=as_json,
        )
    if ends:
        store.delete(ends)
    if as_json:
        show_json(PurgedDeadLetters(topic=store.topic, deleted=len(gone), never_replayed=lost))
    elif gone:
        say(f"{len(gone):,} deleted")


def open_store(topic: str, file: Path, *, named: bool) -> DeadLetterStore:
    from oncehouse.messaging.retries.dead_letter_store import DeadLetterStore
    from oncehouse.messaging.retries.dead_letters import dead_letter_topic_of
    from oncehouse.messaging.settings import load_messaging

    kafka = load_messaging(file).require_kafka()
    return DeadLetterStore(
        dead_letter_topic_of(_check(topic), named=named),
        bootstrap_servers=kafka.bootstrap_servers,
        options=kafka.options,
    )


def make_choice(error: str | None, since: str | None, at: Sequence[str] | None) -> DeadLetterSelection:
    from oncehouse.messaging.retries.dead_letters import DeadLetterSelection, parse_offset_span

    return DeadLetterSelection(
        error=error, since=parse_time(since), spans=tuple(parse_offset_span(text) for text in at or ())
    )


def _check(topic: str) -> str:
    try:
        return check_topic(topic)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def _ask(question: str, *, as_json: bool) -> None:
    if as_json or not sys.stdin.isatty():
        raise ConfigurationError("Nothing was deleted; say --yes to delete without being asked")
    if not typer.confirm(question):
        raise typer.Exit(1)


def _show_counts(counts: Mapping[str, ErrorCount], *, empty: str) -> None:
    rows = [(kind, tally.letters, tally.replayed) for kind, tally in counts.items()]
    show_table(["error", "dead letters", "replayed"], rows, empty=empty)


def _show_line(dead_letter: TopicDeadLetter, marks: ReplayMarks) -> None:
    described = _describe(dead_letter, marks)
    failed = format_time(dead_letter.failed_at)
    replayed = "  (replayed)" if described.replayed else ""
    say(f"\n{described.position}  {failed}  from {described.origin or 'an unknown topic'}{replayed}")
    width = text_width() - 2
    if dead_letter.error:
        say(textwrap.fill(dead_letter.error, width, initial_indent="  ", subsequent_indent="  ", max_lines=3))
    if (begins := described.begins) is not None:
        say(f"  {begins if len(begins) <= width else begins[: width - 1] + '…'}")


def _describe(dead_letter: TopicDeadLetter, marks: ReplayMarks) -> DlqDeadLetter:
    from oncehouse.messaging.retries.dead_letters import is_replayed, position_of
    from oncehouse.monitoring.dead_letters import show_beginning

    value = dead_letter.message.value
    return DlqDeadLetter(
        position=str(position_of(dead_letter.message)),
        origin=None if dead_letter.origin is None else str(dead_letter.origin),
        origin_time=_moment(dead_letter.origin_time),
        attempts=dead_letter.attempts,
        error=dead_letter.error,
        failed_at=_moment(dead_letter.failed_at),
        replayed=is_replayed(dead_letter, marks),
        begins=None if value is None else show_beginning(value[: _BEGINNING_CHARACTERS * 4]),
    )


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else format_time(seconds)
