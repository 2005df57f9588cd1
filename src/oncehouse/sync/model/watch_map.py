"""What is watched in a process: for each table or model the watches of the syncs that its changes concern.

Every statement that a framework runs asks, so what is known is kept until another sync has been imported or enabled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from oncehouse.sync.model.model_sync import ModelSync, list_captured, registered_syncs

Sync = TypeVar("Sync", bound=ModelSync)
Watch = TypeVar("Watch")


class WatchMap(Generic[Sync, Watch]):
    def __init__(
        self, framework: type[Sync], watches_of: Callable[[type[Sync]], Iterable[tuple[Any, Watch]]]
    ) -> None:
        self._framework = framework
        self._watches_of = watches_of
        # One value, so that no thread ever sees the watches of another list of syncs.
        self._known: tuple[list[type[ModelSync]], dict[Any, tuple[Watch, ...]]] = ([], {})

    def find(self, watched: Any) -> tuple[Watch, ...]:
        enabled = list_captured()
        known = self._known
        if known[0] != enabled:
            known = self._known = (enabled, self._find_watches(enabled))
        return known[1].get(watched, ())

    def _find_watches(self, enabled: list[type[ModelSync]]) -> dict[Any, tuple[Watch, ...]]:
        watches: dict[Any, tuple[Watch, ...]] = {}
        for sync in registered_syncs():
            if issubclass(sync, self._framework) and sync in enabled:
                for watched, watch in self._watches_of(sync):
                    watches[watched] = (*watches.get(watched, ()), watch)
        return watches
