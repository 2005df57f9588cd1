"""Kafka Connect 4.1 with Debezium's connector for PostgreSQL, as a cluster of one worker.

Distributed mode, as in production: connectors come over HTTP and stay in Kafka with their offsets, so that a killed
worker takes them up again when it starts. It needs the stack's own Kafka. Connectors may name secrets as
`${env:NAME}`, and as `${file:FILE:KEY}` for files in the worker's folder `secrets`.
"""

from __future__ import annotations

import http.client
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from oncehouse.devstack.jars import connect_jars, debezium_jars
from oncehouse.devstack.java import LOG4J_PROPERTIES, LOGGING_JARS, find_java, spark_jars
from oncehouse.devstack.server_base import LOCALHOST, Launch, ServerPlace, answers
from oncehouse.errors import ConfigurationError

_PROVIDERS = "org.apache.kafka.common.config.provider"
_JSON = "org.apache.kafka.connect.json.JsonConverter"


@dataclass(frozen=True, kw_only=True)
class Connect:
    place: ServerPlace

    name: ClassVar[str] = "connect"
    port_names: ClassVar[tuple[str, ...]] = ("rest",)
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    ready_within_seconds: ClassVar[float] = 120

    @property
    def url(self) -> str:
        return f"http://{LOCALHOST}:{self.place.ports['rest']}"

    @property
    def address(self) -> str:
        return self.url

    @property
    def secrets(self) -> Path:
        """Where files must be that connectors take secrets from."""
        return self.place.folder / "secrets"

    def prepare(self) -> None:
        self.secrets.mkdir(exist_ok=True, mode=0o700)
        plugin = self._plugins / "debezium"
        jars = debezium_jars()
        if not (plugin.is_symlink() and plugin.readlink() == jars[0].parent):
            self._plugins.mkdir(exist_ok=True)
            plugin.unlink(missing_ok=True)
            plugin.symlink_to(jars[0].parent)

    def launch(self) -> Launch:
        properties, logging = self.place.folder / "worker.properties", self.place.folder / "log4j2.properties"
        classpath = os.pathsep.join(str(jar) for jar in [*spark_jars(*LOGGING_JARS), *connect_jars()])
        # The second compiler costs a short-lived worker more than it gives back.
        java = (find_java(), "-Xmx400m", "-XX:TieredStopAtLevel=1", "-cp", classpath)
        return Launch(
            command=(
                *(*java, f"-Dlog4j2.configurationFile={logging}"),
                *("org.apache.kafka.connect.cli.ConnectDistributed", str(properties)),
            ),
            files={properties: self._properties(), logging: LOG4J_PROPERTIES},
        )

    def is_ready(self) -> bool:
        """The worker has joined its group: before that it serves addresses, and answers 404 or waits."""
        if not answers(self.place.ports["rest"]):
            return False
        connection = http.client.HTTPConnection(LOCALHOST, self.place.ports["rest"], timeout=2)
        try:
            connection.request("GET", "/connectors")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    @property
    def _plugins(self) -> Path:
        return self.place.folder / "plugins"

    def _properties(self) -> str:
        if "kafka" not in self.place.neighbours:
            raise ConfigurationError(
                "Kafka Connect needs the stack's Kafka. Start both: oncehouse dev up --with connect"
            )
        settings = {
            "bootstrap.servers": f"{LOCALHOST}:{self.place.neighbours['kafka']['broker']}",
            "group.id": "connect",
            "listeners": self.url,
            "plugin.path": str(self._plugins),
            "plugin.discovery": "service_load",
            "key.converter": _JSON,
            "value.converter": _JSON,
            **{
                f"{what}.storage.{key}": value
                for what in ("config", "offset", "status")
                for key, value in (("topic", f"connect-{what}"), ("replication.factor", "1"))
            },
            "offset.storage.partitions": "1",
            "status.storage.partitions": "1",
            "offset.flush.interval.ms": "1000",
            # A killed worker is forgotten soon, and what it ran is not kept for its return for minutes.
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1000",
            "scheduled.rebalance.max.delay.ms": "0",
            "config.providers": "env,file",
            "config.providers.env.class": f"{_PROVIDERS}.EnvVarConfigProvider",
            "config.providers.file.class": f"{_PROVIDERS}.FileConfigProvider",
            "config.providers.file.param.allowed.paths": str(self.secrets),
        }
        return "".join(f"{key}={value}\n" for key, value in settings.items())
