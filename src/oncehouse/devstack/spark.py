"""A standalone Spark cluster out of PySpark's jars: a master and two workers, each a process and a machine of its own.

The workers differ by their loopback address, because Spark runs the second copy of a slow task on another host only,
and by their folder for temporary files, so that each has a cache of its own as machines have.
"""

from __future__ import annotations

import http.client
import json
import signal
from dataclasses import dataclass
from typing import Any, ClassVar

from oncehouse.devstack.java import LOG4J_PROPERTIES, find_java, spark_jars, spark_jars_folder
from oncehouse.devstack.server_base import LOCALHOST, Launch, ServerPlace, answers
from oncehouse.errors import ConfigurationError

CLUSTER = ("spark-master", "spark-worker-1", "spark-worker-2")
WORKER_CORES = 2
WORKER_MEMORY = "1g"


def _launch(place: ServerPlace, what: str, *arguments: str) -> Launch:
    logging = place.folder / "log4j2.properties"
    java = (find_java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{spark_jars_folder()}/*")
    scala = spark_jars("spark-core_*.jar")[0].name.split("_")[1].split("-")[0]
    scratch = place.folder / "tmp"
    return Launch(
        command=(
            *(*java, f"-Dlog4j2.configurationFile={logging}"),
            *(f"org.apache.spark.deploy.{what}", *arguments),
        ),
        files={logging: LOG4J_PROPERTIES},
        # What Spark's own scripts would set, for the executors that a worker starts.
        environment={
            "SPARK_HOME": str(spark_jars_folder().parent),
            "SPARK_SCALA_VERSION": scala,
            "TMPDIR": str(scratch),
            "SPARK_LOCAL_DIRS": str(scratch),
        },
    )


@dataclass(frozen=True, kw_only=True)
class SparkMaster:
    place: ServerPlace

    name: ClassVar[str] = "spark-master"
    port_names: ClassVar[tuple[str, ...]] = ("master", "web")
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    ready_within_seconds: ClassVar[float] = 120

    @property
    def url(self) -> str:
        return f"spark://{LOCALHOST}:{self.place.ports['master']}"

    @property
    def address(self) -> str:
        return self.url

    def prepare(self) -> None:
        (self.place.folder / "tmp").mkdir(exist_ok=True, mode=0o700)

    def launch(self) -> Launch:
        ports = ("--port", str(self.place.ports["master"]), "--webui-port", str(self.place.ports["web"]))
        return _launch(self.place, "master.Master", "--host", LOCALHOST, *ports)

    def is_ready(self) -> bool:
        return bool(_ask(self.place.ports["web"]))

    def workers(self) -> list[dict[str, Any]]:
        """Those that the master takes for alive, as it describes them."""
        described: dict[str, Any] = _ask(self.place.ports["web"])
        return [worker for worker in described.get("workers", ()) if worker["state"] == "ALIVE"]


@dataclass(frozen=True, kw_only=True)
class SparkWorker:
    place: ServerPlace

    host: ClassVar[str]
    name: ClassVar[str]
    port_names: ClassVar[tuple[str, ...]] = ("worker", "web")
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    ready_within_seconds: ClassVar[float] = 120

    @property
    def address(self) -> str:
        return f"{self.host}:{self.place.ports['worker']}"

    def prepare(self) -> None:
        (self.place.folder / "tmp").mkdir(exist_ok=True, mode=0o700)

    def launch(self) -> Launch:
        ports = ("--port", str(self.place.ports["worker"]), "--webui-port", str(self.place.ports["web"]))
        size = ("--cores", str(WORKER_CORES), "--memory", WORKER_MEMORY)
        folder = ("--work-dir", str(self.place.folder / "work"))
        return _launch(
            self.place, "worker.Worker", "--host", self.host, *ports, *size, *folder, self._master.url
        )

    def is_ready(self) -> bool:
        known = {(worker["host"], worker["port"]) for worker in self._master.workers()}
        return (self.host, self.place.ports["worker"]) in known

    @property
    def _master(self) -> SparkMaster:
        master = self.place.neighbours.get(SparkMaster.name)
        if master is None:
            raise ConfigurationError(
                "A Spark worker needs its master. Start both: oncehouse dev up --with spark"
            )
        return SparkMaster(
            place=ServerPlace(folder=self.place.folder.parent / SparkMaster.name, ports=master)
        )


class FirstSparkWorker(SparkWorker):
    host: ClassVar[str] = LOCALHOST
    name: ClassVar[str] = "spark-worker-1"


class SecondSparkWorker(SparkWorker):
    host: ClassVar[str] = "127.0.0.2"
    name: ClassVar[str] = "spark-worker-2"


def _ask(web_port: int) -> dict[str, Any]:
    """What the master reports of itself; nothing while it does not answer."""
    if not answers(web_port):
        return {}
    connection = http.client.HTTPConnection(LOCALHOST, web_port, timeout=5)
    try:
        connection.request("GET", "/json/")
        state: dict[str, Any] = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    finally:
        connection.close()
    return state
