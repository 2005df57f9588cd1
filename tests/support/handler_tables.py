"""A table for the consumer's ClickHouse handler, answers that are lost on the way to it, and others who write to it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from insert_blocks import ONE_ROW_BLOCKS
from oncehouse.devstack.clickhouse import ClickHouseServer
from oncehouse.devstack.proxies.fault_proxy import FaultProxy
from oncehouse.devstack.proxies.faults import DropAnswer
from oncehouse.errors import TransientError
from oncehouse.messaging.clickhouse_handler import ClickHouseHandler

WINDOW = "SETTINGS non_replicated_deduplication_window = 20000"
SMALL_WINDOW = "SETTINGS non_replicated_deduplication_window = 1000"
SHORT = {"insert_timeout": "10s", "retry_horizon": "10s"}
"""For which the small window is enough."""
_NUMBERS = itertools.count(1_000_000)
"""Of others. The table drops a block that it has, also one without a token."""


@dataclass(frozen=True)
class Batch:
    token: str
    values: tuple = ()


def as_table(batch: Batch) -> pa.Table:
    return pa.table(
        {"id": pa.array(batch.values, pa.int64()), "name": [f"n{value}" for value in batch.values]}
    )


@dataclass(frozen=True, kw_only=True)
class HandlerTables:
    """A database with the table `events`, and handlers that write to it."""

    server: ClickHouseServer
    client: Any
    database: str

    @property
    def url(self) -> str:
        return f"{self.server.url}/{self.database}"

    def url_through(self, proxy: FaultProxy) -> str:
        return f"{proxy.url}/{self.database}"

    def create(
        self,
        columns: str = "id UInt64, name String",
        settings: str = WINDOW,
        engine: str = "MergeTree",
        order: str = "ORDER BY id",
    ) -> None:
        self.run(f"CREATE TABLE {{database}}.events ({columns}) ENGINE = {engine} {order} {settings}")

    def create_view(self) -> None:
        """It writes ids to the table `seen`, which remembers as many blocks as `check` wants of it."""
        self.run(f"CREATE TABLE {{database}}.seen (id UInt64) ENGINE = MergeTree ORDER BY id {WINDOW}")
        self.run(
            "CREATE MATERIALIZED VIEW {database}.seeing TO {database}.seen AS SELECT id FROM {database}.events"
        )

    def handler(self, rows: Any = as_table, **options: Any) -> ClickHouseHandler:
        return ClickHouseHandler(**{"url": self.url, "table": "events", "rows": rows, **options})

    def ask(self, sql: str) -> Any:
        return self.client.query(sql.format(database=self.database)).result_rows

    def count(self, table: str = "events") -> int:
        return int(self.ask(f"SELECT count() FROM {{database}}.{table}")[0][0])

    def run(self, sql: str) -> None:
        self.client.command(sql.format(database=self.database))

    def insert_as_others(self, blocks: int) -> None:
        """So many blocks of one row. The table keeps no memory of blocks that an INSERT SELECT makes."""
        self.client.raw_insert(
            f"{self.database}.events",
            ["id", "name"],
            "".join(f"{number}\tother\n" for number in itertools.islice(_NUMBERS, blocks)),
            fmt="TabSeparated",
            settings=ONE_ROW_BLOCKS,
        )


@contextmanager
def lose_answer(
    tables: HandlerTables, others: int, *, view: bool = False, **options: Any
) -> Iterator[ClickHouseHandler]:
    """A handler whose first INSERT arrived without an answer, before others inserted so many blocks."""
    tables.create(settings=SMALL_WINDOW)
    if view:
        tables.create_view()
        time.sleep(1.1)  # ClickHouse gives times of tables in whole seconds
    with FaultProxy(server_port=tables.server.place.ports["http"]) as proxy:
        handler = tables.handler(url=tables.url_through(proxy), **SHORT, **options)
        proxy.inject(DropAnswer())
        with pytest.raises(TransientError):
            handler(Batch("events/0/0-1", (1, 2)))
        assert proxy.happened[DropAnswer] == 1
        tables.insert_as_others(others)
        yield handler
