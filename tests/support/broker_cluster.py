"""Three real brokers in the hands of a test: who leads a partition, and a log that is cut by an unclean election."""

from __future__ import annotations

import subprocess
import time
import uuid
from collections.abc import Callable, Sequence

from confluent_kafka import KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic

from oncehouse.devstack.stack import Stack

PATIENCE_SECONDS = 90.0


class BrokerCluster:
    """The brokers `kafka-1` to `kafka-3`; partitions are on the first two, the third one keeps the quorum."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self.servers = stack.brokers.bootstrap_servers
        self._made: list[str] = []

    def make_topic(self, *, partitions: int = 1, **config: str) -> str:
        name = f"events-{uuid.uuid4().hex[:12]}"
        new = NewTopic(
            name,
            num_partitions=partitions,
            replica_assignment=[[1, 2]] * partitions,
            config={"unclean.leader.election.enable": "true"} | config,
        )
        admin = self._admin()
        admin.create_topics([new])[name].result(timeout=30)
        self._made.append(name)
        self._wait(
            lambda: self.leader(name) == 1 and self.in_sync(name) == {1, 2}, f"{name}: the first leader"
        )
        return name

    def delete_topics(self) -> None:
        if self._made:
            admin = self._admin()
            for deleted in admin.delete_topics(self._made).values():
                deleted.exception(timeout=30)

    def produce(self, topic: str, values: Sequence[bytes | None], *, partition: int = 0) -> None:
        """All in-sync replicas confirm, be it one alone."""
        producer = Producer({"bootstrap.servers": self.servers, "acks": "all", "log_level": 0})
        for value in values:
            producer.produce(topic, value=value, partition=partition)
        assert producer.flush(60) == 0, f"{topic}: the brokers did not take all messages"

    def leader(self, topic: str, partition: int = 0) -> int | None:
        found = self._describe(topic, partition)
        return int(found.leader.id) if found is not None and found.leader is not None else None

    def in_sync(self, topic: str, partition: int = 0) -> set[int]:
        found = self._describe(topic, partition)
        return {int(node.id) for node in found.isr} if found is not None else set()

    def leave_follower_behind(self, topic: str) -> None:
        """From now on the first broker alone takes records."""
        self._stack.stop("kafka-2")
        self._wait(lambda: self.in_sync(topic) == {1}, f"{topic}: the first broker alone")

    def elect_the_one_behind(self, topic: str) -> None:
        """The leader dies, and the broker without the last records leads: they are gone."""
        self._stack.kill("kafka-1")
        self._stack.start("kafka-2")
        self.wait_for_leader(topic, 2)

    def wait_for_leader(self, topic: str, broker: int) -> None:
        self._wait(lambda: self.leader(topic) == broker, f"{topic}: broker {broker} leads")

    def kill_leader(self) -> None:
        self._stack.kill("kafka-1")

    def bring_back(self, topic: str) -> None:
        """The first broker starts again, and follows."""
        self._stack.start("kafka-1")
        self._wait(lambda: self.in_sync(topic) == {1, 2}, f"{topic}: both brokers in step")

    def throttle(self, bytes_per_second: int | None) -> None:
        """How much each client may read from a broker in a second; None: as much as it likes."""
        change = (
            ("--delete-config", "consumer_byte_rate")
            if bytes_per_second is None
            else ("--add-config", f"consumer_byte_rate={bytes_per_second}")
        )
        command = self._stack.brokers.tool("kafka.admin.ConfigCommand")
        subprocess.run(
            [
                *(*command, "--bootstrap-server", self.servers, "--alter", *change),
                *("--entity-type", "clients", "--entity-default"),
            ],
            check=True,
            capture_output=True,
            timeout=PATIENCE_SECONDS,
        )

    def _describe(self, topic: str, partition: int):
        admin = self._admin()
        try:
            found = admin.describe_topics(TopicCollection([topic]), request_timeout=5)
            return found[topic].result(timeout=10).partitions[partition]
        except KafkaException:
            return None

    def _admin(self) -> AdminClient:
        # A client of its own for each look: one that knows a dead controller would ask for it for minutes.
        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    @staticmethod
    def _wait(condition: Callable[[], object], what: str) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < end, f"waited in vain: {what}"
            time.sleep(0.2)
