"""Which syncs a command works with: those of the modules it is given, and of the Django project it stands in."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from oncehouse.common.extras import needs_extra
from oncehouse.common.plugin_loader import import_user_module
from oncehouse.errors import ConfigurationError
from oncehouse.sync.model.model_sync import ModelSync, registered_syncs

_DJANGO = "DJANGO_SETTINGS_MODULE"


def find_syncs(modules: Sequence[str], names: Iterable[str] = ()) -> list[type[ModelSync]]:
    """Import what declares syncs and choose among them; without names all."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    if os.environ.get(_DJANGO):
        _set_up_django()
    for module in modules:
        import_user_module(module)
    return select_syncs(registered_syncs(), names)


def select_syncs(syncs: Sequence[type[ModelSync]], names: Iterable[str]) -> list[type[ModelSync]]:
    if not syncs:
        raise ConfigurationError(
            f"there is no sync: name the modules that declare some with --module, or set {_DJANGO} to a project that "
            "has oncehouse.sync.django among INSTALLED_APPS"
        )
    known = {_name(sync): sync for sync in syncs}
    wanted = list(names)
    if unknown := [name for name in wanted if name not in known]:
        raise ConfigurationError(f"there is no sync {unknown[0]!a}; there are: {', '.join(known)}")
    return [known[name] for name in wanted] if wanted else list(syncs)


@dataclass(frozen=True, kw_only=True)
class SelectedSyncs:
    syncs: list[type[ModelSync]]
    notes: list[str]
    """Why others, or all, are not among them."""


def select_captured(syncs: Sequence[type[ModelSync]], names: Sequence[str]) -> SelectedSyncs:
    """Without names, those whose changes are written down."""
    if names:
        return SelectedSyncs(syncs=list(syncs), notes=[])
    captured = [sync for sync in syncs if sync.is_captured()]
    return SelectedSyncs(syncs=captured, notes=[] if captured else [_explain_none(syncs)])


def select_to_verify(
    syncs: Sequence[type[ModelSync]], names: Sequence[str], *, repair: bool
) -> SelectedSyncs:
    """Without names, those that are enabled. What CDC feeds can be compared, and not repaired."""
    if names:
        return SelectedSyncs(syncs=list(syncs), notes=[])
    enabled = [sync for sync in syncs if sync.sync_enabled]
    if not enabled:
        return SelectedSyncs(syncs=[], notes=[_explain_none(syncs)])
    if not repair:
        return SelectedSyncs(syncs=enabled, notes=[])
    notes = [
        f"{_name(sync)}: left out, CDC feeds it and --repair is for what rounds feed; without --repair it is compared"
        for sync in enabled
        if sync.is_by_cdc()
    ]
    return SelectedSyncs(syncs=[sync for sync in enabled if sync.is_captured()], notes=notes)


def _explain_none(syncs: Sequence[type[ModelSync]]) -> str:
    fed = [_name(sync) for sync in syncs if sync.sync_enabled]
    if fed:
        return f"no sync has operations: CDC feeds {', '.join(fed)}"
    names = ", ".join(_name(sync) for sync in syncs)
    return f"no sync is enabled; with sync_enabled = True in its class one is noticed and synced ({names})"


def _name(sync: type[ModelSync]) -> str:
    return sync.sync_name or sync.__name__


def _set_up_django() -> None:
    with needs_extra("django", f"{_DJANGO} is set, which"):
        opening = importlib.import_module("oncehouse.sync.django.setup")
    opening.set_up()
