"""Where Django's changes are noticed: the three places at which it runs INSERT, UPDATE and DELETE.

Every write of the ORM passes them, whichever manager, bulk call or cascade it comes from. A statement on a watched
model also returns the keys of the rows that it changed, and these are registered on the same connection, in the same
transaction: one is begun where the program has none. Models that nobody watches pay one look-up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import django
from django.core.exceptions import EmptyResultSet, FullResultSet
from django.db import transaction
from django.db.models.sql import compiler as sql_compiler
from django.db.models.sql.constants import NO_RESULTS
from django.db.utils import OperationalError, ProgrammingError

from oncehouse.errors import ConfigurationError
from oncehouse.sync.django.model_sync import ModelSync
from oncehouse.sync.model_sync import registered_syncs
from oncehouse.sync.operations import Kind, spell_key
from oncehouse.sync.tables import ABSENT

_TESTED = (5, 2)


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


class DjangoWriter:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @property
    def vendor(self) -> str:
        return str(self._connection.vendor)

    def execute(self, statement: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(statement, dict(values) or None)
                return cursor.fetchall() if cursor.description else []
        except (ProgrammingError, OperationalError) as error:
            cause = error.__cause__
            if getattr(cause, "sqlstate", None) == "42P01" or "no such table" in str(cause):
                raise ConfigurationError(f"Model sync has no tables in this database. {ABSENT}") from error
            raise


def install() -> None:
    """Begin to notice changes. Once a process; done when the app is ready."""
    if django.VERSION[:2] != _TESTED:
        raise ConfigurationError(
            f"Model sync notices changes inside of Django's SQL compilers and is tested with Django "
            f"{'.'.join(map(str, _TESTED))}; this is {django.get_version()}. Another version could change rows "
            "unnoticed, so it is refused."
        )
    if getattr(sql_compiler, "oncehouse_sync", False):
        return
    sql_compiler.oncehouse_sync = True
    inserter, updater, deleter = (
        sql_compiler.SQLInsertCompiler,
        sql_compiler.SQLUpdateCompiler,
        sql_compiler.SQLDeleteCompiler,
    )
    inserter.execute_sql = _wrap(inserter.execute_sql, _insert)
    updater.execute_sql = _wrap(updater.execute_sql, _update)
    deleter.execute_sql = _wrap(deleter.execute_sql, _delete)


def _wrap(original: Callable[..., Any], capturing: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def execute_sql(self: Any, *arguments: Any, **named: Any) -> Any:
        watches = find_watches(self.query.get_meta().concrete_model, self.connection.alias)
        if not watches:
            return original(self, *arguments, **named)
        with transaction.atomic(using=self.connection.alias, savepoint=False):
            return capturing(self, watches, *arguments, **named)

    return execute_sql


def find_watches(model: Any, alias: str) -> tuple[Watch, ...]:
    found = _all_watches().get(model, ())
    return tuple(watch for watch in found if watch.sync.source_alias() == alias) if found else ()


_known: tuple[tuple[type[ModelSync], ...], dict[Any, tuple[Watch, ...]]] = ((), {})


def _all_watches() -> dict[Any, tuple[Watch, ...]]:
    """By model; made anew when another sync has been imported or enabled."""
    global _known  # noqa: PLW0603 - one process, one map
    syncs = tuple(sync for sync in registered_syncs() if issubclass(sync, ModelSync) and sync.sync_enabled)
    if _known[0] != syncs:
        watches: dict[Any, tuple[Watch, ...]] = {}
        for sync in syncs:
            for model, watch in _watches_of(sync):
                watches[model] = (*watches.get(model, ()), watch)
        _known = (syncs, watches)
    return _known[1]


def _watches_of(sync: type[ModelSync]) -> Iterable[tuple[Any, Watch]]:
    meta = sync.django_model._meta  # noqa: SLF001 - Django's public door to a model
    yield meta.concrete_model, Watch(sync=sync, fields=tuple(meta.pk_fields), is_own=True)
    for parent in meta.get_parent_list():
        # A row of a child is spread over the tables of its parents, under the same key.
        key = tuple(parent._meta.pk_fields)  # noqa: SLF001
        yield parent, Watch(sync=sync, fields=key, is_own=False, is_parent=True)
    for column in sync.model_columns():
        if column.many is not None:
            through = column.many.remote_field.through._meta  # noqa: SLF001
            link = through.get_field(column.many.m2m_field_name())
            yield through.concrete_model, Watch(sync=sync, fields=(link,), is_own=False)
    for model, name in sync.watch.items():
        other = model._meta  # noqa: SLF001
        yield other.concrete_model, Watch(sync=sync, fields=(other.get_field(name),), is_own=False)


def _insert(compiler: Any, watches: Sequence[Watch], returning_fields: Any = None) -> list[Any]:
    """As Django's own, but the keys are returned too, also where Django asks for nothing."""
    asked = list(returning_fields or ())
    fields = [*asked, *(field for field in _fields_of(watches) if field not in asked)]
    compiler.returning_fields = fields
    rows: list[Any] = []
    with compiler.connection.cursor() as cursor:
        for sql, params in compiler.as_sql():
            cursor.execute(sql, params)
            rows += cursor.fetchall()
    rows = _convert(compiler, fields, rows)
    _register(compiler, watches, Kind.INSERT, fields, rows)
    return [tuple(row[: len(asked)]) for row in rows] if asked else []


