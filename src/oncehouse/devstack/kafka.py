"""A Kafka 4.1 broker in KRaft mode: broker and controller in one JVM, topics only when asked for."""

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
from oncehouse.devstack.part import LOCALHOST, Launch, Place, answers
from oncehouse.errors import PermanentError


@dataclass(frozen=True, kw_only=True)
class Kafka:
    place: Place

    name: ClassVar[str] = "kafka"
    port_names: ClassVar[tuple[str, ...]] = ("broker", "controller")
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    ready_within_seconds: ClassVar[float] = 90

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
            command=(*self._java(logging), "-Xmx512m", "kafka.Kafka", str(properties)),
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

    @property
    def _data(self) -> Path:
        return self.place.folder / "data"

    def _java(self, logging: Path) -> tuple[str, ...]:
        classpath = os.pathsep.join(str(jar) for jar in [*spark_jars(*LOGGING_JARS), *kafka_broker_jars()])
        return find_java(), "-cp", classpath, f"-Dlog4j2.configurationFile={logging}"

    def _format(self) -> None:
        """Format beside the final folder and rename, so that data/ is there only when it is whole."""
        new, properties = self.place.folder / "data.new", self.place.folder / "format.properties"
        logging = self.place.folder / "log4j2.properties"
        shutil.rmtree(new, ignore_errors=True)
        properties.write_text(self._properties(new))
        logging.write_text(LOG4J_PROPERTIES)
        # A leading dash would read as an option.
        cluster_id = "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
        command = [*self._java(logging), "kafka.tools.StorageTool", "format", "-t", cluster_id]
        done = subprocess.run([*command, "-c", str(properties)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise PermanentError(f"Kafka could not format {new}: {(done.stderr or done.stdout).strip()}")
        properties.unlink()
        new.rename(self._data)

    def _properties(self, data: Path) -> str:
        broker, controller = self.place.ports["broker"], self.place.ports["controller"]
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{LOCALHOST}:{controller}",
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
        return "".join(f"{key}={value}\n" for key, value in settings.items())
