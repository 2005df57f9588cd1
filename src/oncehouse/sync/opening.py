"""Which syncs a command works with: those of the modules it is given, and of the Django project it stands in."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from oncehouse.errors import ConfigurationError
from oncehouse.sync.model_sync import ModelSync, registered_syncs
from oncehouse.user_modules import import_user_module

_DJANGO = "DJANGO_SETTINGS_MODULE"


def find_syncs(modules: Sequence[str], names: Iterable[str] = ()) -> list[type[ModelSync]]:
    """Import what declares syncs and choose among them; without names all."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    if os.environ.get(_DJANGO):
        _set_up_django()
    for module in modules:
        import_user_module(module)
    return choose_syncs(registered_syncs(), names)


def choose_syncs(syncs: Sequence[type[ModelSync]], names: Iterable[str]) -> list[type[ModelSync]]:
    if not syncs:
        raise ConfigurationError(
            f"there is no sync: name the modules that declare some with --module, or set {_DJANGO} to a project that "
            "has oncehouse.sync.django among INSTALLED_APPS"
        )
    known = {sync.sync_name or sync.__name__: sync for sync in syncs}
    wanted = list(names)
    if unknown := [name for name in wanted if name not in known]:
        raise ConfigurationError(f"there is no sync {unknown[0]!a}; there are: {', '.join(known)}")
    return [known[name] for name in wanted] if wanted else list(syncs)


@dataclass(frozen=True, kw_only=True)
class ToVerify:
    syncs: list[type[ModelSync]]
    left_out: list[str]
    """Why others are not among them."""


def choose_to_verify(syncs: Sequence[type[ModelSync]], names: Sequence[str], *, repair: bool) -> ToVerify:
    """Without names, those that are enabled. What CDC feeds can be compared, and not repaired."""
    if names:
        return ToVerify(syncs=list(syncs), left_out=[])
    enabled = [sync for sync in syncs if sync.sync_enabled]
    if not repair:
        return ToVerify(syncs=enabled, left_out=[])
    names = [sync.sync_name or sync.__name__ for sync in enabled if sync.is_by_cdc()]
    told = [
        f"{name}: left out, CDC feeds it and --repair is for what rounds feed; without --repair it is compared"
        for name in names
    ]
    return ToVerify(syncs=[sync for sync in enabled if sync.is_captured()], left_out=told)


def _set_up_django() -> None:
    try:
        opening = importlib.import_module("oncehouse.sync.django.opening")
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{_DJANGO} is set, but the package {error.name} is not installed; install oncehouse[django]"
        ) from None
    opening.set_up()
