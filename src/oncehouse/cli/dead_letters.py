"""`oncehouse dead-letters`: records that could not become rows; look at them, and have them tried again.

A dead letter is named by its position, `topic/partition/offset`. Its bytes are shown to whoever asks for that
one letter, and never by a list.
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
    from collections.abc import Iterator

    import pyarrow as pa

    from oncehouse.config import Pipeline
    from oncehouse.ledger.records import DeadLetterFile
    from oncehouse.pipeline.letters import Selection

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
    from oncehouse.pipeline.letters import Selection

    pipeline = load_pipeline(file)
    files = find_files(pipeline, reason=reason)
    counts = count_reasons(files)
    letters = list(newest_letters(pipeline, files, Selection(reason=reason), limit=limit))
    if as_json:
        show_json({"reasons": counts, "dead_letters": [_without_bytes(letter) for letter in letters]})
        return
    show_table(["reason", "letters"], counts.items(), empty="no dead letters")
    if letters:
        say("")
        show_table(
            ["position", "time (UTC)", "reason", "detail"],
            [
                (spell_position(x), f"{x['timestamp']:%Y-%m-%d %H:%M:%S}", x["reason"], x["detail"])
                for x in letters
            ],
            empty="",
        )


@app.command()
def show(position: _At, file: File = DEFAULT_FILE, *, as_json: AsJson = False) -> None:
    """Show one dead letter with its bytes."""
    from oncehouse.pipeline.letters import Selection

    pipeline = load_pipeline(file)
    selection = Selection(positions=(parse_position(position),))
    letter = next(newest_letters(pipeline, find_files(pipeline), selection, limit=1), None)
    if letter is None:
        raise ConfigurationError(
            f"No dead letter at {position}; `oncehouse dead-letters list` shows those there are."
        )
    if as_json:
        show_json({**letter, "value_text": readable(letter["value"])})
        return
    facts = {name: letter[name] for name in ("topic", "partition", "offset", "timestamp", "reason", "detail")}
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
    if not find_files(pipeline, reason=reason):
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


def spell_position(letter: dict[str, Any]) -> str:
    return f"{letter['topic']}/{letter['partition']}/{letter['offset']}"


def find_files(pipeline: Pipeline, *, reason: str | None = None) -> tuple[DeadLetterFile, ...]:
    """Open files of letters, those that hold the reason when one is given; an unknown reason is an error."""
    from oncehouse.ledger.epochs import list_dead_letter_files

    with open_ledger(pipeline) as catalog:
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


def newest_letters(
    pipeline: Pipeline, files: tuple[DeadLetterFile, ...], selection: Selection, *, limit: int
) -> Iterator[dict[str, Any]]:
    """Letters of the newest files first; no more files are read than it takes."""
    from oncehouse.ledger.files import FileStore
    from oncehouse.pipeline.letters import read_letters

    store = FileStore(pipeline.ledger.files)
    for file in reversed(files):
        letters: pa.Table = read_letters(store, [file.file])
        chosen = letters.filter(selection.chosen(letters))
        rows = chosen.slice(max(0, chosen.num_rows - limit)).to_pylist()
        yield from reversed(rows)
        limit -= len(rows)
        if limit <= 0:
            return


def readable(raw: bytes | None) -> str | None:
    """Bytes as text; what is not UTF-8 is spelt out."""
    return None if raw is None else raw.decode("utf-8", "backslashreplace")


def _without_bytes(letter: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in letter.items() if name not in {"key", "value"}}
