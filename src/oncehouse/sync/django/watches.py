"""Which changes of which models mean that a row of a sync changed: of the model itself, and of others that it shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.core.exceptions import FieldDoesNotExist

from oncehouse.errors import ConfigurationError
from oncehouse.sync.django.key_fields import final_field, key_fields
from oncehouse.sync.django.model_sync import ModelSync
from oncehouse.sync.django.source_engine import is_same_database
from oncehouse.sync.model.watch_map import WatchMap
from oncehouse.sync.tables import operations

_WHOLE_NUMBERS = {
    *("AutoField", "BigAutoField", "SmallAutoField", "IntegerField", "BigIntegerField", "SmallIntegerField"),
    *("PositiveIntegerField", "PositiveBigIntegerField", "PositiveSmallIntegerField"),
}
# Values that PostgreSQL's json_build_array spells as `spell_key` does.
_SAME_TEXT_FORM = {*_WHOLE_NUMBERS, *("CharField", "TextField", "SlugField", "UUIDField")}
_HAS_TABLE = {
    "postgresql": "SELECT to_regclass(%s) IS NOT NULL",
    "sqlite": "SELECT count(*) > 0 FROM sqlite_master WHERE name = %s",
}


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
    def columns(self) -> frozenset[str]:
        """Of the changed table."""
        return frozenset(field.column for field in self.fields)

    @cached_property
    def has_same_text_form(self) -> bool:
        """Whether PostgreSQL spells its keys as we do."""
        return all(_has_type(field, _SAME_TEXT_FORM) for field in self.fields)

    @cached_property
    def is_whole_number(self) -> bool:
        return len(self.fields) == 1 and _has_type(self.fields[0], _WHOLE_NUMBERS)


def _has_type(field: Any, types: set[str]) -> bool:
    field = final_field(field)
    return field.get_internal_type() in types and not hasattr(field, "from_db_value")


def find_watches(table: str, alias: str) -> tuple[Watch, ...]:
    """By the table, not by the model: the models of a migration are made for it, and two models may share a table."""
    found = _map.find(table)
    return (
        tuple([watch for watch in found if is_same_database(watch.sync.source_alias(), alias)])
        if found
        else ()
    )


def _watches_of(sync: type[ModelSync]) -> Iterable[tuple[Any, Watch]]:
    meta = sync.django_model._meta  # noqa: SLF001 - Django's public interface of a model
    yield meta.db_table, Watch(sync=sync, fields=key_fields(sync.django_model), is_own=True)
    for parent in meta.get_parent_list():
        # A row of a child is spread over the tables of its parents, under the same key.
        table = parent._meta.db_table  # noqa: SLF001
        yield table, Watch(sync=sync, fields=key_fields(parent), is_own=False, is_parent=True)
    for column in sync.model_columns():
        if column.many is not None:
            through = column.many.remote_field.through._meta  # noqa: SLF001
            link = through.get_field(column.many.m2m_field_name())
            yield through.db_table, Watch(sync=sync, fields=(link,), is_own=False)
    for model, name in sync.watch.items():
        table = model._meta.db_table  # noqa: SLF001
        yield table, Watch(sync=sync, fields=(_find_link(sync, model, name),), is_own=False)


def _find_link(sync: type[ModelSync], model: Any, name: Any) -> Any:
    """The foreign key of a watched model, which has to hold our key."""
    meta = sync.django_model._meta  # noqa: SLF001
    try:
        field = model._meta.get_field(name)  # noqa: SLF001
    except FieldDoesNotExist:
        field = None
    ours = {meta.concrete_model, *meta.get_parent_list()}
    if not getattr(field, "concrete", False) or not (field.many_to_one or field.one_to_one):
        problem = "is no foreign key"
    elif field.remote_field.model._meta.concrete_model not in ours:  # noqa: SLF001
        problem = f"is a foreign key to {field.remote_field.model._meta.label}"  # noqa: SLF001
    elif not field.target_field.primary_key:
        problem = f"holds {field.target_field.name}, which is not the primary key"
    else:
        return field
    raise ConfigurationError(
        f"{sync.__name__}.watch: {name!r} of {model._meta.label} {problem}: whose row of {meta.label} changes with one "  # noqa: SLF001
        f"of its rows is unknown. Name a foreign key to {meta.label} by its primary key."
    )


def is_of_migration(model: Any) -> bool:
    """Whether a data migration (`RunPython` over `apps.get_model`) changes rows, by a model that is made for it."""
    return bool(model.__module__ == "__fake__")


def select_ready_watches(connection: Any, meta: Any, watches: Sequence[Watch]) -> tuple[Watch, ...]:
    """Of these watches those that the database is ready for, which may be older than the program.

    While the tables of model sync are missing nothing was ever synced, so a backfill has to come anyway.
    """
    if not _has_tables(connection):
        return ()
    columns = {field.column for field in meta.concrete_fields}
    return tuple(watch for watch in watches if watch.columns <= columns)


def _has_tables(connection: Any) -> bool:
    statement = _HAS_TABLE.get(connection.vendor)
    if statement is None:
        return True
    with connection.cursor() as cursor:
        cursor.execute(statement, [operations.name])
        return bool(cursor.fetchone()[0])


_map = WatchMap(ModelSync, _watches_of)
