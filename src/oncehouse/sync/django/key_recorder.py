"""How a statement on a watched model is run so that the keys of the rows it changes are recorded with it.

On PostgreSQL, where operations wait in the outbox table, both are one statement: no further round trip, and no
transaction where the program has none. Elsewhere the keys come back from the statement and are registered in the same
transaction, which is begun if need be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import transaction
from django.db.utils import OperationalError, ProgrammingError

from oncehouse.errors import ConfigurationError
from oncehouse.sync.changes.change import OperationKind, format_key
from oncehouse.sync.changes.sql_storage import OutboxStorage
from oncehouse.sync.django.watches import Watch
from oncehouse.sync.tables import ABSENT, ABSENT_STATES

Statement = tuple[str, Sequence[Any]]
"""A text and what is bound to it."""


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
            explain_absent_tables(error)
            raise


def run_and_record(
    compiler: Any,
    watches: Sequence[Watch],
    kind: OperationKind,
    fields: Sequence[Any],
    statement: Statement,
) -> list[Any]:
    """Run a statement that returns these fields of the rows it changes, and have their keys synced; the rows."""
    if can_note_at_once(compiler.connection, watches):
        try:
            rows = execute(compiler, *_around(compiler, watches, kind, fields, statement))
        except ProgrammingError as error:
            explain_absent_tables(error)
            raise
        return convert(compiler, fields, rows)
    with transaction.atomic(using=compiler.connection.alias, savepoint=False):
        rows = convert(compiler, fields, execute(compiler, *statement))
        register(compiler, watches, kind, fields, rows)
    return rows


def execute(compiler: Any, sql: str, params: Sequence[Any]) -> list[Any]:
    with compiler.connection.cursor() as cursor:
        cursor.execute(sql, params)
        rows: list[Any] = cursor.fetchall()
    return rows


def fields_of(watches: Sequence[Watch], extra_fields: Sequence[Any] = ()) -> list[Any]:
    """What has to be known of a changed row, behind these fields. Each column once: in a migration a model has fields
    of its own."""
    named = {field.column: field for watch in watches for field in watch.fields}
    return [
        *extra_fields,
        *(named[name] for name in named if name not in {field.column for field in extra_fields}),
    ]


def names_of(compiler: Any, fields: Sequence[Any]) -> str:
    quote = compiler.connection.ops.quote_name
    return ", ".join(quote(field.column) for field in fields)


def can_note_at_once(connection: Any, watches: Sequence[Watch]) -> bool:
    return connection.vendor == "postgresql" and all(
        type(watch.sync.get_storage()) is OutboxStorage and not watch.is_parent and watch.has_same_text_form
        for watch in watches
    )


def _around(
    compiler: Any,
    watches: Sequence[Watch],
    kind: OperationKind,
    fields: Sequence[Any],
    statement: Statement,
) -> tuple[str, tuple[Any, ...]]:
    """The statement, and a second one that notes what it returns; its rows are the answer."""
    sql, params = statement
    quote = compiler.connection.ops.quote_name
    recording, recorded = [], []
    for watch in watches:
        columns = [quote(field.column) for field in watch.fields]
        key, present = ", ".join(columns), " AND ".join(f"{column} IS NOT NULL" for column in columns)
        recording.append(
            f"SELECT %s, %s, json_build_array({key})::text FROM oncehouse_changed WHERE {present}"  # noqa: S608 - quoted
        )
        recorded += [watch.sync.declaration().name, (kind if watch.is_own else OperationKind.UPDATE).value]
    # Django's own statement and quoted names; values are bound.
    both = (
        f"WITH oncehouse_changed AS ({sql}), oncehouse_noted AS ("  # noqa: S608
        f"INSERT INTO oncehouse_sync_operations (sync, kind, key) {' UNION ALL '.join(recording)}) "
        f"SELECT {names_of(compiler, fields)} FROM oncehouse_changed"
    )
    return both, (*params, *recorded)


def explain_absent_tables(error: Exception) -> None:
    """Raise a better one where it is our tables that are missing."""
    cause = error.__cause__
    absent = getattr(cause, "sqlstate", None) in ABSENT_STATES or "no such table" in str(cause)
    if absent and "oncehouse_sync" in str(cause):
        raise ConfigurationError(f"Model sync has no tables in this database. {ABSENT}") from error


def convert(compiler: Any, fields: Sequence[Any], rows: list[Any]) -> list[Any]:
    """Values as Python has them: a UUID is a text in SQLite."""
    table = compiler.query.get_meta().db_table
    converters = compiler.get_converters([field.get_col(table) for field in fields])
    return list(compiler.apply_converters(rows, converters)) if converters else rows


def register(
    compiler: Any, watches: Sequence[Watch], kind: OperationKind, fields: Sequence[Any], rows: list[Any]
) -> None:
    writer = DjangoWriter(compiler.connection)
    names = [field.column for field in fields]
    for watch in watches:
        places = [names.index(field.column) for field in watch.fields]
        values = [key for key in ([row[place] for place in places] for row in rows) if None not in key]
        if watch.is_parent:
            values = _keep_children(compiler, watch, kind, values)
        keys = dict.fromkeys(format_key(key) for key in values)
        if keys:
            operation = kind if watch.is_own else OperationKind.UPDATE
            watch.sync.get_storage().register(writer, watch.sync.declaration().name, operation, list(keys))


def _keep_children(
    compiler: Any, watch: Watch, kind: OperationKind, keys: list[list[Any]]
) -> list[list[Any]]:
    """Of changed rows of a parent those that have one in the child; its own statements report new and deleted ones."""
    if kind is not OperationKind.UPDATE or not keys:
        return []
    children = watch.sync.django_model._base_manager.using(compiler.connection.alias)  # noqa: SLF001 - public
    # By the parent's key, which is not the child's where it has several parents.
    name = f"{watch.fields[0].name}__in"
    found = children.filter(**{name: [key[0] for key in keys]}).values_list("pk", flat=True)
    return [[key] for key in found]
