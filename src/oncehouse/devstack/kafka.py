"""Kafka 4.1 brokers in KRaft mode: broker and controller in one JVM, topics only when asked for.

One alone, or a cluster of three for what a single one cannot do: another leader, a log that is cut. The controllers
of the three are a quorum, so two of them must be alive for a leader to be elected.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from oncehouse.devstack.jars import kafka_broker_jars
from oncehouse.devstack.java import LOG4J_PROPERTIES, LOGGING_JARS, find_java, spark_jars
from oncehouse.devstack.server_base import LOCALHOST, Launch, ServerPlace, answers
from oncehouse.errors import PermanentError


@dataclass(frozen=True, kw_only=True)
class KafkaServer:
    place: ServerPlace

    name: ClassVar[str] = "kafka"
    port_names: ClassVar[tuple[str, ...]] = ("broker", "controller")
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    ready_within_seconds: ClassVar[float] = 90
    heap: ClassVar[str] = "512m"

    @property
    def bootstrap_servers(self) -> str:
        return f"{LOCALHOST}:{self.place.ports['broker']}"

    @property
    def address(self) -> str:
        return self.bootstrap_servers

    def prepare(self) -> None:
        kafka_broker_jars()
        if not self._data.is_dir():
            self._format()

    def launch(self) -> Launch:
        properties, logging = self.place.folder / "server.properties", self.place.folder / "log4j2.properties"
        return Launch(
            command=(*self._java(logging), f"-Xmx{self.heap}", "kafka.Kafka", str(properties)),
            files={properties: self._properties(self._data), logging: LOG4J_PROPERTIES},
        )

    def is_ready(self) -> bool:
        # librdkafka logs every refused connection, so the port is tried first.
        if not answers(self.place.ports["broker"]):
            return False
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            client = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
            return bool(client.list_topics(timeout=2).brokers)
        except KafkaException:
            return False

    def tool(self, main: str) -> tuple[str, ...]:
        """How one of Kafka's own command line tools is started, by its class."""
        return (*self._java(self.place.folder / "log4j2.properties"), "-Xmx128m", main)

    @property
    def _data(self) -> Path:
        return self.place.folder / "data"

    def _java(self, logging: Path) -> tuple[str, ...]:
        classpath = os.pathsep.join(str(jar) for jar in [*spark_jars(*LOGGING_JARS), *kafka_broker_jars()])
        return find_java(), "-cp", classpath, f"-Dlog4j2.configurationFile={logging}"

    def _format(self) -> None:
        """Format next to the final folder and rename, so that data/ is there only when it is whole."""
        new, properties = self.place.folder / "data.new", self.place.folder / "format.properties"
        logging = self.place.folder / "log4j2.properties"
        shutil.rmtree(new, ignore_errors=True)
        properties.write_text(self._properties(new))
        logging.write_text(LOG4J_PROPERTIES)
        # A leading dash would read as an option.
        cluster_id = "A" + base64.urlsafe_b64encode(self._cluster_id().bytes).decode().rstrip("=")[1:]
        command = [*self._java(logging), "kafka.tools.StorageTool", "format", "-t", cluster_id]
        done = subprocess.run([*command, "-c", str(properties)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise PermanentError(f"Kafka could not format {new}: {(done.stderr or done.stdout).strip()}")
        properties.unlink()
        new.rename(self._data)

    def _cluster_id(self) -> uuid.UUID:
        return uuid.uuid4()

    def _node(self) -> dict[str, str]:
        """Which node this is, and of which quorum."""
        return {
            "node.id": "1",
            "controller.quorum.voters": f"1@{LOCALHOST}:{self.place.ports['controller']}",
        }

    def _properties(self, data: Path) -> str:
        broker, controller = self.place.ports["broker"], self.place.ports["controller"]
        settings = {
            "process.roles": "broker,controller",
            "listeners": f"PLAINTEXT://{LOCALHOST}:{broker},CONTROLLER://{LOCALHOST}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{LOCALHOST}:{broker}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(data),
            "auto.create.topics.enable": "false",
            # Events with old timestamps must stay: nothing is deleted by age.
            "log.retention.ms": "-1",
            "offsets.topic.num.partitions": "4",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            # After a kill the controller waits this long before it lets the broker in again.
            "broker.session.timeout.ms": "4000",
            "broker.heartbeat.interval.ms": "500",
        }
        settings |= self._node()
        return "".join(f"{key}={value}\n" for key, value in settings.items())


@dataclass(frozen=True, kw_only=True)
class ClusterBroker(KafkaServer):
    """One of three brokers that are a cluster."""

    node: ClassVar[int]
    heap: ClassVar[str] = "256m"
    ready_within_seconds: ClassVar[float] = 120

    @property
    def bootstrap_servers(self) -> str:
        """All three: a client must find the cluster when one of them is dead."""
        ports = [self.place.neighbours[broker.name]["broker"] for broker in CLUSTER_BROKERS]
        return ",".join(f"{LOCALHOST}:{port}" for port in ports)

    def is_ready(self) -> bool:
        # The others of the quorum start after this one, and a broker answers clients only when it has a controller.
        return answers(self.place.ports["broker"])

    def _cluster_id(self) -> uuid.UUID:
        """The same for the brokers of one folder, however often one of them is formatted."""
        return uuid.uuid5(uuid.NAMESPACE_URL, str(self.place.folder.parent))

    def _node(self) -> dict[str, str]:
        voters = [
            f"{broker.node}@{LOCALHOST}:{self.place.neighbours[broker.name]['controller']}"
            for broker in CLUSTER_BROKERS
        ]
        return {
            "node.id": str(self.node),
            "controller.quorum.voters": ",".join(voters),
            # A follower that died leaves the in-sync replicas soon, so that a test need not wait for it.
            "replica.lag.time.max.ms": "5000",
            "offsets.topic.replication.factor": "3",
            "transaction.state.log.replication.factor": "3",
            "num.network.threads": "2",
            "num.io.threads": "2",
        }


class FirstBroker(ClusterBroker):
    node: ClassVar[int] = 1
    name: ClassVar[str] = "kafka-1"


class SecondBroker(ClusterBroker):
    node: ClassVar[int] = 2
    name: ClassVar[str] = "kafka-2"


class ThirdBroker(ClusterBroker):
    node: ClassVar[int] = 3
    name: ClassVar[str] = "kafka-3"


CLUSTER_BROKERS: tuple[type[ClusterBroker], ...] = (FirstBroker, SecondBroker, ThirdBroker)
CLUSTER = tuple(broker.name for broker in CLUSTER_BROKERS)
"""Their names as parts of the stack."""
