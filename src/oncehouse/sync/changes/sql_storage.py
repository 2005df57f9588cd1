"""Operations in the table `oncehouse_sync_operations` of the source database: as safe as the changes themselves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Float,
    Select,
    Text,
    cast,
    delete,
    extract,
    func,
    select,
    text,
)

from oncehouse.common.database import DatabaseClock
from oncehouse.messaging.database import transact
from oncehouse.sync.changes.change import ListedOperations, Operation, OperationKind
from oncehouse.sync.changes.register import OperationWriter, write_operations
from oncehouse.sync.changes.storage import OperationBacklog
from oncehouse.sync.tables import ABSENT, operations

_IN_ORDER_OF_INDEX = text("SET LOCAL enable_sort = off")
_CHUNK = 10_000  # SQLite takes 32,766 values in a statement


class OutboxStorage:
    def register(self, writer: OperationWriter, sync: str, kind: OperationKind, keys: Sequence[str]) -> None:
        if keys:
            write_operations(writer, sync, kind, keys)

    def list_operations(
        self, connection: Connection, sync: str, limit: int, *, after: int = 0
    ) -> Sequence[Operation]:
        """`after`: behind this id, which is not all: ids are taken in blocks, and commit in any order."""
        listed = (
            select(operations.c.id, operations.c.key, operations.c.kind)
            .where(operations.c.sync == sync, operations.c.id > after)
            .order_by(operations.c.id)
            .limit(limit)
        )
        if connection.dialect.name == "postgresql":
            return _list_at_once(connection, listed)
        return [
            Operation(str(number), key, OperationKind(kind))
            for number, key, kind in connection.execute(listed)
        ]

    def remove(self, engine: Engine, sync: str, ids: Sequence[str]) -> None:
        with transact(engine, f"Sync {sync}: removing operations", absent=ABSENT) as connection:
            for start in range(0, len(ids), _CHUNK):
                self._remove_some(connection, sync, ids[start : start + _CHUNK])

    def _remove_some(self, connection: Connection, sync: str, ids: Sequence[str]) -> None:
        numbers = [int(one) for one in ids]
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(_format_removal(numbers), (sync,))
        else:
            chosen = operations.c.id.in_(numbers)
            connection.execute(delete(operations).where(operations.c.sync == sync, chosen))

    def measure(self, connection: Connection, sync: str) -> OperationBacklog:
        oldest: ColumnElement[Any] = func.min(operations.c.created_at)
        if connection.dialect.name == "postgresql":
            oldest = extract("epoch", oldest)
        query = select(func.count(), DatabaseClock() - cast(oldest, Float(53)))
        count, age = connection.execute(query.where(operations.c.sync == sync)).one()
        return OperationBacklog(count=count, oldest_seconds=None if age is None else max(0.0, age))


def _format_removal(numbers: Sequence[int]) -> str:
    """With the numbers in its text: given as a value they might be read again, or searched one by one, for each row.

    The range says nothing new. With it no plan reads what waits behind them, whatever PostgreSQL believes of the table.
    """
    listed = ",".join(map(str, numbers))
    return (
        f"DELETE FROM {operations.name} WHERE sync = %s AND id BETWEEN {min(numbers)} AND {max(numbers)} "  # noqa: S608
        f"AND id = ANY('{{{listed}}}'::bigint[])"
    )


def _list_at_once(connection: Connection, listed: Select[Any]) -> ListedOperations:
    """As three values of one row: what a driver does for each row is more than is to be known of an operation."""
    # A queue's statistics are of another hour: taken for nearly empty, all of it would be read and sorted each time.
    connection.execute(_IN_ORDER_OF_INDEX)
    rows = listed.subquery()
    ids, keys, kinds = connection.execute(
        select(
            func.string_agg(cast(rows.c.id, Text), ","),
            cast(func.json_agg(rows.c.key), Text),
            func.string_agg(rows.c.kind, ","),
        )
    ).one()
    if ids is None:
        return ListedOperations([], [], [])
    return ListedOperations(ids.split(","), json.loads(keys), kinds.split(","))
