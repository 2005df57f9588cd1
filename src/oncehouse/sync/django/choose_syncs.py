"""Which syncs a management command works with: the named ones of the project, or all that are enabled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oncehouse.sync.discovery import choose_captured, choose_syncs
from oncehouse.sync.django.model_sync import ModelSync
from oncehouse.sync.model.model_sync import ModelSync as CoreModelSync
from oncehouse.sync.model.model_sync import registered_syncs


def find(names: Sequence[str]) -> list[type[CoreModelSync]]:
    """The named ones; without names all."""
    return choose_syncs([sync for sync in registered_syncs() if issubclass(sync, ModelSync)], names)


def choose(names: Sequence[str], tell: Callable[[str], object]) -> list[type[CoreModelSync]]:
    """Without names those whose changes are written down."""
    chosen = choose_captured(find(names), names)
    for line in chosen.told:
        tell(line)
    return chosen.syncs
