"""The operation of a change as a part of its own statement, so that the flush of one row costs no further round trip.

For PostgreSQL, the outbox table and a class's own table. A key that the statement names stands before it; the key that
the database gives to a new row is taken from what the INSERT returns. A flush runs the same statement objects over and
over, so what is to be known of one is found out once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Delete, Insert, types

from oncehouse.sync.changes.change import OperationKind
from oncehouse.sync.changes.sql_storage import OutboxStorage
from oncehouse.sync.sqlalchemy import statements
from oncehouse.sync.sqlalchemy.watches import Watch
from oncehouse.sync.tables import NOTE_FUNCTION

Prepared = tuple[str, Mapping[str, Any]]

_INTO = "INSERT INTO oncehouse_sync_operations (sync, kind, key)"
_KEY = "oncehouse_key"


@dataclass(frozen=True, kw_only=True)
class NamedKey:
    """The key of the row that a statement changes, known before it runs."""

    sync: str
    kind: OperationKind
    key: str

    def join(self, statement: str, parameters: Mapping[str, Any]) -> Prepared | None:
        """The text for the driver and its parameters; None where it has a WITH of its own."""
        if not statement.startswith(("INSERT ", "UPDATE ", "DELETE ")):
            return None
        # Names of syncs are made of letters, digits, '_', '.' and '-'.
        note_sql = f"{_INTO} VALUES ('{self.sync}', '{self.kind}', %({_KEY})s)"
        return f"WITH oncehouse_noted AS ({note_sql}) {statement}", {**parameters, _KEY: self.key}


@dataclass(frozen=True, kw_only=True)
class ReturnedKey:
    """The key that an INSERT returns: one whole number."""

    sync: str
    table: str
    """Quoted, as in the statement."""
    column: str

    def join(self, statement: str, parameters: Mapping[str, Any]) -> Prepared | None:
        """As above; None where it returns something else, or more."""
        returning = f" RETURNING {self.table}.{self.column}"
        if not statement.startswith("INSERT ") or not statement.endswith(returning):
            return None
        place = f"{self.table}.{self.column}"
        note_sql = f"{NOTE_FUNCTION}('{self.sync}', '{OperationKind.INSERT}', {place}) AS {self.column}"
        return statement.removesuffix(place) + note_sql, parameters


CombinedStatement = NamedKey | ReturnedKey


@dataclass(frozen=True, kw_only=True)
class _StatementForm:
    """What is known of a statement whatever its parameters."""

    watch: Watch
    kind: OperationKind
    key_columns: tuple[str, ...]
    """If one of them is among the parameters, the statement sets it: an INSERT names its key, an UPDATE moves it."""
    binds: tuple[str, ...] = ()
    """Parameters that hold the key, of an UPDATE or DELETE."""
    returned: ReturnedKey | None = None


_forms: WeakKeyDictionary[Any, _StatementForm | None] = WeakKeyDictionary()


def can_combine(connection: Connection, watch: Watch) -> bool:
    dialect = connection.dialect
    return (
        watch.is_own
        and dialect.name == "postgresql"
        and dialect.paramstyle == "pyformat"
        and type(watch.sync.get_storage()) is OutboxStorage
    )


def find_combined(
    connection: Connection, statement: Any, watch: Watch, one: Mapping[str, Any]
) -> CombinedStatement | None:
    """For a statement on the class's own table with one set of parameters."""
    form = _forms.get(statement)
    if form is None or form.watch is not watch:
        if form is None and statement in _forms:
            return None
        form = _forms[statement] = _find_form(connection, statement, watch)
    if form is None:
        return None
    if one.keys().isdisjoint(form.key_columns):
        if form.kind is OperationKind.INSERT:
            return form.returned
        return _name_key(watch, form.kind, [one.get(name) for name in form.binds])
    given = (
        statements.read_values(statement, watch.columns, [one]) if form.kind is OperationKind.INSERT else None
    )
    return _name_key(watch, OperationKind.INSERT, given[0]) if given else None


def _name_key(watch: Watch, kind: OperationKind, key: Sequence[Any]) -> NamedKey | None:
    key_texts = watch.sync.encode_keys([key])
    return NamedKey(sync=watch.sync.declaration().name, kind=kind, key=key_texts[0]) if key_texts else None


def _find_form(connection: Connection, statement: Any, watch: Watch) -> _StatementForm | None:
    key_columns = tuple(column.key for column in watch.columns)
    if isinstance(statement, Insert):
        is_left = statements.leaves_key(statement, watch.columns)
        returned = _returned_key(connection, watch) if is_left else None
        return _StatementForm(
            watch=watch, kind=OperationKind.INSERT, key_columns=key_columns, returned=returned
        )
    binds = statements.key_binds(statement, watch.columns)
    if binds is None:
        return None
    kind = OperationKind.DELETE if isinstance(statement, Delete) else OperationKind.UPDATE
    return _StatementForm(watch=watch, kind=kind, key_columns=key_columns, binds=binds)


def _returned_key(connection: Connection, watch: Watch) -> ReturnedKey | None:
    if len(watch.columns) != 1 or not isinstance(watch.columns[0].type, types.Integer):
        return None
    column, quote = watch.columns[0], connection.dialect.identifier_preparer
    return ReturnedKey(
        sync=watch.sync.declaration().name,
        table=quote.format_table(column.table),
        column=quote.quote(column.name),
    )
