"""Dead letters out of the ledger and back: exported to a file or a topic, edited, and left as a request.

Exporting changes nothing. An edit is put into the ledger next to the original, and only the process that reads
Kafka decodes it: with its original position, so that an event which arrived in the meantime is a duplicate.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oncehouse.cli.arguments import DEFAULT_FILE, AsJson, File
from oncehouse.cli.open_ledger import open_ledger
from oncehouse.cli.output import say, show_error, show_json
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
from oncehouse.common.file_permissions import open_private
from oncehouse.common.json_documents import Answer
from oncehouse.common.process_folder import process_folder
from oncehouse.config.field_types import check_topic
from oncehouse.config.file_loader import load_pipeline
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from oncehouse.config.pipeline import Pipeline
    from oncehouse.ledger.models import DeadLetterFile
    from oncehouse.ledger.storage.file_store import FileStore
    from oncehouse.pipeline.dead_letters.filter import Selection
    from oncehouse.pipeline.dead_letters.jsonl import DeadLetterPosition, Edit


@dataclass(frozen=True, kw_only=True)
class SentDeadLetters(Answer, of=("dead-letters export",)):
    topic: str
    sent: int
    known: int


@dataclass(frozen=True, kw_only=True)
class WrittenDeadLetters(Answer, of=("dead-letters export",)):
    file: Path
    letters: int


@dataclass(frozen=True, kw_only=True)
class LeftEdits(Answer, of=("dead-letters import", "dead-letters edit")):
    request: int
    edited: int
    unchanged: int


def export(
    file: File = DEFAULT_FILE,
    *,
    to: Annotated[str | None, typer.Option("--to", help="The Kafka topic to copy them to.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write them to, a line of JSON each.")
    ] = None,
    reason: Reason = None,
    topic: Topic = None,
    since: Since = None,
    until: Until = None,
    at: Ats = None,
    as_json: AsJson = False,
) -> None:
    """Copy dead letters to a file for editing (default: standard output), or to a Kafka topic.

    They stay in the ledger. A topic gets each dead letter once: what it has is not sent again.
    """
    if to is not None and output is not None:
        raise ConfigurationError(
            "Export goes to a topic (--to) or to a file (--output), not to both at once."
        )
    pipeline = load_pipeline(file)
    selection = make_selection(reason=reason, topic=topic, since=since, until=until, at=at)
    dead_letters = read_all(pipeline, selection)
    if to is not None:
        _export_to_topic(pipeline, to, dead_letters, as_json=as_json)
    else:
        _export_to_file(output, dead_letters, as_json=as_json)


def _export_to_topic(
    pipeline: Pipeline, topic: str, dead_letters: Iterable[dict[str, Any]], *, as_json: bool
) -> None:
    from oncehouse.pipeline.dead_letters.kafka_export import export_dead_letters
    from oncehouse.pipeline.ingest.kafka_source import KafkaTopics

    try:
        check_topic(topic)
    except ValueError as error:
        raise ConfigurationError(f"--to: {error}") from None
    kafka = pipeline.source.kafka
    if kafka is None:
        raise ConfigurationError(
            f"--to: pipeline {pipeline.pipeline} has no Kafka to export to; write a file with --output instead."
        )
    if topic in kafka.topics:
        raise ConfigurationError(
            f"The pipeline reads the topic {topic!r} itself: its dead letters would come back to it for ever. "
            "Name another topic."
        )
    partitions = range(KafkaTopics(kafka).describe(topic)[topic].partitions)
    done = export_dead_letters(kafka, pipeline.pipeline, topic, dead_letters, partitions=partitions)
    if as_json:
        show_json(SentDeadLetters(topic=topic, sent=done.sent, known=done.known))
    else:
        say(f"{done.sent} dead letters were sent to {topic}; {done.known} were there already")


def _export_to_file(output: Path | None, dead_letters: Iterable[dict[str, Any]], *, as_json: bool) -> None:
    from oncehouse.pipeline.dead_letters.jsonl import write_line

    if output is None:
        for dead_letter in dead_letters:
            sys.stdout.write(write_line(dead_letter) + "\n")
        return
    number = 0
    try:
        # Dead letters may hold private data, and an older file may hold edits.
        with os.fdopen(open_private(output, new=True), "w", encoding="utf-8") as target:
            for dead_letter in dead_letters:
                target.write(write_line(dead_letter) + "\n")
                number += 1
    except FileExistsError:
        raise ConfigurationError(f"{output} exists already; name another file or remove it first.") from None
    except OSError as error:
        raise ConfigurationError(f"{output} cannot be written: {error.strerror}") from error
    if as_json:
        show_json(WrittenDeadLetters(file=output, letters=number))
    else:
        say(
            f"{number} dead letters are in {output}; `oncehouse dead-letters import {output}` takes edited ones"
        )


def import_(
    edited: Annotated[
        Path, typer.Argument(metavar="EDITED", help="File of edited dead letters, as `export` wrote it.")
    ],
    file: File = DEFAULT_FILE,
    *,
    as_json: AsJson = False,
) -> None:
    """Decode edited dead letters in place of the originals; unchanged lines are ignored."""
    from oncehouse.pipeline.dead_letters.jsonl import read_lines

    pipeline = load_pipeline(file)
    try:
        with edited.open(encoding="utf-8") as lines:
            edits = list(read_lines(lines))
    except OSError as error:
        raise ConfigurationError(f"{edited} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigurationError(f"{edited} is not UTF-8 text; write other bytes as value_base64") from None
    _leave_edits(pipeline, edits, as_json=as_json)


def edit(
    position: At,
    file: File = DEFAULT_FILE,
    *,
    value_file: Annotated[
        Path | None,
        typer.Option("--value-file", help="Take the new value from this file instead of an editor."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Edit one dead letter in $EDITOR, or take its new value from a file, and decode it."""
    from oncehouse.ledger.catalog.epochs import list_dead_letter_files
    from oncehouse.ledger.storage.file_store import FileStore
    from oncehouse.pipeline.dead_letters.jsonl import Edit

    pipeline = load_pipeline(file)
    wanted = parse_position(position)
    with open_ledger(pipeline) as catalog:
        files = list(reversed(list_dead_letter_files(catalog)))
    found = next(find_at(FileStore(pipeline.ledger.files), files, wanted), None)
    if found is None:
        raise ConfigurationError(
            f"No dead letter at {position}; `oncehouse dead-letters list` shows those there are."
        )
    value = _read_value(value_file) if value_file is not None else _edit_by_hand(found["value"] or b"")
    _leave_edits(pipeline, [Edit(position=wanted, value=value)], as_json=as_json)


