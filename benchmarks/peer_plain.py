"""A peer: the loop that one writes by hand with confluent-kafka. Reads a batch, inserts it, commits; no deduplication.

Decoded (orjson, columns, Arrow), or raw: the bytes as they came, as JSONEachRow. Runs until it is told to end.
"""

from __future__ import annotations

import time

from confluent_kafka import Consumer

from peer_task import BATCH_SECONDS, Table, read_task, report_start

_CHUNK = 20_000
_POLL_SECONDS = 0.2


def main() -> None:
    task = read_task()
    table = Table(task)
    insert = table.insert_raw if task.raw else table.insert_decoded
    consumer = Consumer(
        {
            "bootstrap.servers": task.servers,
            "group.id": task.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **task.client_settings,
        }
    )
    consumer.subscribe([task.topic])
    report_start()
    while True:
        values: list[bytes] = []
        ends_at = time.monotonic() + BATCH_SECONDS
        while len(values) < task.batch_rows and time.monotonic() < ends_at:
            messages = consumer.consume(min(_CHUNK, task.batch_rows - len(values)), _POLL_SECONDS)
            values += [message.value() for message in messages if message.error() is None]
        if values:
            insert(values)
            consumer.commit(asynchronous=False)


if __name__ == "__main__":
    main()
