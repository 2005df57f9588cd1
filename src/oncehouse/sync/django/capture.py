"""Where Django's changes are noticed: the three places at which it runs INSERT, UPDATE and DELETE.

Every write of the ORM passes them, whichever manager, bulk call or cascade it comes from. A statement on a watched
model also returns the keys of the rows that it changed, and these are recorded with it (`key_recorder.py`).
Models without a watch pay one look-up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import django
from django.core.exceptions import EmptyResultSet, FullResultSet
from django.db import transaction
from django.db.models.constants import OnConflict
from django.db.models.sql import compiler as sql_compiler
from django.db.models.sql.constants import CURSOR, NO_RESULTS

from oncehouse.errors import ConfigurationError
from oncehouse.sync.changes.change import OperationKind
from oncehouse.sync.django.key_fields import key_fields
from oncehouse.sync.django.key_recorder import (
    Statement,
    convert,
    execute,
    fields_of,
    names_of,
    register,
    run_and_record,
)
from oncehouse.sync.django.single_watch_fast_path import (
    change_rows,
    find_named_key,
    find_single_watch,
    insert_rows,
)
from oncehouse.sync.django.watches import Watch, find_watches, is_of_migration, select_ready_watches

_OLDEST, _NEWEST = (4, 2), (6, 1)


def install() -> None:
    """Begin to notice changes. Once a process; done when the app is ready."""
    if not _OLDEST <= django.VERSION[:2] <= _NEWEST:
        oldest, newest = (".".join(map(str, version)) for version in (_OLDEST, _NEWEST))
        raise ConfigurationError(
            f"Model sync notices changes inside of Django's SQL compilers and is tested with Django {oldest} to "
            f"{newest}; this is {django.get_version()}. Another version could change rows unnoticed, so it is refused."
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
    if hasattr(updater, "execute_returning_sql"):  # since Django 6.0
        updater.execute_returning_sql = _wrap(updater.execute_returning_sql, _update_returning)
    deleter.execute_sql = _wrap(deleter.execute_sql, _delete)


def _wrap(original: Callable[..., Any], capturing: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def execute_sql(self: Any, *arguments: Any, **named: Any) -> Any:
        watches = find_watches(self.query.get_meta().db_table, self.connection.alias)
        if watches and is_of_migration(self.query.model):
            watches = select_ready_watches(self.connection, self.query.get_meta(), watches)
        if not watches:
            return original(self, *arguments, **named)
        return capturing(self, watches, *arguments, **named)

    return execute_sql


def _insert(compiler: Any, watches: Sequence[Watch], returning_fields: Any = None) -> list[Any]:
    """As Django's own, but the keys are returned too, also where Django asks for nothing."""
    _refuse_moves_on_conflict(compiler, watches)
    wanted = list(returning_fields or ())
    single = find_single_watch(compiler.connection, watches)
    if single is not None and single.is_whole_number and {field.column for field in wanted} <= single.columns:
        compiler.returning_fields = list(single.fields)
        keys = [key for statement in compiler.as_sql() for key in insert_rows(compiler, single, statement)]
        return keys if wanted else []
    fields = fields_of(watches, extra_fields=wanted)
    compiler.returning_fields = fields
    rows = [
        row
        for statement in compiler.as_sql()
        for row in run_and_record(compiler, watches, OperationKind.INSERT, fields, statement)
    ]
    return [tuple(row[: len(wanted)]) for row in rows] if wanted else []


def _refuse_moves_on_conflict(compiler: Any, watches: Sequence[Watch]) -> None:
    """Where a row that is there already is given another key, its former key is unknown."""
    query = compiler.query
    if query.on_conflict != OnConflict.UPDATE:
        return
    # Rows that are in conflict are equal in what is unique.
    set_columns = {field.column for field in query.update_fields} - {
        field.column for field in query.unique_fields
    }
    for watch in watches:
        if moved := sorted(watch.columns & set_columns):
            declared, names = watch.sync.declaration(), ", ".join(moved)
            raise ConfigurationError(
                f"{declared.name}: bulk_create with update_conflicts sets {names} of rows of {query.get_meta().label} "
                f"that may be there already, and whose row of {declared.label} they were before is unknown. "
                "Leave it out of update_fields, and change it by QuerySet.update or bulk_update."
            )