def _read_value(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error


def _edit_by_hand(value: bytes) -> bytes:
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "")
    if not editor:
        raise ConfigurationError("No editor is known. Set EDITOR, or give the new value with --value-file.")
    with tempfile.TemporaryDirectory(prefix="edit-", dir=process_folder()) as folder:
        path = Path(folder) / "value"
        path.write_bytes(value)
        try:
            code = subprocess.run([*editor, str(path)], check=False).returncode
        except OSError as error:
            raise ConfigurationError(
                f"The editor {editor[0]!r} cannot be started: {error.strerror}"
            ) from error
        if code:
            raise ConfigurationError(f"The editor ended with {code}; nothing was changed.")
        changed = path.read_bytes()
    # Most editors end the last line, which the value did not have.
    return changed.removesuffix(b"\n") if not value.endswith(b"\n") else changed


def _leave_edits(pipeline: Pipeline, edits: Sequence[Edit], *, as_json: bool) -> None:
    from oncehouse.ledger.catalog.dead_letters import add_edits
    from oncehouse.ledger.catalog.epochs import list_dead_letter_files
    from oncehouse.ledger.storage.file_store import FileStore
    from oncehouse.pipeline.dead_letters.edits import match_edits

    with open_ledger(pipeline) as catalog:
        files = list_dead_letter_files(catalog)
        store = FileStore(pipeline.ledger.files)
        matched = match_edits(store, pipeline.pipeline, files, edits, now=catalog.now())
        if not matched.edited:
            show_error("nothing was edited: every value is as it was")
            raise typer.Exit(ConfigurationError.exit_code)
        number = add_edits(catalog, matched.edits)
    if as_json:
        show_json(LeftEdits(request=number, edited=matched.edited, unchanged=matched.unchanged))
    else:
        say(
            f"request {number}: edited dead letters in the ledger: {matched.edited} (unchanged and left alone: "
            f"{matched.unchanged}); a running pipeline tries them, else the next `oncehouse run`"
        )


def read_all(pipeline: Pipeline, selection: Selection) -> Iterator[dict[str, Any]]:
    """Letters that are meant, oldest first, a row group at a time."""
    from oncehouse.ledger.catalog.epochs import list_dead_letter_files
    from oncehouse.ledger.storage.file_store import FileStore
    from oncehouse.pipeline.dead_letters.reader import find_dead_letters

    with open_ledger(pipeline) as catalog:
        files = list_dead_letter_files(catalog)
    store = FileStore(pipeline.ledger.files)
    for file in files:
        if selection.may_count(file.reasons):
            for found in find_dead_letters(store, file.file, selection):
                yield from found.dead_letters.to_pylist()


def find_at(
    store: FileStore, files: Iterable[DeadLetterFile], position: DeadLetterPosition
) -> Iterator[dict[str, Any]]:
    """The dead letters at a position, in the order of the files."""
    from oncehouse.pipeline.dead_letters.filter import Selection, Span
    from oncehouse.pipeline.dead_letters.reader import find_dead_letters

    span = Span(
        topic=position.topic, partition=position.partition, first=position.offset, last=position.offset
    )
    for file in files:
        for found in find_dead_letters(store, file.file, Selection(positions=(span,))):
            yield from (
                dead_letter
                for dead_letter in found.dead_letters.to_pylist()
                if dead_letter["row"] in (None, position.row)
            )
