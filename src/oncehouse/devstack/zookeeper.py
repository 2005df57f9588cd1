"""ZooKeeper 3.9 out of PySpark's jars: what ClickHouse's KeeperMap tables stand on."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import ClassVar

from oncehouse.devstack.java import LOG4J_PROPERTIES, find_java, spark_jars_folder
from oncehouse.devstack.server_base import LOCALHOST, Launch, ServerPlace, answers


@dataclass(frozen=True, kw_only=True)
class ZooKeeper:
    place: ServerPlace

    name: ClassVar[str] = "zookeeper"
    port_names: ClassVar[tuple[str, ...]] = ("client",)
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    ready_within_seconds: ClassVar[float] = 60

    @property
    def hosts(self) -> str:
        return f"{LOCALHOST}:{self.place.ports['client']}"

    @property
    def address(self) -> str:
        return self.hosts

    def prepare(self) -> None:
        """Nothing to fetch: the jars came with PySpark, and the server lays out its data itself."""

    def launch(self) -> Launch:
        settings, logging = self.place.folder / "zoo.cfg", self.place.folder / "log4j2.properties"
        java = (find_java(), "-cp", f"{spark_jars_folder()}/*", f"-Dlog4j2.configurationFile={logging}")
        return Launch(
            command=(*java, "-Xmx256m", "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(settings)),
            files={settings: self._settings(), logging: LOG4J_PROPERTIES},
        )

    def is_ready(self) -> bool:
        return answers(self.place.ports["client"], say=b"ruok", expect=b"imok")

    def _settings(self) -> str:
        settings = {
            "dataDir": self.place.folder / "data",
            "clientPort": self.place.ports["client"],
            "clientPortAddress": LOCALHOST,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "ruok",
            "maxClientCnxns": 0,
        }
        return "".join(f"{key}={value}\n" for key, value in settings.items())
