"""`oncehouse dead-letters`: records that could not become rows; look at them, and have them tried again.

A dead letter is named by its position, `topic/partition/offset`. A list shows how its value begins; all of
it is shown by `dead-letters show`. Commands that edit or copy dead letters are in `dead_letter_edits.py`.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oncehouse.cli.arguments import DEFAULT_FILE, AsJson, File
from oncehouse.cli.open_ledger import open_ledger
from oncehouse.cli.output import decode_text, say, show_facts, show_json, show_table, text_width
from oncehouse.cli.pager import paged
from oncehouse.cli.pipeline import dead_letter_edits
from oncehouse.cli.pipeline.dead_letter_options import (
    At,
    Ats,
    Reason,
    Since,
    Topic,
    Until,
    make_selection,
    parse_position,
)
from oncehouse.cli.pipeline.requests import print_request
from oncehouse.common.json_documents import Answer, Inlined
from oncehouse.config.file_loader import load_pipeline
from oncehouse.errors import ConfigurationError
from oncehouse.ledger.models import RequestKind

if TYPE_CHECKING:
    from datetime import datetime

    from oncehouse.config.pipeline import Pipeline
    from oncehouse.monitoring.dead_letters import DeadLetter, DeadLetterPage
    from oncehouse.pipeline.dead_letters.jsonl import DeadLetterPosition

app = typer.Typer(
    no_args_is_help=True,
    help="Dead letters: list, show, edit, export and replay them.",
)
app.command("export")(dead_letter_edits.export)
app.command("import")(dead_letter_edits.import_)
app.command("edit")(dead_letter_edits.edit)

_Limit = Annotated[int, typer.Option("--limit", min=1, help="At most this many, newest first.")]
_After = Annotated[
    str | None, typer.Option("--after", help="Continue after the page that ended with this position.")
]


@dataclass(frozen=True, kw_only=True)
class DeadLetterList(Answer, of=("dead-letters list",)):
    reasons: dict[str, int]
    page: Inlined[DeadLetterPage]


@dataclass(frozen=True, kw_only=True)
class DeadLetterContent:
    """A dead letter as it lies in the ledger, its bytes also as text; of an edit, also what it became."""

    topic: str
    partition: int
    offset: int
    row: int | None
    timestamp: datetime | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    schema: str | None
    reason: str
    detail: str | None
    hint: str | None
    value_text: str | None
    edited: bytes | None
    edited_text: str | None


@dataclass(frozen=True, kw_only=True)
class DeadLetterDetail(Answer, of=("dead-letters show",)):
    letter: Inlined[DeadLetterContent | None]
    history: list[DeadLetterContent] | None
    """Its edits, newest first, where they were asked for."""


@app.command("list")
@paged()
def list_(
    file: File = DEFAULT_FILE,
    *,
    reason: Reason = None,
    topic: Topic = None,
    since: Since = None,
    until: Until = None,
    at: Ats = None,
    limit: _Limit = 50,
    after: _After = None,
    as_json: AsJson = False,
) -> None:
    """Count dead letters by reason and list the newest, each with a hint about its error."""
    from oncehouse.ledger.storage.file_store import FileStore
    from oncehouse.monitoring.actions import count_dead_letters, require_reason
    from oncehouse.monitoring.dead_letters import declared_fields, list_dead_letters

    pipeline = load_pipeline(file)
    selection = make_selection(reason=reason, topic=topic, since=since, until=until, at=at)
    with open_ledger(pipeline) as catalog:
        counts = count_dead_letters(catalog)
        require_reason(reason, counts)
        page = list_dead_letters(
            catalog,
            FileStore(pipeline.ledger.files),
            selection=selection,
            limit=limit,
            after=after,
            fields=declared_fields(pipeline),
        )
    if as_json:
        show_json(DeadLetterList(reasons=counts, page=page))
    else:
        _show_page(page, counts)


def _show_page(page: DeadLetterPage, counts: dict[str, int]) -> None:
    show_table(["reason", "letters"], counts.items(), empty="no dead letters")
    if counts and not page.dead_letters:
        say("\nnone of them is asked for")
    width = text_width() - 2
    for dead_letter in page.dead_letters:
        say(f"\n{_format_place(dead_letter)}  {dead_letter.timestamp}  {dead_letter.reason}")
        for line in (dead_letter.detail, dead_letter.hint):
            if line:
                say(textwrap.fill(line, width, initial_indent="  ", subsequent_indent="  "))
        if dead_letter.begins:
            # One line of the screen: `dead-letters show` has all of it.
            say(
                f"  {dead_letter.begins if len(dead_letter.begins) <= width else dead_letter.begins[: width - 1] + '…'}"
            )
    if page.next is not None:
        say(f"\nthere are more: --after {page.next}")


def _format_place(dead_letter: DeadLetter) -> str:
    place = f"{dead_letter.topic}/{dead_letter.partition}/{dead_letter.offset}"
    return f"{place}/{dead_letter.row}" if dead_letter.row else place


@app.command()
@paged()
def show(
    position: At,
    file: File = DEFAULT_FILE,
    *,
    history: Annotated[
        bool, typer.Option("--history", help="Also show the edits of the dead letter and its original.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter with its bytes."""
    pipeline = load_pipeline(file)
    dead_letter, edits = find_dead_letter(pipeline, parse_position(position))
    if dead_letter is None and not (history and edits):
        raise ConfigurationError(
            f"No dead letter at {position}; `oncehouse dead-letters list` shows those there are."
        )
    if as_json:
        content = None if dead_letter is None else _describe(dead_letter)
        show_json(
            DeadLetterDetail(letter=content, history=[_describe(edit) for edit in edits] if history else None)
        )
        return
    if dead_letter is None:
        say("no dead letter any more; it was edited and has become a row, a duplicate, or was skipped")
    else:
        _show_dead_letter(dead_letter)
    for edit in edits if history else ():
        say("\nedited:")
        _show_dead_letter(edit)
        say("\nto:")
        say(decode_text(edit["edited"]) or "(no value)")


