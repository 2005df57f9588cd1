"""Operations in the table `oncehouse_sync_operations` of the source database: as safe as the changes themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Engine,
    Float,
    any_,
    bindparam,
    cast,
    delete,
    extract,
    func,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY

from oncehouse.databases import DatabaseClock
from oncehouse.messaging.database import transact
from oncehouse.sync.capture import Writer, write_operations
from oncehouse.sync.operations import Kind, Operation
from oncehouse.sync.storage import Waiting
from oncehouse.sync.tables import ABSENT, operations

_KINDS = {kind.value: kind for kind in Kind}
_CHUNK = 10_000  # SQLite takes 32,766 values in a statement


class OutboxStorage:
    def register(self, writer: Writer, sync: str, kind: Kind, keys: Sequence[str]) -> None:
        if keys:
            write_operations(writer, sync, kind, keys)

    def list_operations(self, connection: Connection, sync: str, limit: int) -> list[Operation]:
        rows = connection.execute(
            select(operations.c.id, operations.c.key, operations.c.kind)
            .where(operations.c.sync == sync)
            .order_by(operations.c.id)
            .limit(limit)
        ).all()
        return [Operation(str(number), key, _KINDS[kind]) for number, key, kind in rows]

    def remove(self, engine: Engine, sync: str, ids: Sequence[str]) -> None:
        numbers = [int(one) for one in ids]
        with transact(engine, f"Sync {sync}: removing operations", absent=ABSENT) as connection:
            for start in range(0, len(numbers), _CHUNK):
                self._remove_some(connection, sync, numbers[start : start + _CHUNK])

    def _remove_some(self, connection: Connection, sync: str, numbers: list[int]) -> None:
        if connection.dialect.name == "postgresql":
            # One statement of one shape, however many there are.
            chosen = operations.c.id == any_(bindparam("ids", numbers, ARRAY(BigInteger)))
        else:
            chosen = operations.c.id.in_(numbers)
        connection.execute(delete(operations).where(operations.c.sync == sync, chosen))

    def measure(self, connection: Connection, sync: str) -> Waiting:
        oldest: ColumnElement[Any] = func.min(operations.c.created_at)
        if connection.dialect.name == "postgresql":
            oldest = extract("epoch", oldest)
        asked = select(func.count(), DatabaseClock() - cast(oldest, Float(53)))
        count, age = connection.execute(asked.where(operations.c.sync == sync)).one()
        return Waiting(count=count, oldest_seconds=None if age is None else max(0.0, age))
