"""Three consumers of a group that come and go while records come in, and what their handlers saw of it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Event, Lock, Thread

from confluent_kafka import Producer

from oncehouse.messaging.consumer import Batch, Consumer

PATIENCE_SECONDS = 60.0
PARTITIONS = 6


class Log:
    """What handlers saw, by partition, in the order in which they succeeded."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.seen: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        self.by: dict[str, int] = {}

    def note(self, who: str, batch: Batch) -> None:
        with self._lock:
            self.seen[batch.partition] += [int(value or b"") for value in batch.values]
            self.by[who] = self.by.get(who, 0) + len(batch)

    def count(self) -> int:
        with self._lock:
            return sum(map(len, self.seen.values()))


class Load:
    """Sends rounds of records to every partition until it is told to end."""

    def __init__(self, servers: str, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5})
        self._topic, self._end = topic, Event()
        self.sent = 0
        self._thread = Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        while not self._end.is_set():
            for number in range(self.sent, self.sent + 50):
                for partition in range(PARTITIONS):
                    self._producer.produce(self._topic, value=b"%d" % number, partition=partition)
            self.sent += 50
            self._producer.flush(30)
            time.sleep(0.02)

    def end(self) -> None:
        self._end.set()
        self._thread.join()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.02)


class Running:
    """Consumers in threads, by name."""

    def __init__(self) -> None:
        self._threads: dict[str, tuple[Consumer, Thread]] = {}

    def begin(self, name: str, consumer: Consumer) -> None:
        thread = Thread(target=consumer.run, name=name)
        self._threads[name] = consumer, thread
        thread.start()

    def end(self, name: str) -> None:
        consumer, thread = self._threads.pop(name)
        consumer.stop()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()

    def end_all(self) -> None:
        for name in list(self._threads):
            self.end(name)


@contextmanager
def running() -> Iterator[Running]:
    consumers = Running()
    try:
        yield consumers
    finally:
        consumers.end_all()


def come_and_go_under_load(servers: str, topic: str, options: Mapping[str, str]) -> None:
    """Nothing may be lost, repeated or out of order in its partition."""
    group, log = uuid.uuid4().hex, Log()

    def make(who: str) -> Consumer:
        consumer = Consumer(bootstrap_servers=servers, group=group, options=options)

        @consumer.batch(topic, size=100, wait=0.02, concurrency=2)
        def handle(batch: Batch) -> None:
            time.sleep(0.001)
            log.note(who, batch)

        return consumer

    with running() as consumers:
        load = Load(servers, topic)
        try:
            for who in ("a", "b", "c"):
                consumers.begin(who, make(who))
                wait_for(lambda who=who: log.by.get(who, 0) > 0, f"{who} gets its share")
            consumers.end("a")
            consumers.begin("d", make("d"))
            wait_for(lambda: log.by.get("d", 0) > 0, "d gets its share")
            consumers.end("b")
            consumers.end("c")
        finally:
            load.end()
        wait_for(lambda: log.count() >= load.sent * PARTITIONS, "all records")
        assert log.seen == {partition: list(range(load.sent)) for partition in range(PARTITIONS)}
