"""Where Django's changes are noticed: the three places at which it runs INSERT, UPDATE and DELETE.

Every write of the ORM passes them, whichever manager, bulk call or cascade it comes from. A statement on a watched
model also returns the keys of the rows that it changed, and these are noted with it (`noting.py`). Models that nobody
watches pay one look-up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import django
from django.core.exceptions import EmptyResultSet, FullResultSet
from django.db import transaction
from django.db.models.sql import compiler as sql_compiler
from django.db.models.sql.constants import NO_RESULTS

from oncehouse.errors import ConfigurationError
from oncehouse.sync.django.noting import execute, fields_of, names_of, note_rows, run_noted
from oncehouse.sync.django.watches import Watch, find_watches
from oncehouse.sync.operations import Kind

_TESTED = (5, 2)


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
        return capturing(self, watches, *arguments, **named)

    return execute_sql


def _insert(compiler: Any, watches: Sequence[Watch], returning_fields: Any = None) -> list[Any]:
    """As Django's own, but the keys are returned too, also where Django asks for nothing."""
    asked = list(returning_fields or ())
    fields = [*asked, *(field for field in fields_of(watches) if field not in asked)]
    compiler.returning_fields = fields
    rows = [
        row
        for statement in compiler.as_sql()
        for row in run_noted(compiler, watches, Kind.INSERT, fields, statement)
    ]
    return [tuple(row[: len(asked)]) for row in rows] if asked else []


def _update(compiler: Any, watches: Sequence[Watch], result_type: Any) -> int | None:
    try:
        sql, params = compiler.as_sql()
    except EmptyResultSet:
        sql, params = "", ()
    changed = _run_update(compiler, watches, sql, params) if sql else None
    for query in compiler.query.get_related_updates():
        further = query.get_compiler(compiler.using).execute_sql(result_type)
        if changed is None and further:
            changed = further
    return None if result_type == NO_RESULTS else changed or 0


def _run_update(compiler: Any, watches: Sequence[Watch], sql: str, params: Sequence[Any]) -> int:
    moved = {field for field, _model, _value in compiler.query.values}
    losing = [watch for watch in watches if moved & set(watch.fields)]
    if not losing:
        return _run_returning(compiler, watches, Kind.UPDATE, sql, params)
    # Where a key itself is changed, the row of the old one has to be looked after as well.
    with transaction.atomic(using=compiler.connection.alias, savepoint=False):
        _note_old(compiler, losing)
        return _run_returning(compiler, watches, Kind.UPDATE, sql, params)


def _delete(compiler: Any, watches: Sequence[Watch], _result_type: Any) -> int:
    try:
        sql, params = compiler.as_sql()
    except EmptyResultSet:
        return 0
    return _run_returning(compiler, watches, Kind.DELETE, sql, params)


def _run_returning(
    compiler: Any, watches: Sequence[Watch], kind: Kind, sql: str, params: Sequence[Any]
) -> int:
    fields = fields_of(watches)
    statement = (f"{sql} RETURNING {names_of(compiler, fields)}", params)
    return len(run_noted(compiler, watches, kind, fields, statement))


def _note_old(compiler: Any, watches: Sequence[Watch]) -> None:
    fields = fields_of(watches)
    query = compiler.query
    table = compiler.quote_name_unless_alias(query.base_table)
    sql, params = f"SELECT {names_of(compiler, fields)} FROM {table}", ()  # noqa: S608 - quoted
    try:
        where, params = compiler.compile(query.where)
    except FullResultSet:
        pass
    else:
        sql = f"{sql} WHERE {where}"
    if compiler.connection.features.has_select_for_update:
        sql += " FOR UPDATE"
    note_rows(compiler, watches, Kind.DELETE, fields, execute(compiler, sql, params))