def _update(compiler: Any, watches: Sequence[Watch], result_type: Any) -> int | None:
    try:
        sql, params = compiler.as_sql()
    except EmptyResultSet:
        sql, params = "", ()
    changed = None
    if sql:
        # Where a key itself is changed, the row of the old one has to be looked after as well.
        moved = {field for field, _model, _value in compiler.query.values}
        losing = [watch for watch in watches if moved & set(watch.fields)]
        if losing:
            _register_old(compiler, losing)
        changed = _run_returning(compiler, watches, Kind.UPDATE, sql, params)
    for query in compiler.query.get_related_updates():
        further = query.get_compiler(compiler.using).execute_sql(result_type)
        if changed is None and further:
            changed = further
    return None if result_type == NO_RESULTS else changed or 0


def _delete(compiler: Any, watches: Sequence[Watch], _result_type: Any) -> int:
    try:
        sql, params = compiler.as_sql()
    except EmptyResultSet:
        return 0
    return _run_returning(compiler, watches, Kind.DELETE, sql, params)


def _run_returning(
    compiler: Any, watches: Sequence[Watch], kind: Kind, sql: str, params: Sequence[Any]
) -> int:
    fields = _fields_of(watches)
    with compiler.connection.cursor() as cursor:
        cursor.execute(f"{sql} RETURNING {_names(compiler, fields)}", params)
        rows = cursor.fetchall()
    _register(compiler, watches, kind, fields, _convert(compiler, fields, rows))
    return len(rows)


def _register_old(compiler: Any, watches: Sequence[Watch]) -> None:
    fields = _fields_of(watches)
    query = compiler.query
    table = compiler.quote_name_unless_alias(query.base_table)
    sql, params = f"SELECT {_names(compiler, fields)} FROM {table}", ()  # noqa: S608 - quoted
    try:
        where, params = compiler.compile(query.where)
    except FullResultSet:
        pass
    else:
        sql = f"{sql} WHERE {where}"
    if compiler.connection.features.has_select_for_update:
        sql += " FOR UPDATE"
    with compiler.connection.cursor() as cursor:
        cursor.execute(sql, params)
        rows = cursor.fetchall()
    _register(compiler, watches, Kind.DELETE, fields, _convert(compiler, fields, rows))


def _fields_of(watches: Sequence[Watch]) -> list[Any]:
    return list(dict.fromkeys(field for watch in watches for field in watch.fields))


def _names(compiler: Any, fields: Sequence[Any]) -> str:
    quote = compiler.connection.ops.quote_name
    return ", ".join(quote(field.column) for field in fields)


def _convert(compiler: Any, fields: Sequence[Any], rows: list[Any]) -> list[Any]:
    """Values as Python has them: a UUID is a text in SQLite."""
    table = compiler.query.get_meta().db_table
    converters = compiler.get_converters([field.get_col(table) for field in fields])
    return list(compiler.apply_converters(rows, converters)) if converters else rows


def _register(
    compiler: Any, watches: Sequence[Watch], kind: Kind, fields: list[Any], rows: list[Any]
) -> None:
    writer = DjangoWriter(compiler.connection)
    for watch in watches:
        places = [fields.index(field) for field in watch.fields]
        values = [key for key in ([row[place] for place in places] for row in rows) if None not in key]
        if watch.is_parent:
            values = _keep_children(compiler, watch, kind, values)
        keys = dict.fromkeys(spell_key(key) for key in values)
        if keys:
            told = kind if watch.is_own else Kind.UPDATE
            watch.sync.get_storage().register(writer, watch.sync.declaration().name, told, list(keys))


def _keep_children(compiler: Any, watch: Watch, kind: Kind, keys: list[list[Any]]) -> list[list[Any]]:
    """Of changed rows of a parent those that have one in the child; its own statements tell of new and deleted."""
    if kind is not Kind.UPDATE or not keys:
        return []
    children = watch.sync.django_model._base_manager.using(compiler.connection.alias)  # noqa: SLF001 - public
    found = children.filter(pk__in=[key[0] for key in keys]).values_list("pk", flat=True)
    return [[key] for key in found]
