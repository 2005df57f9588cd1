"""The published schema of `--json`: written from the code, for every command, and true of what they print."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer

from answer_schemas import SCHEMA, load_writer, published, validator
from oncehouse.cli import output
from oncehouse.cli.app import app, run_command
from oncehouse.cli.output import show_json
from oncehouse.cli.pipeline.run import RunEnd
from oncehouse.common.json_documents import ANSWERS
from oncehouse.config.file_loader import example_text
from oncehouse.pipeline.progress import Progress

SERVE_UNTIL_STOPPED = {"dashboard", "inbox serve"}
"""They say where they listen, and log lines after that (`--log-format json`)."""


@cache
def whole_command() -> Any:
    return typer.main.get_command(app)


def commands(group: Any = None, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, command in (group or whole_command()).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        if not hasattr(command, "commands") or command.invoke_without_command:
            yield " ".join([*words, name]), command


def takes_json(command: Any) -> bool:
    return any("--json" in parameter.opts for parameter in command.params)


def groups_only(command: Any) -> bool:
    return hasattr(command, "commands") and not takes_json(command)


def test_the_published_schema_is_the_one_of_the_code():
    written = load_writer().write_schema()
    assert SCHEMA.read_text(encoding="utf-8") == written, "run `python tools/cli_schema.py`"


def test_it_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(published())


def test_every_command_that_shows_something_does_so_as_json():
    without = {words for words, command in commands() if not takes_json(command) and not groups_only(command)}
    assert without == SERVE_UNTIL_STOPPED


def test_every_answer_has_a_schema_and_every_schema_a_command():
    assert {words for words, command in commands() if takes_json(command)} == set(ANSWERS)
    assert set(published()["$defs"]["commands"]) == set(ANSWERS)


@pytest.mark.parametrize(
    "words",
    [
        "version",
        "init",
        "plan-capacity --events-a-day 1M --event-size 200",
        "grants",
        "chaos --list",
        "table create",
        "schema list",
        "dev status",
    ],
)
def test_what_a_command_prints_fits_the_schema_of_its_words(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if words != "init":
        Path("pipeline.yaml").write_text(example_text(), encoding="utf-8")
    arguments = words.split()
    assert run_command([*arguments, "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    name = " ".join(arguments[: 2 if arguments[0] in {"table", "schema", "dev"} else 1])
    validator(f"commands/{name}").validate(json.loads(line))


def test_events_of_a_run_are_told_apart_by_the_schema():
    told = output.plain(RunEnd(progress=Progress(), parked=0, refused=[]))
    validator("commands/run").validate(told)
    for wrong in ({**told, "parked": "none"}, {**told, "event": "over"}, {"event": "end"}):
        with pytest.raises(jsonschema.ValidationError):
            validator("commands/run").validate(wrong)


def test_an_answer_that_its_schema_does_not_know_fails_the_test_that_shows_it(capsys):
    with pytest.raises(jsonschema.ValidationError, match="'many'"):
        show_json(RunEnd(progress=Progress(), parked="many", refused=[]))


def test_a_field_that_is_not_published_is_noticed():
    writer = load_writer()

    @dataclass(frozen=True, kw_only=True)
    class Grown(RunEnd, of=()):
        further: int = 0

    made = writer.Writer(Grown)
    made.name(Grown)
    assert made.definitions["Grown"]["required"][-1] == "further"
