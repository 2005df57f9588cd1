"""The arguments that the commands of `oncehouse sync` share, and the syncs that they mean."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from oncehouse.sync.model.model_sync import ModelSync

Modules = Annotated[
    list[str] | None,
    typer.Option(
        "--module",
        metavar="MODULE",
        help="A module that declares syncs, such as shop.syncs; may be repeated. A Django project is found by "
        "DJANGO_SETTINGS_MODULE.",
    ),
]
Names = Annotated[list[str] | None, typer.Argument(metavar="[SYNC]...", help="Only these; without any, all.")]


def find(modules: list[str] | None, names: list[str] | None) -> list[type[ModelSync]]:
    from oncehouse.sync.discovery import find_syncs

    return find_syncs(modules or [], names or [])


def find_enabled(modules: list[str] | None, names: list[str] | None) -> list[type[ModelSync]]:
    """Without names, those whose changes are written down."""
    from oncehouse.sync.discovery import select_captured

    chosen = select_captured(find(modules, names), names or ())
    print_notes(chosen.notes)
    return chosen.syncs


def print_notes(lines: Iterable[str]) -> None:
    """To stderr, apart from what a command prints for programs."""
    for line in lines:
        sys.stderr.write(f"{line}\n")
