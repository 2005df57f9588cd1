"""From a real topic into a stored inbox and through workers, on real Kafka and PostgreSQL, all of it read twice."""

from __future__ import annotations

import threading
import time
import uuid

from confluent_kafka import Producer

from inbox_examples import effect, effects_by_key, prepare
from oncehouse.common.database import open_engine
from oncehouse.messaging import Consumer, StoredInbox
from oncehouse.messaging.inbox.types import WorkerSettings

MESSAGES, KEYS = 300, 7


def fill(servers: str, topic: str) -> None:
    """Each message twice in a row, as a producer that got no answer would."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
    for at in range(MESSAGES):
        key, message_id = f"key-{at % KEYS}", f"{at % KEYS}-{at // KEYS}"
        for _ in range(2):
            producer.produce(topic, key=key, value=b"v", headers={"oncehouse-id": message_id.encode()})
    assert producer.flush(60) == 0


def consume(servers: str, topic: str, stored: StoredInbox, repeated: int) -> None:
    """By a group of its own, from the start, until this many repeats were met in all."""
    consumer = Consumer(
        bootstrap_servers=servers,
        group=f"inbox-{uuid.uuid4().hex}",
        options={"auto.offset.reset": "earliest"},
    )
    consumer.batch(topic, size=50, wait=0.1)(stored.store)
    thread = threading.Thread(target=consumer.run)
    thread.start()
    deadline = time.monotonic() + 60
    while stored.counts.repeated < repeated and time.monotonic() < deadline:
        time.sleep(0.05)
    consumer.stop()
    thread.join(60)


def test_a_topic_read_twice_is_handled_once_and_in_order_by_key(kafka, topic, postgres_url):
    name = topic(partitions=3)
    engine = open_engine(postgres_url, setting="database")
    prepare(engine)
    stored = StoredInbox("orders", engine)
    fill(kafka.bootstrap_servers, name)
    consume(kafka.bootstrap_servers, name, stored, MESSAGES)
    consume(kafka.bootstrap_servers, name, stored, 3 * MESSAGES)
    assert (stored.counts.new, stored.counts.repeated) == (MESSAGES, 3 * MESSAGES)
    stored.worker(
        lambda session, one: session.execute(effect(one)), settings=WorkerSettings(poll_seconds=0.05)
    ).run(once=True)
    with engine.connect() as connection:
        found = effects_by_key(connection)
    assert {key: ids == [f"{key[4:]}-{n}" for n in range(len(ids))] for key, ids in found.items()} == {
        f"key-{key}": True for key in range(KEYS)
    }
    assert sum(map(len, found.values())) == MESSAGES
    engine.dispose()
