"""The relay's store on PostgreSQL: rows in binary, one statement per claim and one per settlement, LISTEN.

Each thread has its own connection in autocommit mode: a statement is a transaction, including the fencing. The
statements are in `relay_statements.sql`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import Engine, PoolProxiedConnection, event
from sqlalchemy.exc import DBAPIError

from oncehouse.common.database import locate, wrap_error, wrap_text
from oncehouse.messaging.outbox.relay.sql_store import SqlStore
from oncehouse.messaging.outbox.relay.types import ClaimedRow, SendResult, Tokens
from oncehouse.messaging.outbox.tables import CHANNEL, OutboxTables


def read_statements() -> dict[str, str]:
    text = files("oncehouse.messaging.outbox").joinpath("relay_statements.sql").read_text(encoding="utf-8")
    blocks = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:]
    return {name: body.strip() for name, body in zip(blocks[::2], blocks[1::2], strict=True)}


class PostgresStore(SqlStore):
    wakes = True

    def __init__(self, engine: Engine, tables: OutboxTables, *, keep: bool = False) -> None:
        super().__init__(engine, tables, keep=keep)
        preparer = engine.dialect.identifier_preparer
        names = {
            "outbox": preparer.format_table(tables.outbox),
            "leases": preparer.format_table(tables.leases.leases),
        }
        statements = {name: text.format(**names) for name, text in read_statements().items()}
        self._claim = statements["claim"]
        self._settle = f"{statements['held']}\n{statements['mark' if keep else 'delete']}"
        self._find = statements["waiting"]
        self._threads = threading.local()
        self._opened: list[PoolProxiedConnection] = []
        event.listen(engine, "connect", _tune_planner)

    def claim(self, tokens: Tokens, *, rows: int, size_bytes: int) -> list[ClaimedRow]:
        if not tokens:
            return []
        with self._cursor(binary=True) as cursor:
            cursor.execute(self._claim, self._leased(tokens) | {"rows": rows, "size_bytes": size_bytes})
            found = [ClaimedRow._make(row) for row in cursor.fetchall()]
        # Compares by `seq` alone, which is unique.
        found.sort()
        return found

    def settle(self, tokens: Tokens, sent: SendResult) -> int:
        if not sent.acknowledged:
            return 0
        parameters = self._leased(tokens)
        if self._keep:
            parameters |= {
                "seqs": _format_array(place.seq for place in sent.positions),
                "partitions": _format_array(place.partition for place in sent.positions),
                "offsets": _format_array(place.offset for place in sent.positions),
            }
        else:
            parameters["seqs"] = _format_array(sent.acknowledged)
        with self._cursor() as cursor:
            cursor.execute(self._settle, parameters)
            return cursor.rowcount

    def find_waiting(self, buckets: Sequence[int]) -> set[int]:
        with self._cursor() as cursor:
            cursor.execute(self._find, {"buckets": list(buckets)})
            return {bucket for (bucket,) in cursor.fetchall()}

    def wait_for_wake(self, timeout_seconds: float) -> bool:
        with self._driver() as connection:
            if not getattr(self._threads, "listens", False):
                connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(CHANNEL)))
                self._threads.listens = True
            woken = connection.notifies(timeout=timeout_seconds, stop_after=1)
            return any(notice.payload == self._tables.name for notice in woken)

    def close(self) -> None:
        for pooled in self._opened:
            _close(pooled)
        super().close()

    def _leased(self, tokens: Tokens) -> dict[str, Any]:
        return {"name": self._tables.name, "buckets": list(tokens), "tokens": list(tokens.values())}

    @contextmanager
    def _cursor(self, *, binary: bool = False) -> Iterator[psycopg.Cursor[Any]]:
        with self._driver() as connection, connection.cursor(binary=binary) as cursor:
            yield cursor

    @contextmanager
    def _driver(self) -> Iterator[psycopg.Connection[Any]]:
        try:
            yield self._connection()
        except DBAPIError as error:
            raise wrap_error(error, what=self._whose, where=locate(self._engine)) from error
        except psycopg.Error as error:
            self._drop_connection()
            passing = isinstance(error, psycopg.OperationalError)
            failure = wrap_text(str(error), what=self._whose, where=locate(self._engine), passing=passing)
            raise failure from error

    def _connection(self) -> psycopg.Connection[Any]:
        pooled: PoolProxiedConnection | None = getattr(self._threads, "connection", None)
        if pooled is None:
            pooled = self._threads.connection = self._engine.raw_connection()
            self._opened.append(pooled)
            driver: Any = pooled.driver_connection
            driver.autocommit = True
        connection: Any = pooled.driver_connection
        return connection  # type: ignore[no-any-return]

    def _drop_connection(self) -> None:
        pooled: PoolProxiedConnection | None = getattr(self._threads, "connection", None)
        if pooled is not None:
            self._opened.remove(pooled)
            _close(pooled)
        self._threads.connection, self._threads.listens = None, False


def _format_array(numbers: Iterable[int]) -> str:
    # As text: the driver converts a list number by number in Python, at three microseconds each.
    return "{" + ",".join(map(str, numbers)) + "}"


def _close(pooled: PoolProxiedConnection) -> None:
    """Not returned to the pool: it is in autocommit mode."""
    driver: Any = pooled.driver_connection
    driver.close()
    pooled.invalidate()


def _tune_planner(connection: Any, _record: object) -> None:
    # The planner's statistics are always outdated for a queue: analyzed while empty, it would be scanned and sorted.
    connection.autocommit = True
    connection.execute("SET enable_seqscan = off")
    connection.autocommit = False
