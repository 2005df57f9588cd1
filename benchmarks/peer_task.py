"""What a peer is told, how it makes columns of JSON, and how it inserts: the same for all peers that are Python loops.

Runs in the peers' own environments, so nothing of oncehouse is imported here. Columns are made by orjson and Arrow, and
go as one Arrow stream: of what the driver offers, the quickest way from decoded rows into a table.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import clickhouse_connect
import orjson
import pyarrow as pa

COLUMNS = {
    "project": pa.string(),
    "event_type": pa.string(),
    "product_id": pa.uint64(),
    "created_at": pa.timestamp("ms", tz="UTC"),
    "price": pa.decimal128(18, 2),
    "user_name": pa.string(),
    "comment": pa.string(),
}
BATCH_SECONDS = 1.0

# The client looks only once a second whether its queue has room, and asks for little at a time.
TUNED = {
    "fetch.queue.backoff.ms": 10,
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 512_000,
    "fetch.message.max.bytes": 16_000_000,
    "fetch.max.bytes": 64_000_000,
    "fetch.wait.max.ms": 20,
    "check.crcs": False,
}
# After a kill the group waits this long for the dead member before the next one may read.
_SESSION = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 1_000}


@dataclass(frozen=True, kw_only=True)
class Task:
    servers: str
    topic: str
    group: str
    host: str
    port: int
    table: str
    batch_rows: int
    tuned: bool = True
    raw: bool = False

    @property
    def client_settings(self) -> dict[str, Any]:
        return {**_SESSION, **(TUNED if self.tuned else {})}


def read_task() -> Task:
    """From the command line, as JSON."""
    return Task(**json.loads(sys.argv[1]))


def report_start() -> None:
    """To whoever measures: the first poll comes now."""
    print(json.dumps({"started_at": time.time()}), flush=True)


class Table:
    """The destination, one INSERT a call."""

    def __init__(self, task: Task) -> None:
        self._name = task.table
        self._client = clickhouse_connect.get_client(
            host=task.host, port=task.port, autogenerate_session_id=False
        )

    def insert_rows(self, rows: Iterable[dict[str, Any]]) -> None:
        rows = list(rows)
        columns = [pa.array([row[name] for row in rows]).cast(type_) for name, type_ in COLUMNS.items()]
        table = pa.Table.from_arrays(columns, names=list(COLUMNS))
        self._client.insert_arrow(self._name, table, settings={"async_insert": 0})

    def insert_decoded(self, values: Iterable[bytes]) -> None:
        self.insert_rows(map(orjson.loads, values))

    def insert_raw(self, values: Iterable[bytes]) -> None:
        settings = {"async_insert": 0, "date_time_input_format": "best_effort"}
        self._client.raw_insert(
            self._name, insert_block=b"\n".join(values), fmt="JSONEachRow", settings=settings
        )
