"""Which syncs a management command works with: the named ones of the project, or all that are enabled."""

from __future__ import annotations

from collections.abc import Sequence

from oncehouse.sync.django.model_sync import ModelSync
from oncehouse.sync.model_sync import ModelSync as CoreModelSync
from oncehouse.sync.model_sync import registered_syncs
from oncehouse.sync.opening import choose_syncs


def choose(names: Sequence[str]) -> list[type[CoreModelSync]]:
    ours = [sync for sync in registered_syncs() if issubclass(sync, ModelSync)]
    chosen = choose_syncs(ours, names)
    return chosen if names else [sync for sync in chosen if sync.is_captured()]
