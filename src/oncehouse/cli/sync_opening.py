"""The arguments that the commands of `oncehouse sync` share, and the syncs that they mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from oncehouse.sync.model_sync import ModelSync

Modules = Annotated[
    list[str] | None,
    typer.Option(
        "--module",
        metavar="MODULE",
        help="A module that declares syncs, such as shop.syncs; as often as needed. A Django project is found by "
        "DJANGO_SETTINGS_MODULE.",
    ),
]
Names = Annotated[list[str] | None, typer.Argument(metavar="[SYNC]...", help="Only these; without any, all.")]


def find(modules: list[str] | None, names: list[str] | None) -> list[type[ModelSync]]:
    from oncehouse.sync.opening import find_syncs

    return find_syncs(modules or [], names or [])


def find_enabled(modules: list[str] | None, names: list[str] | None) -> list[type[ModelSync]]:
    """Without names, those that are enabled."""
    return [sync for sync in find(modules, names) if names or sync.is_captured()]
