"""`make docs`: every command with its arguments and options, written from the commands themselves."""

from __future__ import annotations

import enum
import sys
import typing
from collections.abc import Iterator
from typing import Any

import typer

from oncehouse.cli.app import app

INTRODUCTION = """# Every command and option

Written from the commands themselves when this site is built, so it is what `--help` prints. What the commands are for,
and exit codes: [the command line](cli.md).
"""


def main() -> None:
    sys.stdout.write("\n".join([INTRODUCTION, *write_page()]))


def list_commands(group: Any = None, words: tuple[str, ...] = ("oncehouse",)) -> Iterator[tuple[str, Any]]:
    """(its words, the command) of each command that does something, in the order of `--help`."""
    for name, command in (group or typer.main.get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from list_commands(command, (*words, name))
        elif not command.hidden:
            yield " ".join([*words, name]), command


def write_page() -> Iterator[str]:
    group = ""
    for words, command in list_commands():
        first = words.split()[1]
        if first != group:
            group = first
            yield f"## {first}\n"
        if words.count(" ") > 1:
            yield f"### {words}\n"
        yield f"{command.help or ''}\n"
        yield f"```text\n{words}{''.join(f' {_usage(p)}' for p in command.params)}\n```\n"
        yield from _write_table([parameter for parameter in command.params if not parameter.hidden])


def _usage(parameter: Any) -> str:
    if not is_option(parameter):
        shown = parameter.metavar or parameter.name.upper()
        return f"{shown if parameter.required else f'[{shown}]'}{'...' if parameter.nargs == -1 else ''}"
    shown = parameter.opts[0] + ("" if parameter.is_flag else f" {_value(parameter)}")
    return shown if parameter.required else f"[{shown}]"


def is_option(parameter: Any) -> bool:
    return bool(parameter.opts[0].startswith("-"))


def _value(parameter: Any) -> str:
    if parameter.metavar:
        return str(parameter.metavar)
    kinds = [parameter.type_descriptor.annotation]
    while inner := [kind for kind in typing.get_args(kinds[0]) if kind is not type(None)]:
        kinds = inner
    if isinstance(kinds[0], type) and issubclass(kinds[0], enum.Enum):
        return "|".join(str(member.value) for member in kinds[0])
    if not isinstance(kinds[0], type):
        return "|".join(map(str, kinds))
    return {"int": "NUMBER", "float": "NUMBER"}.get(kinds[0].__name__, parameter.name.upper())


def _write_table(parameters: list[Any]) -> Iterator[str]:
    if not parameters:
        return
    rows = ["| | default | |", "|---|---|---|"]
    for parameter in parameters:
        names = ", ".join(f"`{name}`{{ .option }}" for name in [*parameter.opts, *parameter.secondary_opts])
        shown = names if is_option(parameter) else f"`{parameter.metavar or parameter.name.upper()}`"
        if is_option(parameter) and not parameter.is_flag:
            shown += f" `{_value(parameter)}`".replace("|", r"\|")
        rows.append(
            f"| {shown} | {_default(parameter)} | {(parameter.help or '').replace('|', chr(92) + '|')} |"
        )
    yield "\n".join(rows) + "\n"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    default = parameter.default
    if callable(default) or default in (None, False, (), [], ""):
        return ""
    return f"`{default.value if isinstance(default, enum.Enum) else default}`"


if __name__ == "__main__":
    main()