def _describe(dead_letter: dict[str, Any]) -> DeadLetterContent:
    names = {field.name for field in fields(DeadLetterContent)}
    values = {name: value for name, value in dead_letter.items() if name in names}
    texts = {f"{name}_text": decode_text(dead_letter.get(name)) for name in ("value", "edited")}
    return DeadLetterContent(**{"hint": None, "edited": None, **values, **texts})


def _show_dead_letter(dead_letter: dict[str, Any]) -> None:
    names = ("topic", "partition", "offset", "row", "timestamp", "reason", "detail", "hint")
    facts = {name: str(dead_letter[name]) for name in names if dead_letter.get(name) is not None}
    show_facts({**facts, "key": decode_text(dead_letter["key"])})
    say("")
    say(decode_text(dead_letter["value"]) or "(no value)")


@app.command()
def replay(
    file: File = DEFAULT_FILE,
    *,
    reason: Reason = None,
    topic: Topic = None,
    since: Since = None,
    until: Until = None,
    at: Ats = None,
    as_json: AsJson = False,
) -> None:
    """Decode dead letters again after a correction. Default: all of them."""
    from oncehouse.monitoring.actions import request_replay

    selection = make_selection(reason=reason, topic=topic, since=since, until=until, at=at)
    with open_ledger(load_pipeline(file)) as catalog:
        number = request_replay(catalog, selection)
    print_request(number, RequestKind.REPLAY_DEAD_LETTERS, selection.to_arguments(), as_json=as_json)


def find_dead_letter(
    pipeline: Pipeline, position: DeadLetterPosition
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """The dead letter at a position with all its bytes, and the edits that were made there, newest first."""
    from oncehouse.ledger.catalog.epochs import list_all_dead_letter_files, list_dead_letter_files
    from oncehouse.ledger.models import DeadLetterKind
    from oncehouse.ledger.storage.file_store import FileStore
    from oncehouse.monitoring.dead_letters import declared_fields

    store = FileStore(pipeline.ledger.files)
    with open_ledger(pipeline) as catalog:
        files = list(reversed(list_dead_letter_files(catalog)))
        every = sorted(list_all_dead_letter_files(catalog), key=lambda found: -found.registered_at)
    dead_letter = next(dead_letter_edits.find_at(store, files, position), None)
    edits = [found for found in every if found.kind is DeadLetterKind.EDIT]
    if dead_letter is not None:
        dead_letter["hint"] = _hint(dead_letter, declared_fields(pipeline))
    return dead_letter, list(dead_letter_edits.find_at(store, edits, position))


def _hint(dead_letter: dict[str, Any], fields: dict[str, Any]) -> str | None:
    from oncehouse.pipeline.dead_letters.hints import make_hint

    return make_hint(dead_letter["reason"], dead_letter["detail"] or "", dead_letter["value"], fields)
