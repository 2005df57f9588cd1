"""`oncehouse inbox`: make its tables, look at messages, put parked ones right. Running it is `inbox_run.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from oncehouse.cli.arguments import DEFAULT_MESSAGING_FILE, AsJson, MessagingFile
from oncehouse.cli.messaging.inbox_options import OneInbox, open_inbox
from oncehouse.cli.messaging.inbox_run import serve, work
from oncehouse.cli.output import format_time, say, show_facts, show_json, show_table
from oncehouse.cli.pager import paged
from oncehouse.common.json_documents import Answer, Inlined
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from oncehouse.messaging.inbox.admin import ConsumerStatus, InboxEntry, InboxStatus
    from oncehouse.messaging.inbox.expiry import Cleaned

app = typer.Typer(
    no_args_is_help=True, help="Inbox: messages that are handled once, stored ones and their workers."
)
app.command()(work)
app.command()(serve)

_Ids = Annotated[list[str] | None, typer.Option("--id", metavar="ID", help="This message; may be repeated.")]
_All = Annotated[bool, typer.Option("--all", help="Every one of the inbox.")]
_States = Annotated[
    list[str] | None,
    typer.Option("--state", help="waiting, parked, done or dropped; may be repeated. Default: parked."),
]


@dataclass(frozen=True, kw_only=True)
class InboxStatements(Answer, of=("inbox init",)):
    statements: list[str]
    ran: bool


@dataclass(frozen=True, kw_only=True)
class InboxList(Answer, of=("inbox status",)):
    inboxes: list[InboxStatus]
    consumers: list[ConsumerStatus]


@dataclass(frozen=True, kw_only=True)
class EntryList(Answer, of=("inbox list", "inbox show")):
    messages: list[InboxEntry]


@dataclass(frozen=True, kw_only=True)
class ChangedEntries(Answer, of=("inbox retry", "inbox drop")):
    messages: list[str]
    """Their ids."""


@dataclass(frozen=True, kw_only=True)
class Cleanup(Answer, of=("inbox cleanup",)):
    cleaned: Inlined[Cleaned]


@app.command()
def init(
    file: MessagingFile = DEFAULT_MESSAGING_FILE,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Run the statements. What exists is kept.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the statements that create the tables of the inbox; with --yes, run them."""
    from oncehouse.messaging.inbox.tables import create_tables, ddl

    with open_inbox(file) as opened:
        statements = ddl(opened.engine.dialect)
        if yes:
            with opened.transact("making its tables") as connection:
                create_tables(connection)
    if as_json:
        show_json(InboxStatements(statements=statements, ran=yes))
        return
    for statement in statements:
        say(f"{statement};\n")
    say("-- done" if yes else "-- nothing was changed; --yes runs these statements")


@app.command()
@paged()
def status(file: MessagingFile = DEFAULT_MESSAGING_FILE, *, as_json: AsJson = False) -> None:
    """Show what waits, fails and is parked in each stored inbox, and what consumers remember."""
    from oncehouse.messaging.inbox.admin import read_consumers, read_inboxes

    with open_inbox(file) as opened, opened.transact("reading its status") as connection:
        inboxes, consumers = read_inboxes(connection), read_consumers(connection)
    if as_json:
        show_json(InboxList(inboxes=inboxes, consumers=consumers))
        return
    show_table(
        ["inbox", "waiting", "failing", "parked", "done", "dropped", "oldest waiting (s)", "workers"],
        [
            (
                one.inbox,
                one.waiting,
                one.failing,
                one.parked,
                one.done,
                one.dropped,
                one.oldest_seconds,
                len(one.workers),
            )
            for one in inboxes
        ],
        empty="no messages in stored inboxes",
    )
    say("")
    show_table(
        ["consumer", "ids remembered", "oldest (s)"],
        [(one.consumer, one.ids, one.oldest_seconds) for one in consumers],
        empty="no ids remembered by `once`",
    )


