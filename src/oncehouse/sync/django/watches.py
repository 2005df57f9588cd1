"""Which changes of which models mean that a row of a sync changed: of the model itself, and of others that it shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from oncehouse.sync.django.key_fields import key_fields
from oncehouse.sync.django.model_sync import ModelSync
from oncehouse.sync.model_sync import registered_syncs


@dataclass(frozen=True, kw_only=True)
class Watch:
    """A change of a row of some model means that a row of the sync's model changed."""

    sync: type[ModelSync]
    fields: tuple[Any, ...]
    """Of the changed model: their values are the key."""
    is_own: bool
    """The sync's model itself, so that an insert is an insert and a delete a delete."""
    is_parent: bool = False
    """A parent of the sync's model: most of its rows may be no rows of the child."""


def find_watches(model: Any, alias: str) -> tuple[Watch, ...]:
    found = _all_watches().get(model, ())
    return tuple(watch for watch in found if watch.sync.source_alias() == alias) if found else ()


_known: tuple[tuple[type[ModelSync], ...], dict[Any, tuple[Watch, ...]]] = ((), {})


def _all_watches() -> dict[Any, tuple[Watch, ...]]:
    """By model; made anew when another sync has been imported or enabled."""
    global _known  # noqa: PLW0603 - one process, one map
    syncs = tuple(sync for sync in registered_syncs() if issubclass(sync, ModelSync) and sync.is_captured())
    if _known[0] != syncs:
        watches: dict[Any, tuple[Watch, ...]] = {}
        for sync in syncs:
            for model, watch in _watches_of(sync):
                watches[model] = (*watches.get(model, ()), watch)
        _known = (syncs, watches)
    return _known[1]


def _watches_of(sync: type[ModelSync]) -> Iterable[tuple[Any, Watch]]:
    meta = sync.django_model._meta  # noqa: SLF001 - Django's public door to a model
    yield meta.concrete_model, Watch(sync=sync, fields=key_fields(sync.django_model), is_own=True)
    for parent in meta.get_parent_list():
        # A row of a child is spread over the tables of its parents, under the same key.
        yield parent, Watch(sync=sync, fields=key_fields(parent), is_own=False, is_parent=True)
    for column in sync.model_columns():
        if column.many is not None:
            through = column.many.remote_field.through._meta  # noqa: SLF001
            link = through.get_field(column.many.m2m_field_name())
            yield through.concrete_model, Watch(sync=sync, fields=(link,), is_own=False)
    for model, name in sync.watch.items():
        other = model._meta  # noqa: SLF001
        yield other.concrete_model, Watch(sync=sync, fields=(other.get_field(name),), is_own=False)
