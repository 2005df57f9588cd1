"""What order by key costs: reading at an assignment which keys wait, and asking for each message whether its key does.

    python benchmarks/held_keys.py [--messages 100000]

Real Kafka of its own. The retry topic holds so many uncommitted messages of 200 bytes, a key each.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

from demo_traffic import make_topic
from oncehouse.devstack.stack import Stack
from oncehouse.messaging.failure_policy import OutgoingMessage
from oncehouse.messaging.message import Message
from oncehouse.messaging.retries.kafka_retry_broker import KafkaRetryBroker
from oncehouse.messaging.retries.retry_topics import RetryTopics

ROUNDS = 3


def measure(servers: str, messages: int) -> tuple[float, float]:
    """Seconds to read the keys of all messages, and to ask for as many messages; the best of some rounds."""
    make_topic(servers, "orders", partitions=1)
    broker = KafkaRetryBroker(bootstrap_servers=servers, group="bench")
    policy = RetryTopics(delays=["1h"], order="key")
    policy.open("orders", broker)
    waiting = [
        OutgoingMessage(topic="orders.retry.1", partition=0, key=b"key-%d" % at, value=b"x" * 200, headers=())
        for at in range(messages)
    ]
    broker.send(waiting)
    asked = [
        Message(topic="orders", partition=0, offset=at, key=b"key-%d" % at, value=b"")
        for at in range(messages)
    ]
    reading, asking = [], []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        policy.assigned([("orders", 0)])
        reading.append(time.perf_counter() - started)
        started = time.perf_counter()
        if len(policy.find_blocked(asked)) != messages:
            raise SystemExit("a key that waits was not found")
        asking.append(time.perf_counter() - started)
        policy.revoked([("orders", 0)])
    broker.close()
    return min(reading), min(asking)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    messages = parser.parse_args().messages
    folder = Path(tempfile.mkdtemp(prefix="oncehouse-bench-held-"))
    stack = Stack(folder=folder)
    try:
        stack.up(["kafka"])
        reading, asking = measure(stack.kafka.bootstrap_servers, messages)
    finally:
        stack.down()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{messages:,} waiting messages read at an assignment in {reading:.2f} s")
    print(f"whether the key of a message waits: {asking / messages * 1e6:.2f} µs a message")


if __name__ == "__main__":
    main()
