"""The Spark session: settings that the pipeline needs, overridden by those of the pipeline file."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import sys
import threading
import traceback
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from oncehouse.common import structured_logging
from oncehouse.common.file_permissions import (
    make_private_folder,
    open_private,
    own_temporary_folder,
    private_by_default,
)
from oncehouse.common.process_folder import process_folder
from oncehouse.common.redaction import SECRET_SETTINGS, is_secret_setting
from oncehouse.errors import ConfigurationError, TransientError
from oncehouse.ledger.storage.file_cache import BYTES_VARIABLE
from oncehouse.pipeline.spark import arrow_batches
from oncehouse.pipeline.spark.executors import (
    PYTHON_VARIABLE,
    await_executors,
    check_executors,
    choose_cache_bound,
    choose_python,
    executor_settings,
)
from oncehouse.pipeline.spark.job_errors import find_reason, is_full, rebuild_error, translated_errors
from oncehouse.pipeline.spark.master_check import is_local, require_master

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncehouse.config.pipeline import Pipeline

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"

# What Kafka's client fetches is about a megabyte at a time, which Java's collector would call humongous, and look at
# the whole heap for. Under what the user's own options say, which may choose another collector.
_REGIONS = "-XX:G1HeapRegionSize=8m"
# Java's second compiler takes on what was called ten times as often as usual: what is called for every record still is,
# a moment later, and on few cores the rest costs more to compile than it saves for minutes.
_COMPILED_LATER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000 "
    "-XX:Tier4BackEdgeThreshold=400000"
)
_JAVA_OPTIONS = f"{_REGIONS} {_COMPILED_LATER}"

_SETTINGS = {
    # Workers start with the pipeline's modules loaded.
    "spark.python.daemon.module": "oncehouse.pipeline.spark.worker_daemon",
    # Loads and reads share the cores instead of waiting for each other.
    "spark.scheduler.mode": "FAIR",
    # A worker gets records in blocks, and holds one besides the chunk that it fills: large records make small ones.
    **arrow_batches.SETTINGS,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
    # Checkpoints are scratch: keep no more of them than the stream itself needs.
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # What Spark's pages, event logs and printed plans show in place of a value: chosen by the setting's name.
    "spark.redaction.regex": SECRET_SETTINGS,
    "spark.sql.redaction.options.regex": SECRET_SETTINGS,
    "spark.executor.defaultJavaOptions": _JAVA_OPTIONS,
}
_TEMPORARY_FOLDER = "java.io.tmpdir"
# What Java takes options from that a person may have set, and that ours would overrule.
_OPTION_VARIABLES = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
_JAVA_ENDS_SECONDS = 5.0
_SIGNALLED = 128
_GATEWAY = "PYSPARK_GATEWAY_PORT"
_SUBMIT_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_LOCAL = re.compile(r"^local(\[(\*|\d+)\])?$")


def open_session(
    pipeline: Pipeline,
    jars: Sequence[Path] = (),
    *,
    say: Callable[[str], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> SparkSession:
    """Start Spark, or join the session that runs; raises ConfigurationError when it cannot start.

    Raises TransientError where its Java is killed while it starts.

    A cluster's executors are waited for and looked at, unless `stop` is set meanwhile.
    """
    require_master(pipeline)
    _set_environment(pipeline)
    spark = _start(pipeline, jars)
    if is_local(pipeline.spark.master):
        return spark
    stop = stop or threading.Event()
    try:
        await_executors(spark, pipeline, say, stop)
        if not stop.is_set():
            check_executors(spark, pipeline)
    except BaseException:
        close_session(spark)
        raise
    return spark


def _set_environment(pipeline: Pipeline) -> None:
    """What Spark, and this process where it works itself, take from the environment."""
    os.environ[PYTHON_VARIABLE] = choose_python(pipeline)
    if (bound := choose_cache_bound(pipeline)) is not None:
        os.environ[BYTES_VARIABLE] = bound
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_local(pipeline.spark.master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _start(pipeline: Pipeline, jars: Sequence[Path]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"oncehouse {pipeline.pipeline}").master(
        master(pipeline.spark.master)
    )
    settings = _gather_settings(pipeline, jars)
    # A Java that runs already gets it by a call, which no other process sees.
    starts = not runs_java()
    secrets = {name: value for name, value in settings.items() if starts and is_secret_setting(name)}
    for name, value in settings.items():
        if name not in secrets:
            builder = builder.config(name, value)
    with translated_errors(pipeline.pipeline):
        log = _log_path(pipeline)
    try:
        with _stderr_to(log), _secrets_by_file(secrets, log.parent), private_by_default():
            spark = builder.getOrCreate()
    except Exception as error:  # the JVM's failures come in many classes, all meaning the same here
        if is_full(str(error)):
            raise rebuild_error(pipeline.pipeline, str(error)) from error
        if _was_killed(error):
            raise name_lost_java(pipeline) from error
        raise ConfigurationError(
            f"Spark does not start with master {pipeline.spark.master!r}: {find_reason(str(error))}. Java 17 or 21 is "
            f"needed. What Spark said is in {log}."
        ) from error
    _drop_java_includes(spark)
    return spark


def _drop_java_includes(spark: SparkSession) -> None:
    """Keep jars without Python in them off the module path of the workers.

    Spark puts every jar of `spark.jars.packages` there, and a worker lists all of them again before each task.
    """
    from pyspark import SparkFiles

    context = spark.sparkContext
    included: list[str] = context._python_includes or []  # noqa: SLF001 - PySpark has no public name for it
    folder = Path(SparkFiles.getRootDirectory())
    dropped = [name for name in included if name.endswith(".jar") and not _holds_python(folder / name)]
    included[:] = [name for name in included if name not in dropped]
    paths = {str(folder / name) for name in dropped}
    sys.path[:] = [path for path in sys.path if path not in paths]


def _holds_python(jar: Path) -> bool:
    try:
        with zipfile.ZipFile(jar) as archive:
            return any(name.endswith((".py", ".pyc")) for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return True


def _was_killed(error: BaseException) -> bool:
    """Whether a signal has ended the Java that was to start, so that it may start the next time."""
    from py4j.protocol import Py4JJavaError
    from pyspark import SparkContext

    # Before it has said where it listens, PySpark keeps it in a variable alone.
    found = (frame.f_locals.get("proc") for frame, _ in traceback.walk_tb(error.__traceback__))
    java = getattr(SparkContext._gateway, "proc", None) or next(  # noqa: SLF001 - PySpark has no public name for it
        (process for process in found if isinstance(process, subprocess.Popen)), None
    )
    if java is None or isinstance(error, Py4JJavaError):
        return False
    with suppress(subprocess.TimeoutExpired):
        java.wait(timeout=_JAVA_ENDS_SECONDS)
    # By a signal: of the process itself, or as a shell or Java says it.
    return java.returncode is not None and (java.returncode < 0 or java.returncode > _SIGNALLED)


def runs_java() -> bool:
    """Whether Spark's Java is there already: started by this process before, or by spark-submit before Python."""
    from pyspark import SparkContext

    return SparkContext._gateway is not None or _GATEWAY in os.environ  # noqa: SLF001 - PySpark has no public name for it