@app.command("list")
@paged()
def list_(
    file: MessagingFile = DEFAULT_MESSAGING_FILE,
    *,
    inbox: OneInbox = None,
    state: _States = None,
    after: Annotated[
        int, typer.Option("--after", metavar="NUMBER", help="Only messages after this number.")
    ] = 0,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most this many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List messages of stored inboxes in order of arrival. Default: the dead letters."""
    from oncehouse.messaging.inbox.admin import list_entries
    from oncehouse.messaging.inbox.tables import InboxState

    try:
        states = [InboxState(one) for one in state or [InboxState.PARKED]]
    except ValueError as error:
        raise ConfigurationError(f"{error}; states are {', '.join(InboxState)}") from None
    with open_inbox(file) as opened, opened.transact("listing messages") as connection:
        found = list_entries(connection, name=inbox, states=states, after=after, limit=limit)
    if as_json:
        show_json(EntryList(messages=found))
        return
    show_table(
        ["number", "inbox", "id", "state", "attempts", "received (UTC)", "error"],
        [
            (
                one.sequence,
                one.inbox,
                one.message_id,
                one.state,
                one.attempts,
                format_time(one.received_at),
                _first_line(one.error),
            )
            for one in found
        ],
        empty="no such message" if state else "no parked messages",
    )


@app.command()
@paged()
def show(
    message_id: Annotated[
        str, typer.Argument(metavar="ID", help="Id of the message, as `inbox list` shows it.")
    ],
    file: MessagingFile = DEFAULT_MESSAGING_FILE,
    *,
    inbox: OneInbox = None,
    as_json: AsJson = False,
) -> None:
    """Show one message with its bytes and why it is where it is."""
    from oncehouse.messaging.inbox.admin import find_entries

    with open_inbox(file) as opened, opened.transact("looking up a message") as connection:
        found = find_entries(connection, message_id, name=inbox)
    if not found:
        raise ConfigurationError(
            f"no stored inbox has a message {message_id!a}; `oncehouse inbox list` shows them"
        )
    if as_json:
        show_json(EntryList(messages=found))
        return
    for one in found:
        _show(one)


def _show(entry: InboxEntry) -> None:
    message = entry.message
    show_facts(
        {
            "inbox": entry.inbox,
            "id": entry.message_id,
            "number": entry.sequence,
            "state": entry.state,
            "attempts": entry.attempts,
            "came from": message.position if message.offset >= 0 else "the HTTP inlet",
            "received (UTC)": format_time(entry.received_at),
            "settled (UTC)": format_time(entry.settled_at),
            "error": entry.error,
            "key": _format_payload(message.key),
            "value": _format_payload(message.value),
            **{f"header {name}": _format_payload(value) for name, value in message.headers},
        }
    )
    say("")


@app.command()
def retry(
    file: MessagingFile = DEFAULT_MESSAGING_FILE,
    *,
    ids: _Ids = None,
    everything: _All = False,
    inbox: OneInbox = None,
    as_json: AsJson = False,
) -> None:
    """Retry parked or failing messages at once, in their old place, with a new count of attempts."""
    from oncehouse.monitoring.actions import retry_inbox

    chosen = _chosen(ids, everything=everything)
    with open_inbox(file) as opened:
        changed = retry_inbox(opened, opened.settings.require_name(inbox), chosen)
    _print_changed(changed, "will be tried again by the workers", as_json=as_json)


@app.command()
def drop(
    file: MessagingFile = DEFAULT_MESSAGING_FILE,
    *,
    ids: _Ids = None,
    everything: _All = False,
    inbox: OneInbox = None,
    as_json: AsJson = False,
) -> None:
    """Drop parked messages: they are never handled, and repeats of them are skipped."""
    from oncehouse.messaging.inbox.admin import drop_entries

    chosen = _chosen(ids, everything=everything)
    with open_inbox(file) as opened:
        settings = opened.settings
        name = settings.require_name(inbox)
        with opened.transact("dropping messages") as connection:
            changed = drop_entries(connection, name, chosen, keep_seconds=settings.keep)
    _print_changed(changed, "dropped", as_json=as_json)


@app.command()
def cleanup(file: MessagingFile = DEFAULT_MESSAGING_FILE, *, as_json: AsJson = False) -> None:
    """Delete expired ids and finished messages, in batches. Workers do so by themselves."""
    from oncehouse.messaging.inbox.expiry import clean_database

    with open_inbox(file) as opened:
        cleaned = clean_database(opened.engine)
    if as_json:
        show_json(Cleanup(cleaned=cleaned))
    else:
        say(f"forgot {cleaned.ids:,} ids and {cleaned.messages:,} finished messages")


def _chosen(ids: list[str] | None, *, everything: bool) -> list[str] | None:
    if bool(ids) == everything:
        raise ConfigurationError("say which messages: --id ID, as often as needed, or --all")
    return ids


def _print_changed(changed: list[str], what: str, *, as_json: bool) -> None:
    if as_json:
        show_json(ChangedEntries(messages=changed))
    else:
        say(f"{len(changed):,} {'message' if len(changed) == 1 else 'messages'} {what}")


def _first_line(text: str | None) -> str | None:
    return None if text is None else text.partition("\n")[0]


def _format_payload(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"{len(value):,} bytes: {value[:200].hex(' ')}"
