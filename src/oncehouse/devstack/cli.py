"""`oncehouse dev`: the stack from the command line.

Errors are raised; the main command makes exits of them.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from oncehouse.common.json_documents import Answer
from oncehouse.devstack import stack

app = typer.Typer(
    no_args_is_help=True,
    help="Real Kafka and ClickHouse on this machine, for development. Not for production.",
)

_PIPE_WIDTH = 100_000

_Folder = Annotated[Path, typer.Option("--folder", help="Where the stack keeps its data, logs and ports.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_With = Annotated[
    str, typer.Option("--with", help=f"Extra parts, separated by commas: {', '.join(stack.EXTRA_PARTS)}.")
]


@dataclass(frozen=True, kw_only=True)
class PartList(Answer, of=("dev up", "dev status")):
    parts: list[stack.PartStatus]


@dataclass(frozen=True, kw_only=True)
class StoppedParts(Answer, of=("dev down",)):
    stopped: list[str]


@app.command()
def up(*, extras: _With = "", folder: _Folder = stack.DEFAULT_FOLDER, as_json: _Json = False) -> None:
    """Start Kafka and ClickHouse, and the extras asked for. What runs already is kept."""
    parts = [*stack.DEFAULT_PARTS, *(name.strip() for name in extras.split(",") if name.strip())]
    console = Console(stderr=True)
    started = stack.up(folder, parts, say=lambda message: console.print(message, highlight=False))
    _show(started.status(), folder, as_json=as_json)


@app.command()
def down(*, folder: _Folder = stack.DEFAULT_FOLDER, as_json: _Json = False) -> None:
    """Stop what runs. Data and ports stay for the next `up`."""
    stopped = stack.down(folder)
    if as_json:
        _show_json(StoppedParts(stopped=stopped))
    else:
        typer.echo(
            f"stopped {', '.join(stopped)}" if stopped else f"nothing was running in {folder.absolute()}"
        )


@app.command()
def status(*, folder: _Folder = stack.DEFAULT_FOLDER, as_json: _Json = False) -> None:
    """Show each part: whether it answers, where, and its log."""
    _show(stack.status(folder), folder, as_json=as_json)


def _show_json(answer: Answer) -> None:
    typer.echo(json.dumps(asdict(answer), default=str))


def _show(parts: list[stack.PartStatus], folder: Path, *, as_json: bool) -> None:
    if as_json:
        _show_json(PartList(parts=parts))
        return
    if not parts:
        typer.echo(f"no stack in {folder.absolute()}; start one with: oncehouse dev up")
        return
    table = Table("part", "state", "pid", "address", Column("log", overflow="fold"), box=None, pad_edge=False)
    for part in parts:
        state = "ready" if part.ready else "starting" if part.running else "stopped"
        table.add_row(part.part, state, str(part.pid or ""), part.address, str(part.log))
    # Without a terminal nothing is wrapped or cut, so that other tools read it.
    Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH).print(table, highlight=False)
