"""Jars from Maven Central, fetched once by the Ivy that PySpark ships.

A set of jars lives in a folder named by its coordinates. It is retrieved next to that folder and renamed, so a
folder under its final name is complete. The cache is `$ONCEHOUSE_CACHE`, or `~/.cache/oncehouse`.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from oncehouse.devstack.java import find_java, spark_jars, spark_jars_folder
from oncehouse.errors import OncehouseError, TransientError


@dataclass(frozen=True, kw_only=True)
class Coordinates:
    organisation: str
    module: str
    revision: str

    @property
    def folder_name(self) -> str:
        return f"{self.organisation}-{self.module}-{self.revision}"


KAFKA_BROKER = Coordinates(organisation="org.apache.kafka", module="kafka_2.13", revision="4.1.0")
SPARK_KAFKA_CONNECTOR = Coordinates(
    organisation="org.apache.spark", module="spark-sql-kafka-0-10_2.13", revision="4.0.0"
)

KAFKA_CONNECT = Coordinates(organisation="org.apache.kafka", module="connect-runtime", revision="4.1.0")
DEBEZIUM_POSTGRES = Coordinates(
    organisation="io.debezium", module="debezium-connector-postgres", revision="3.3.1.Final"
)


def keep_quiet(_message: str) -> None:
    """The listener of callers that show no progress."""


def cache_folder() -> Path:
    configured = os.environ.get("ONCEHOUSE_CACHE")
    return Path(configured).expanduser().resolve() if configured else Path.home() / ".cache" / "oncehouse"


def kafka_broker_jars(say: Callable[[str], None] = keep_quiet) -> list[Path]:
    """All jars of a Kafka broker."""
    return _retrieve(KAFKA_BROKER, say)


def connector_jars(say: Callable[[str], None] = keep_quiet) -> list[Path]:
    """Spark's Kafka connector with what it needs, without what Spark itself ships: for `spark.jars`."""
    shipped = {artifact_of(jar) for jar in spark_jars_folder().glob("*.jar")}
    return [jar for jar in _retrieve(SPARK_KAFKA_CONNECTOR, say) if artifact_of(jar) not in shipped]


def connect_jars(say: Callable[[str], None] = keep_quiet) -> list[Path]:
    """All jars of a Kafka Connect worker, without connectors."""
    return _retrieve(KAFKA_CONNECT, say)


def debezium_jars(say: Callable[[str], None] = keep_quiet) -> list[Path]:
    """Debezium's connector for PostgreSQL with what it needs, all in one folder: for `plugin.path`."""
    return _retrieve(DEBEZIUM_POSTGRES, say)


def artifact_of(jar: Path) -> str:
    """`kafka-clients` from `kafka-clients-3.9.0.jar`."""
    # A version begins with two numbers and a dot; names such as spark-sql-kafka-0-10_2.13 hold digits too.
    return re.sub(r"-\d+\.\d.*\.jar$", "", jar.name)


def _retrieve(wanted: Coordinates, say: Callable[[str], None]) -> list[Path]:
    folder = cache_folder() / "jars" / wanted.folder_name
    if not folder.is_dir():
        with _only_one_at_a_time():
            if not folder.is_dir():
                say(f"fetching {wanted.module} {wanted.revision} (once)")
                _retrieve_into(wanted, folder)
    return sorted(folder.glob("*.jar"))


@contextmanager
def _only_one_at_a_time() -> Iterator[None]:
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _retrieve_into(wanted: Coordinates, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
    try:
        # Ivy runs as a child of this call, so an interrupted retrieval leaves only a .new- folder behind.
        done = subprocess.run(_ivy_command(wanted, new), capture_output=True, text=True, check=False)
        if done.returncode != 0 or not (new / f"{wanted.module}-{wanted.revision}.jar").is_file():
            output = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
            raise TransientError(
                f"The jars of {wanted.module} {wanted.revision} could not be fetched from Maven Central. "
                f"Check the network and try again. Ivy's last words:\n{output}"
            )
        new.chmod(0o755)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _ivy_command(wanted: Coordinates, into: Path) -> list[str]:
    (ivy,) = spark_jars("ivy-*.jar")
    command = [find_java(), "-jar", str(ivy), "-cache", str(cache_folder() / "ivy"), "-confs", "default"]
    dependency = ["-dependency", wanted.organisation, wanted.module, wanted.revision]
    return [*command, *dependency, "-retrieve", f"{into}/[artifact]-[revision].[ext]"]


def main() -> int:
    """Fetch everything that is not there yet: `python -m oncehouse.devstack.jars`."""
    try:
        for fetch in (kafka_broker_jars, connector_jars, connect_jars, debezium_jars):
            fetch(print)
    except OncehouseError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
