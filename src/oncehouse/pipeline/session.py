"""The Spark session: settings that the road needs, under whatever the pipeline file asks for."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from oncehouse.errors import ConfigurationError, TransientError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncehouse.config import Pipeline

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"

_SETTINGS = {
    # Workers start with the road's modules loaded.
    "spark.python.daemon.module": "oncehouse.pipeline.worker_daemon",
    # Loads and reads share the cores instead of waiting for each other.
    "spark.scheduler.mode": "FAIR",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
    # Checkpoints are scratch: keep no more of them than the stream itself needs.
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
_JAVA_ENDS_SECONDS = 5.0
_LOCAL = re.compile(r"^local(\[(\*|\d+)\])?$")


def open_session(pipeline: Pipeline, jars: Sequence[Path] = ()) -> SparkSession:
    """Start Spark, or join the session that runs; raises ConfigurationError when it cannot start."""
    from pyspark.sql import SparkSession

    # Workers must run this very Python; PySpark would take whichever is first on PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if pipeline.spark.master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(f"oncehouse {pipeline.pipeline}").master(
        master(pipeline.spark.master)
    )
    settings = dict(_SETTINGS)
    if pipeline.spark.master.startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if jars:
        settings["spark.jars"] = ",".join(str(jar) for jar in jars)
    elif pipeline.source.kafka and not {"spark.jars", "spark.jars.packages"} & set(pipeline.spark.settings):
        settings["spark.jars.packages"] = CONNECTOR
    settings |= pipeline.spark.settings
    for name, value in settings.items():
        builder = builder.config(name, value)
    log = _log_path(pipeline)
    try:
        with _stderr_to(log):
            return builder.getOrCreate()
    except Exception as error:  # the JVM's failures come in many classes, all meaning the same here
        raise ConfigurationError(
            f"Spark does not start with master {pipeline.spark.master!r}: {str(error).splitlines()[0]}. Java 17 or "
            f"21 is needed. What Spark said is in {log}."
        ) from error


def has_ended(spark: SparkSession, failure: BaseException | None = None) -> bool:
    """Whether the Java process of a session is gone: killed, out of memory, or stopped with our whole group.

    After a failure to reach it, it is given a moment: a Java that was asked to end takes its time over it.
    """
    from py4j.protocol import Py4JError

    java = getattr(spark.sparkContext._gateway, "proc", None)  # noqa: SLF001 - PySpark tells it nowhere else
    if java is None:
        return False
    if isinstance(failure, OSError | Py4JError | TransientError):
        with suppress(subprocess.TimeoutExpired):
            java.wait(timeout=_JAVA_ENDS_SECONDS)
    return java.poll() is not None


def name_lost_java(pipeline: Pipeline) -> TransientError:
    return TransientError(
        f"Pipeline {pipeline.pipeline}: Spark's Java process has ended, killed or out of memory. What was settled is "
        "settled; start again, with a larger spark.settings `spark.driver.memory` if memory was the reason. Its last "
        f"words are in {_log_path(pipeline)}."
    )


def close_session(spark: SparkSession) -> None:
    """Stop Spark; a Java process that is gone already, or goes meanwhile, needs no stopping."""
    from py4j.protocol import Py4JError

    with suppress(OSError, Py4JError):
        spark.stop()


def scratch_folder(files_root: str) -> Path:
    """Where this machine keeps what may be lost; for a bucket, a folder that no other ledger shares."""
    if "://" not in files_root:
        return Path(files_root)
    name = hashlib.sha256(files_root.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"oncehouse-{os.getuid()}" / name


def _log_path(pipeline: Pipeline) -> Path:
    path = scratch_folder(pipeline.ledger.files) / pipeline.pipeline / "spark.log"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Give the JVM, and the workers it starts, a log file for their stderr: ours is for people."""
    sys.stderr.flush()
    kept = os.dup(2)
    log = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    try:
        os.dup2(log, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(log)
        os.close(kept)


def master(asked: str) -> str:
    """A local master that gives a failed task three more chances, as a cluster does."""
    found = _LOCAL.match(asked)
    return f"local[{found[2] or '1'}, 4]" if found else asked
