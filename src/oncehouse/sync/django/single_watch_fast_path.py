"""The commonest change, made as cheap as it gets: a model with one sync, by its own key, with operations in PostgreSQL.

The operation is part of the change's own statement, in the form that costs the server and the driver least. A save
names its key, so the operation stands before it and nothing has to come back; other changes return their keys into
the INSERT of operations, whose count is theirs. All else is left to `key_recorder.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models.expressions import Col
from django.db.models.lookups import Exact
from django.db.utils import ProgrammingError

from oncehouse.sync.changes.change import OperationKind, format_key
from oncehouse.sync.changes.sql_storage import OutboxStorage
from oncehouse.sync.django.key_recorder import Statement, explain_absent_tables, names_of
from oncehouse.sync.django.watches import Watch
from oncehouse.sync.tables import NOTE_FUNCTION

_INTO = "INSERT INTO oncehouse_sync_operations (sync, kind, key)"


def find_single_watch(connection: Any, watches: Sequence[Watch]) -> Watch | None:
    if len(watches) != 1 or connection.vendor != "postgresql":
        return None
    (watch,) = watches
    is_meant = watch.is_own and watch.has_same_text_form and type(watch.sync.get_storage()) is OutboxStorage
    return watch if is_meant else None


# Names of syncs are made of letters, digits, '_', '.' and '-', those of columns are quoted, values are bound.


def change_rows(
    compiler: Any, watch: Watch, kind: OperationKind, statement: Statement, *, key: str | None = None
) -> int:
    """Run an UPDATE or DELETE, of the row of this key if one is given; how many rows it changed."""
    sql, params = statement
    values = f"'{watch.sync.declaration().name}', '{kind}'"
    if key is None or not sql.startswith("UPDATE"):
        columns = names_of(compiler, watch.fields)
        recorded = (
            f"WITH oncehouse_changed AS ({sql} RETURNING {columns}) {_INTO} "  # noqa: S608
            f"SELECT {values}, json_build_array({columns})::text FROM oncehouse_changed"
        )
    else:
        recorded = f"WITH oncehouse_noted AS ({_INTO} VALUES ({values}, %s)) {sql}"
        params = (key, *params)
    cursor = compiler.connection.cursor()
    try:
        _execute(cursor, recorded, params)
        return int(cursor.rowcount)
    finally:
        cursor.close()


def insert_rows(compiler: Any, watch: Watch, statement: Statement) -> list[tuple[int]]:
    """Run an INSERT that returns the key, one whole number; the keys of the new rows, in their order."""
    sql, params = statement
    values = f"'{watch.sync.declaration().name}', '{OperationKind.INSERT}'"
    place = _place_of(compiler, watch)
    if len(compiler.query.objs) == 1 and sql.endswith(f" RETURNING {place}"):
        recorded = f"{sql.removesuffix(place)}{NOTE_FUNCTION}({values}, {place})"
    else:
        # Cheaper for many rows, dearer for one.
        recorded = (
            f"WITH oncehouse_changed AS ({sql}) {_INTO} "  # noqa: S608
            f"SELECT {values}, json_build_array({names_of(compiler, watch.fields)})::text FROM oncehouse_changed "
            "RETURNING substr(key, 2, length(key) - 2)::bigint"
        )
    cursor = compiler.connection.cursor()
    try:
        _execute(cursor, recorded, params)
        return list(cursor.fetchall())
    finally:
        cursor.close()


def _place_of(compiler: Any, watch: Watch) -> str:
    quote = compiler.connection.ops.quote_name
    return f"{quote(compiler.query.get_meta().db_table)}.{quote(watch.fields[0].column)}"


def _execute(cursor: Any, statement: str, params: Sequence[Any]) -> None:
    try:
        cursor.execute(statement, params)
    except ProgrammingError as error:
        explain_absent_tables(error)
        raise


def find_named_key(query: Any, watch: Watch) -> str | None:
    """The key of an UPDATE whose whole condition is that it be equal to a value, as in a save.

    If no such row is there, an operation without a change is noted, which makes a deleted row of the key. Only
    Replacing does not show it.
    """
    where = query.where
    if (
        len(where.children) != 1
        or where.negated
        or len(watch.fields) != 1
        or not watch.sync.engine.is_idempotent
    ):
        return None
    condition = where.children[0]
    if not isinstance(condition, Exact) or not isinstance(condition.lhs, Col):
        return None
    value = condition.rhs
    # Texts may be equal and not the same.
    if condition.lhs.target.column != watch.fields[0].column or type(value) not in {int, UUID}:
        return None
    return format_key([value])