def _gather_settings(pipeline: Pipeline, jars: Sequence[Path]) -> dict[str, str]:
    """Our own settings, those that the machine needs, and above both those of the pipeline file."""
    settings = _SETTINGS | executor_settings(pipeline)
    settings["spark.driver.defaultJavaOptions"] = choose_driver_options(process_folder())
    if is_local(pipeline.spark.master):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if jars:
        settings["spark.jars"] = ",".join(str(jar) for jar in jars)
    elif _needs_connector(pipeline) and not _has_connector(pipeline.spark.settings):
        settings["spark.jars.packages"] = CONNECTOR
    if structured_logging.is_started():
        settings[f"spark.executorEnv.{structured_logging.FORMAT_VARIABLE}"] = os.environ[
            structured_logging.FORMAT_VARIABLE
        ]
    return settings | pipeline.spark.settings


def choose_driver_options(folder: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Java's options of the driver, with the folder for what it leaves behind where this process is killed.

    Spark puts blocks, jars and libraries there, unless `spark.local.dir` or SPARK_LOCAL_DIRS names another one.
    """
    if any(_TEMPORARY_FOLDER in environment.get(name, "") for name in _OPTION_VARIABLES):
        return _JAVA_OPTIONS
    return f"{_JAVA_OPTIONS} {shlex.quote(f'-D{_TEMPORARY_FOLDER}={folder}')}"


def _needs_connector(pipeline: Pipeline) -> bool:
    return pipeline.source.kafka is not None and pipeline.source.kafka.reader == "connector"


def _has_connector(settings: Mapping[str, str]) -> bool:
    """Whether the file brings one, or Spark has it among its own jars, as in an image made for that."""
    import pyspark

    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    found = next((home / "jars").glob("spark-sql-kafka-0-10_*.jar"), None)
    return found is not None or not {"spark.jars", "spark.jars.packages"}.isdisjoint(settings)


def has_ended(spark: SparkSession, failure: BaseException | None = None) -> bool:
    """Whether the Java process of a session is gone: killed, out of memory, or stopped with our whole group.

    After a failure to reach it, it is given a moment: a Java that was asked to end takes its time over it.
    """
    from py4j.protocol import Py4JError

    java = getattr(spark.sparkContext._gateway, "proc", None)  # noqa: SLF001 - PySpark has no public name for it
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
    return own_temporary_folder(f"oncehouse-{os.getuid()}") / name


def _log_path(pipeline: Pipeline) -> Path:
    path = scratch_folder(pipeline.ledger.files) / pipeline.pipeline / "spark.log"
    make_private_folder(path.parent)
    return path


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Give the JVM, and the workers it starts, a log file for their stderr: ours is for people."""
    sys.stderr.flush()
    kept = os.dup(2)
    log = open_private(path, new=False)
    try:
        os.dup2(log, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(log)
        os.close(kept)


@contextmanager
def _secrets_by_file(secrets: Mapping[str, str], folder: Path) -> Iterator[None]:
    """Give Spark's secret settings to its start in a private file: PySpark would put them on a command line."""
    if not secrets:
        yield
        return
    path = folder / f"spark-{os.getpid()}.properties"
    with os.fdopen(open_private(path, new=False), "w", encoding="utf-8") as file:
        file.writelines(f"{_escape(name)}={_escape(value)}\n" for name, value in secrets.items())
    before = os.environ.get(_SUBMIT_ARGUMENTS)
    options = f"--load-spark-defaults --properties-file {shlex.quote(str(path))}"
    os.environ[_SUBMIT_ARGUMENTS] = f"{options} {before or 'pyspark-shell'}"
    try:
        yield
    finally:
        path.unlink()
        if before is None:
            del os.environ[_SUBMIT_ARGUMENTS]
        else:
            os.environ[_SUBMIT_ARGUMENTS] = before


def _escape(text: str) -> str:
    """A key or value of a Java properties file, whatever it holds."""
    return "".join(
        character if character.isascii() and character.isalnum() else f"\\u{unit:04x}"
        for character in text
        for unit in _utf16(character)
    )


def _utf16(character: str) -> tuple[int, ...]:
    raw = character.encode("utf-16-be", "surrogatepass")
    return tuple(int.from_bytes(raw[at : at + 2]) for at in range(0, len(raw), 2))


def master(address: str) -> str:
    """A local master that gives a failed task three more chances, as a cluster does."""
    found = _LOCAL.match(address)
    return f"local[{found[2] or '1'}, 4]" if found else address
