"""The executors of a cluster: their settings when Spark starts, and a check of them before any data moves.

The check is a job of a few tiny tasks. Starting its Python on an executor compares versions (`version_check.py`); each
task reads a file that the driver has just put among the ledger's: executors that lack Python, oncehouse, the same
libraries or the ledger's files are named with their host, instead of failing each task later on.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oncehouse.common.redaction import hide_credentials
from oncehouse.errors import ConfigurationError, OncehouseError, TransientError
from oncehouse.ledger.storage.file_cache import BYTES_VARIABLE
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.spark import version_check
from oncehouse.pipeline.spark.job_errors import rebuild_error, translated_errors
from oncehouse.pipeline.spark.master_check import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncehouse.config.pipeline import Pipeline

PYTHON_VARIABLE = "PYSPARK_PYTHON"
_PYTHON_SETTING = "spark.pyspark.python"
# The folder that Spark unpacks the environment into, below the folder in which an executor works.
_UNPACKED = "environment"
PATIENCE_SECONDS = 300.0
REPORT_AFTER_SECONDS = 15.0
_CHECK_SECONDS = 0.2
_HOST = re.compile(r"\(TID \d+\) \(([^\s()]+) executor ([^\s()]+)\)")
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"')
_NO_MODULE = re.compile(r"No module named '?(oncehouse|pyspark)\b")


def executor_settings(pipeline: Pipeline) -> dict[str, str]:
    """Spark's settings by which executors learn what they have to know."""
    settings: dict[str, str] = {}
    if (bound := choose_cache_bound(pipeline)) is not None:
        settings[f"spark.executorEnv.{BYTES_VARIABLE}"] = bound
    if not is_local(pipeline.spark.master):
        versions = version_check.write_versions(version_check.versions_here())
        settings[f"spark.executorEnv.{version_check.VARIABLE}"] = versions
        if (packed := pipeline.spark.environment) is not None:
            if "://" not in packed and not Path(packed).is_file():
                raise ConfigurationError(
                    f"spark.environment: there is no file {packed}. `oncehouse bundle {packed}` writes it."
                )
            settings["spark.archives"] = f"{packed}#{_UNPACKED}"
    return settings


def choose_cache_bound(pipeline: Pipeline) -> str | None:
    """What the file says of the cache, or else this machine; nothing where both leave it open."""
    if pipeline.spark.cache is not None:
        return str(pipeline.spark.cache)
    return os.environ.get(BYTES_VARIABLE) or None


def choose_python(pipeline: Pipeline) -> str:
    """What workers are started with; PySpark would take whichever Python is first on PATH."""
    if chosen := pipeline.spark.settings.get(_PYTHON_SETTING):
        return chosen
    if pipeline.spark.environment is not None and not is_local(pipeline.spark.master):
        return f"./{_UNPACKED}/bin/python"
    return os.environ.get(PYTHON_VARIABLE) or sys.executable


@dataclass(frozen=True, kw_only=True)
class ExecutorProbe:
    """What a task saw of the ledger's files."""

    host: str
    problem: str | None


def await_executors(
    spark: SparkSession, pipeline: Pipeline, say: Callable[[str], None], stop: threading.Event
) -> None:
    """Until the cluster has given one, or `stop` is set; Spark would wait for ever and say nothing."""
    where = f"{pipeline.spark.master} has given pipeline {pipeline.pipeline} no executor"
    conditions = "`spark.executor.memory`, `spark.executor.cores` and, on Kubernetes, the image"
    began, reported = time.monotonic(), False
    while not stop.is_set():
        with translated_errors(pipeline.pipeline):
            if count_executors(spark):
                return
        waited = time.monotonic() - began
        if waited > PATIENCE_SECONDS:
            raise TransientError(
                f"{where} within {waited:.0f} s. Look whether it has machines that are free and large enough for what "
                f"spark.settings ask for ({conditions}). Nothing was read or written."
            )
        if waited > REPORT_AFTER_SECONDS and not reported:
            say(f"{where} yet. Waiting.")
            reported = True
        stop.wait(_CHECK_SECONDS)


def count_executors(spark: SparkSession) -> int:
    # The driver is among them.
    return len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1  # noqa: SLF001 - not in the public API


def check_executors(spark: SparkSession, pipeline: Pipeline) -> None:
    """Raise ConfigurationError, naming host and reason, unless tasks can do their work on the executors there are."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    store = FileStore(pipeline.ledger.files)
    path = f"{pipeline.pipeline}/.seen-{uuid.uuid4().hex}"
    store.put(path, lambda local: Path(local).write_bytes(path.encode()))
    tasks = spark.sparkContext.defaultParallelism
    root = pipeline.ledger.files
    try:
        found = (
            spark.sparkContext.parallelize(range(tasks), tasks).map(lambda _: _probe(root, path)).collect()
        )
    except (Py4JError, PySparkException) as error:
        raise explain_failure(pipeline.pipeline, str(error)) from error
    finally:
        store.delete(path)
    for glance in found:
        if glance.problem is not None:
            raise ConfigurationError(describe_unseen(pipeline, glance))


def explain_failure(pipeline: str, text: str) -> OncehouseError:
    """What Spark's words about tasks that could not even start mean. Pure."""
    found = _HOST.search(text)
    where = f"The executor on {found[1]}" if found else "An executor"
    if missing := _NO_PYTHON.search(text):
        return ConfigurationError(
            f"{where} cannot start {missing[1]}: there is no such Python on its machine. Set PYSPARK_PYTHON, or "
            f"`{_PYTHON_SETTING}` under spark.settings, to one that is there. {version_check.BUNDLE_ADVICE}"
        )
    if missing := _NO_MODULE.search(text):
        return ConfigurationError(f"{where} has no {missing[1]} in its Python. {version_check.BUNDLE_ADVICE}")
    return rebuild_error(pipeline, text)


def _probe(root: str, path: str) -> ExecutorProbe:
    host = socket.gethostname()
    try:
        seen = FileStore(root).read_bytes(path) == path.encode()
    except OncehouseError as error:
        return ExecutorProbe(host=host, problem=str(error))
    return ExecutorProbe(host=host, problem=None if seen else "it holds something else")


def describe_unseen(pipeline: Pipeline, glance: ExecutorProbe) -> str:
    """What is wrong with the ledger's files as an executor sees them. Pure."""
    root = hide_credentials(pipeline.ledger.files)
    advice = (
        "Give the executors the same keys and the same way to it as the driver has"
        if "://" in root
        else "A folder has to be the same one on all machines: mount it there, or let ledger.files be a bucket"
    )
    return (
        f"The executor on {glance.host} cannot read what the driver has put under ledger.files ({root}): "
        f"{glance.problem}. {advice}."
    )
