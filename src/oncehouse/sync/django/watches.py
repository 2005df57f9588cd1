"""Which changes of which models mean that a row of a sync changed: of the model itself, and of others that it shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from oncehouse.sync.django.key_fields import key_fields
from oncehouse.sync.django.model_sync import ModelSync
from oncehouse.sync.watch_map import WatchMap

_WHOLE_NUMBERS = {
    *("AutoField", "BigAutoField", "SmallAutoField", "IntegerField", "BigIntegerField", "SmallIntegerField"),
    *("PositiveIntegerField", "PositiveBigIntegerField", "PositiveSmallIntegerField"),
}
# Values that PostgreSQL's json_build_array spells as `spell_key` does.
_SPELLED_ALIKE = {*_WHOLE_NUMBERS, *("CharField", "TextField", "SlugField", "UUIDField")}


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

    @cached_property
    def attributes(self) -> frozenset[str]:
        """The names of the fields on the changed model."""
        return frozenset(field.attname for field in self.fields)

    @cached_property
    def is_spelled_alike(self) -> bool:
        """Whether PostgreSQL spells its keys as we do."""
        return all(_has_type(field, _SPELLED_ALIKE) for field in self.fields)

    @cached_property
    def is_whole_number(self) -> bool:
        return len(self.fields) == 1 and _has_type(self.fields[0], _WHOLE_NUMBERS)


def _has_type(field: Any, types: set[str]) -> bool:
    while field.is_relation:
        field = field.target_field
    return field.get_internal_type() in types and not hasattr(field, "from_db_value")


def find_watches(model: Any, alias: str) -> tuple[Watch, ...]:
    found = _map.find(model)
    return tuple([watch for watch in found if watch.sync.source_alias() == alias]) if found else ()


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


_map = WatchMap(ModelSync, _watches_of)
