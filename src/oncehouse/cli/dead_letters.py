"""`oncehouse dead-letters`: records that could not become rows; look at them, and have them tried again.

A dead letter is named by its position, `topic/partition/offset`. A list shows how its value begins; the whole
of it is shown to whoever asks for that one letter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from oncehouse.cli.arguments import DEFAULT_FILE, AsJson, File
from oncehouse.cli.ledger import open_ledger
from oncehouse.cli.output import say, show_facts, show_json, show_table
from oncehouse.cli.requests import leave_request
from oncehouse.config_file import load_pipeline
from oncehouse.config_problems import nearest
from oncehouse.errors import ConfigurationError
from oncehouse.ledger.records import RequestKind

if TYPE_CHECKING:
    from oncehouse.config import Pipeline
    from oncehouse.ledger.catalog import Catalog
    from oncehouse.ledger.records import DeadLetterFile

app = typer.Typer(no_args_is_help=True, help="Dead letters: list them, look at one, have them tried again.")

Position = tuple[str, int, int]

_Reason = Annotated[
    str | None, typer.Option("--reason", help="Only letters of this reason, such as not_json.")
]
_At = Annotated[str, typer.Argument(metavar="POSITION", help="topic/partition/offset, as the list shows it.")]
_Ats = Annotated[
    list[str] | None, typer.Option("--at", help="Only the letter at topic/partition/offset; may be repeated.")
]
_Limit = Annotated[int, typer.Option("--limit", min=1, help="At most this many, newest first.")]


@app.command("list")
def list_(
    file: File = DEFAULT_FILE, *, reason: _Reason = None, limit: _Limit = 50, as_json: AsJson = False
) -> None:
    """Count dead letters by reason and list the newest."""
    from oncehouse.insights import as_json as plain_view
    from oncehouse.insights import list_dead_letters
    from oncehouse.ledger.files import FileStore

    pipeline = load_pipeline(file)
    with open_ledger(pipeline) as catalog:
        counts = count_reasons(find_files(catalog, reason=reason))
        letters = list_dead_letters(catalog, FileStore(pipeline.ledger.files), reason=reason, limit=limit)
    if as_json:
        show_json({"reasons": counts, "dead_letters": [plain_view(letter) for letter in letters]})
        return
    show_table(["reason", "letters"], counts.items(), empty="no dead letters")
    if letters:
        say("")
        show_table(
            ["position", "time", "reason", "detail", "value begins"],
            [
                (f"{x.topic}/{x.partition}/{x.offset}", x.timestamp, x.reason, x.detail, x.hint)
                for x in letters
            ],
            empty="",
        )


@app.command()
def show(position: _At, file: File = DEFAULT_FILE, *, as_json: AsJson = False) -> None:
    """Show one dead letter with its bytes."""
    pipeline = load_pipeline(file)
    letter = find_letter(pipeline, parse_position(position))
    if letter is None:
        raise ConfigurationError(
            f"No dead letter at {position}; `oncehouse dead-letters list` shows those there are."
        )
    if as_json:
        show_json({**letter, "value_text": readable(letter["value"])})
        return
    facts = {
        name: str(letter[name]) for name in ("topic", "partition", "offset", "timestamp", "reason", "detail")
    }
    show_facts({**facts, "key": readable(letter["key"])})
    say("")
    say(readable(letter["value"]) or "(no value)")


@app.command()
def replay(
    file: File = DEFAULT_FILE, *, reason: _Reason = None, at: _Ats = None, as_json: AsJson = False
) -> None:
    """Have dead letters decoded again after a correction; all of them unless told which."""
    from oncehouse.pipeline.letters import Selection

    pipeline = load_pipeline(file)
    selection = Selection(reason=reason, positions=tuple(parse_position(text) for text in at or ()))
    with open_ledger(pipeline) as catalog:
        if not find_files(catalog, reason=reason):
            raise ConfigurationError("There are no dead letters to try again.")
    leave_request(pipeline, RequestKind.REPLAY_DEAD_LETTERS, selection.to_arguments(), as_json=as_json)


def parse_position(text: str) -> Position:
    topic, _, rest = text.partition("/")
    partition, _, offset = rest.partition("/")
    if not topic or not (partition.isdecimal() and offset.isdecimal()):
        raise ConfigurationError(
            f"{text!r} is not a position; write topic/partition/offset, such as events/0/42"
        )
    return topic, int(partition), int(offset)


def find_files(catalog: Catalog, *, reason: str | None = None) -> tuple[DeadLetterFile, ...]:
    """Open files of letters, those that hold the reason when one is given; an unknown reason is an error."""
    from oncehouse.ledger.epochs import list_dead_letter_files

    files = list_dead_letter_files(catalog)
    if reason is None:
        return files
    found = tuple(file for file in files if file.reasons.get(reason))
    known = count_reasons(files)
    if files and not found:
        hint = nearest(reason, known)
        raise ConfigurationError(
            f"No dead letter has the reason {reason!r}; "
            + (f"did you mean {hint!r}?" if hint else f"there are: {', '.join(known)}")
        )
    return found


def count_reasons(files: tuple[DeadLetterFile, ...]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for file in files:
        for reason, number in file.reasons.items():
            counts[reason] = counts.get(reason, 0) + number
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def find_letter(pipeline: Pipeline, position: Position) -> dict[str, Any] | None:
    """The letter at a position with all its bytes; the newest files are read first."""
    from oncehouse.ledger.epochs import list_dead_letter_files
    from oncehouse.ledger.files import FileStore
    from oncehouse.pipeline.letters import Selection, read_letters

    store, selection = FileStore(pipeline.ledger.files), Selection(positions=(position,))
    with open_ledger(pipeline) as catalog:
        files = list_dead_letter_files(catalog)
    for file in reversed(files):
        letters = read_letters(store, [file.file])
        found: list[dict[str, Any]] = letters.filter(selection.chosen(letters)).to_pylist()
        if found:
            return found[-1]
    return None


def readable(raw: bytes | None) -> str | None:
    """Bytes as text; what is not UTF-8 is spelt out."""
    return None if raw is None else raw.decode("utf-8", "backslashreplace")
