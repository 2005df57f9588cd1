"""The keys of changed rows, and those that rows have before a statement gives them others.

Old keys are looked up before the statement, and the rows are locked. The statement is then held to rows that have one
of these keys: one that another transaction commits in between, or brings under the statement's condition, is left as it
is, for its old key has not been noted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Dialect, Update, or_, select

from oncehouse.messaging.database import wrapped_errors
from oncehouse.sync.changes.change import OperationKind
from oncehouse.sync.sqlalchemy import statements
from oncehouse.sync.sqlalchemy.key_conditions import is_among, is_listed
from oncehouse.sync.sqlalchemy.watches import Watch
from oncehouse.sync.tables import ABSENT

_KEYS_A_STATEMENT = 5_000

Keys = list[tuple[Any, ...]]


@dataclass(frozen=True, kw_only=True)
class ChangedKeys:
    """Keys of changed rows, by watch."""

    watch: Watch
    kind: OperationKind
    keys: Keys


def read_moved_keys(
    connection: Connection,
    statement: Any,
    table: Any,
    watches: Sequence[Watch],
    parameters: statements.Parameters,
) -> list[ChangedKeys]:
    """The keys that rows have before an UPDATE gives them others. The rows are locked: they cannot move meanwhile."""
    moved = [watch for watch in watches if statements.sets_any(statement, watch.columns, parameters)]
    if not moved or not isinstance(statement, Update):
        return []
    query = select(*columns_of(moved)).select_from(table).with_for_update(of=table)
    if statement.whereclause is not None:
        query = query.where(statement.whereclause)
    rows = [row._mapping for row in connection.execute(query, dict(parameters[0]))]  # noqa: SLF001 - public
    return [ChangedKeys(watch=watch, kind=OperationKind.DELETE, keys=pick(rows, watch)) for watch in moved]


def stay_among(statement: Any, old: Sequence[ChangedKeys], dialect: Dialect) -> Any:
    """The statement on rows of these keys alone, and on rows that have no key."""
    for one in old:
        columns = one.watch.columns
        among = is_among(columns, list(dict.fromkeys(one.keys)), dialect)
        statement = statement.where(or_(among, *(column.is_(None) for column in columns if column.nullable)))
    return statement


def read_columns(
    connection: Connection,
    key: tuple[Any, ...],
    rows: Keys,
    *,
    columns: tuple[Any, ...],
    lock: bool = False,
) -> Keys:
    """What these columns hold in the rows of these keys."""
    found: Keys = []
    for start in range(0, len(rows), _KEYS_A_STATEMENT):
        part = rows[start : start + _KEYS_A_STATEMENT]
        query = select(*columns).where(is_listed(key, part))
        with wrapped_errors("Model sync: looking up changed keys", absent=ABSENT):
            found += [tuple(row) for row in connection.execute(query.with_for_update() if lock else query)]
    return found


def keep_children(connection: Connection, changed: ChangedKeys) -> Keys:
    """Of changed rows of a parent those that have one in the child; its own statements report new and deleted ones."""
    if changed.kind is not OperationKind.UPDATE or not changed.keys:
        return []
    key = changed.watch.child_key
    return read_columns(connection, key, changed.keys, columns=key)


def columns_of(watches: Sequence[Watch]) -> list[Any]:
    return list({column: None for watch in watches for column in watch.columns})


def pick(rows: Sequence[Mapping[Any, Any]], watch: Watch, *, by_name: bool = False) -> Keys:
    return [tuple(row[column.key if by_name else column] for column in watch.columns) for row in rows]
