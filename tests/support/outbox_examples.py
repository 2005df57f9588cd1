"""Outboxes for tests: tables made, rows written as a service writes them, a sender that needs no Kafka, an order check.

`check_order` judges what came out of Kafka for one key, as numbers from 0 in the order in which they were written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from uuid import UUID

from sqlalchemy import Engine, insert

from oncehouse.common.database import begin, open_engine
from oncehouse.messaging.outbox.ids import make_id
from oncehouse.messaging.outbox.relay.types import ClaimedRow, RefusedRow, SendResult, SentPosition
from oncehouse.messaging.outbox.tables import OutboxTables, bucket_of, create_outbox, outbox_tables

TABLES = outbox_tables()


@contextmanager
def open_outbox(url: str, tables: OutboxTables = TABLES) -> Iterator[Engine]:
    engine = open_engine(url, setting="database")
    with begin(engine, whose="test") as connection:
        create_outbox(connection, tables)
    try:
        yield engine
    finally:
        engine.dispose()


def write(
    engine: Engine,
    messages: Iterable[tuple[bytes | None, bytes | None]],
    *,
    topic: str = "orders",
    headers: str | None = None,
) -> list[UUID]:
    """One transaction with these keys and values; the ids in the same order."""
    rows = [
        {"id": make_id(), "topic": topic, "key": key, "value": value, "headers": headers}
        for key, value in messages
    ]
    for row in rows:
        row["bucket"] = bucket_of(row["key"], row["id"])
    with begin(engine, whose="test") as connection:
        connection.execute(insert(TABLES.outbox), rows)
    return [row["id"] for row in rows]


class MemoryKafka:
    """What senders sent, in the order in which it arrived; refuses values that begin with `poison`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.messages: list[ClaimedRow] = []
        self.error: str | None = None
        """Set: nothing is taken."""
        self.refuses = True

    def take(self, rows: Sequence[ClaimedRow]) -> SendResult:
        with self._lock:
            if self.error is not None:
                return SendResult(acknowledged=(), error=self.error)
            refused: list[RefusedRow] = []
            parked: set[tuple[str, bytes | None]] = set()
            taken: list[ClaimedRow] = []
            for row in rows:
                if (row.topic, row.key) in parked and row.key is not None:
                    continue
                if self.refuses and (row.value or b"").startswith(b"poison"):
                    refused.append(RefusedRow(row, "too bad"))
                    parked.add((row.topic, row.key))
                    continue
                taken.append(row)
            start = len(self.messages)
            self.messages += taken
        return SendResult(
            acknowledged=[row.seq for row in taken],
            positions=[SentPosition(row.seq, 0, start + at) for at, row in enumerate(taken)],
            refused=refused,
        )

    def values(self, key: bytes | None = None) -> list[bytes | None]:
        return [row.value for row in self.messages if key is None or row.key == key]

    def open_sender(self, may_continue: Callable[[], bool]) -> MemorySender:
        return MemorySender(self, may_continue)


class MemorySender:
    def __init__(self, kafka: MemoryKafka, may_continue: Callable[[], bool]) -> None:
        self._kafka = kafka
        self.may_continue = may_continue

    def send(self, rows: Sequence[ClaimedRow], *, give_up_at: float) -> SendResult:
        return self._kafka.take(rows)

    def close(self) -> None:
        pass


def check_order(numbers: Sequence[int], written: int) -> str | None:
    """What is wrong with a key's messages; None when nothing is.

    Each is there; the first occurrences come in order; and after a repeat all that follow it are repeated too, up to
    where the key had come, before anything new: a number is never more than one ahead of the number before it.
    """
    missing = set(range(written)) - set(numbers)
    if missing:
        return f"{len(missing)} are missing, the first is {min(missing)}"
    if strange := set(numbers) - set(range(written)):
        return f"{len(strange)} were never committed, among them {min(strange)}"
    before = -1
    for number in numbers:
        if number > before + 1:
            return f"{number} came after {before}"
        before = number
    return None