def _update(compiler: Any, watches: Sequence[Watch], result_type: Any) -> int | None:
    changed = None
    with suppress(EmptyResultSet):
        sql, params = compiler.as_sql()
        changed = _count_updated(compiler, watches, (sql, params)) if sql else None
    for query in compiler.query.get_related_updates():
        further = query.get_compiler(compiler.using).execute_sql(result_type)
        if changed is None and further:
            changed = further
    return None if result_type == NO_RESULTS else changed or 0


def _count_updated(compiler: Any, watches: Sequence[Watch], statement: Statement) -> int:
    single = find_single_watch(compiler.connection, watches)
    if single is None or _find_losing(compiler, watches):
        return len(_run_update(compiler, watches, statement, ()))
    return change_rows(
        compiler,
        single,
        OperationKind.UPDATE,
        statement,
        key=find_named_key(compiler.query, single),
    )


def _find_losing(compiler: Any, watches: Sequence[Watch]) -> list[Watch]:
    """Those whose keys the UPDATE may change."""
    written = {field.column for field, _model, _value in compiler.query.values}
    return [watch for watch in watches if not watch.columns.isdisjoint(written)]


def _update_returning(compiler: Any, watches: Sequence[Watch], returning_fields: Any) -> list[Any]:
    if compiler.query.get_related_updates():
        raise NotImplementedError("Update returning is not implemented for queries with related updates.")
    try:
        return _run_update(compiler, watches, compiler.as_sql(), tuple(returning_fields or ()))
    except EmptyResultSet:
        return []


def _run_update(
    compiler: Any, watches: Sequence[Watch], statement: Statement, wanted: Sequence[Any]
) -> list[Any]:
    losing = _find_losing(compiler, watches)
    if not losing:
        return _run_returning(compiler, watches, OperationKind.UPDATE, statement, wanted)
    # Where a key itself is changed, the row of the old one has to be looked after as well.
    with transaction.atomic(using=compiler.connection.alias, savepoint=False):
        narrowed = _narrow(compiler, _record_old_keys(compiler, losing))
        return _run_returning(narrowed, watches, OperationKind.UPDATE, narrowed.as_sql(), wanted)


def _delete(compiler: Any, watches: Sequence[Watch], result_type: Any) -> Any:
    try:
        single, statement = find_single_watch(compiler.connection, watches), compiler.as_sql()
        if single is not None:
            changed = change_rows(compiler, single, OperationKind.DELETE, statement)
        else:
            changed = len(_run_returning(compiler, watches, OperationKind.DELETE, statement, ()))
    except EmptyResultSet:
        changed = 0
    return _Counted(changed) if result_type == CURSOR else changed


class _Counted(nullcontext[Any]):
    """What Django before 5.2 looks at to learn how many rows a DELETE took: a cursor."""

    def __init__(self, rowcount: int) -> None:
        super().__init__()
        self.rowcount = rowcount


def _run_returning(
    compiler: Any, watches: Sequence[Watch], kind: OperationKind, statement: Statement, wanted: Sequence[Any]
) -> list[Any]:
    """The rows that the statement changed, with what Django asked of them."""
    fields = fields_of(watches, extra_fields=wanted)
    sql, params = statement
    returning = (f"{sql} RETURNING {names_of(compiler, fields)}", params)
    rows = run_and_record(compiler, watches, kind, fields, returning)
    return [tuple(row[: len(wanted)]) for row in rows]


def _record_old_keys(compiler: Any, watches: Sequence[Watch]) -> list[Any]:
    """Lock the rows that the UPDATE is about and note their keys of now; their primary keys."""
    query = compiler.query
    own = key_fields(query.get_meta().concrete_model)
    fields = fields_of(watches, extra_fields=own)
    table = compiler.connection.ops.quote_name(query.base_table)
    sql, params = f"SELECT {names_of(compiler, fields)} FROM {table}", ()  # noqa: S608 - quoted
    with suppress(FullResultSet):
        where, params = compiler.compile(query.where)
        sql = f"{sql} WHERE {where}"
    if compiler.connection.features.has_select_for_update:
        sql += " FOR UPDATE"
    rows = convert(compiler, fields, execute(compiler, sql, params))
    register(compiler, watches, OperationKind.DELETE, fields, rows)
    return [row[0] if len(own) == 1 else tuple(row[: len(own)]) for row in rows]


def _narrow(compiler: Any, keys: Sequence[Any]) -> Any:
    """The UPDATE on exactly the rows that are locked: one that another transaction adds by now keeps its key."""
    query = compiler.query.clone()
    query.related_updates = {}
    query.clear_where()
    query.add_filter("pk__in", keys)
    return query.get_compiler(compiler.using)
