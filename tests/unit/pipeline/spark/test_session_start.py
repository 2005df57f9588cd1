"""A Java that does not come up: killed while it starts, which may pass, or one that cannot run Spark."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from oncehouse.devstack.java import find_java
from oncehouse.pipeline.spark.session import choose_driver_options

PIPELINE = """
import sys
from oncehouse.config.pipeline import Pipeline
from oncehouse.errors import OncehouseError
from oncehouse.pipeline.spark.session import open_session
pipeline = Pipeline(
    pipeline="events",
    source={"kafka": {"bootstrap_servers": "127.0.0.1:9", "topics": ["none"]}, "fields": {"id": "UInt64"}},
    identity={"fields": ["id"]},
    tables=[{"name": "none"}],
    clickhouse={"url": "http://127.0.0.1:9"},
    ledger={"catalog": "sqlite:///none.db", "files": sys.argv[1]},
    spark={"master": "local[1]", "settings": {"spark.jars": "", "spark.submit.pyFiles": ",".join(sys.argv[2:])}},
)
"""
START = f"""{PIPELINE}
try:
    open_session(pipeline)
except OncehouseError as error:
    print(type(error).__name__, error.exit_code, error)
"""
LIST_MODULE_PATH = f"""{PIPELINE}
def list_path(batches):
    import pyarrow as pa
    for _ in batches:
        yield pa.RecordBatch.from_pydict({{"path": sys.path}})

spark = open_session(pipeline)
found = [row.path for row in spark.range(1).mapInArrow(list_path, "path string").collect()]
print(*found, *sys.path, sep="\\n")
spark.stop()
"""


def start_with(folder: Path, java: str) -> str:
    """What comes of a start with a Java of which only Spark's launcher is the real one."""
    program = folder / "java-home" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\ncase "$*" in *launcher.Main*) exec {find_java()} "$@";; esac\n{java}\n')
    program.chmod(0o700)
    done = subprocess.run(
        [sys.executable, "-c", START, str(folder / "files")],
        env=os.environ | {"JAVA_HOME": str(folder / "java-home")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("java", ["kill -KILL $$", "exit 143"], ids=["killed", "ended by SIGTERM"])
def test_a_java_that_is_killed_while_it_starts_may_start_the_next_time(tmp_path, java):
    told = start_with(tmp_path, java)
    assert told.startswith("TransientError 75 Pipeline events: Spark's Java process has ended, killed or out")


def test_a_java_that_cannot_run_spark_is_the_set_up(tmp_path):
    told = start_with(tmp_path, "echo UnsupportedClassVersionError >&2; exit 1")
    assert told.startswith("ConfigurationError 2 Spark does not start")
    assert "Java 17 or 21 is needed" in told


def test_java_gets_the_folder_of_this_process_unless_its_options_name_another_one():
    folder = Path("/tmp/a 'b'/1")
    assert shlex.split(choose_driver_options(folder, {}))[-1] == f"-Djava.io.tmpdir={folder}"
    for name in ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"):
        options = choose_driver_options(folder, {name: "-Xss1m -Djava.io.tmpdir=/own"})
        assert "java.io.tmpdir" not in options


def test_jars_without_python_are_not_listed_by_every_task(tmp_path):
    """As those of `spark.jars.packages`, which Spark puts on the module path of its workers."""
    for name, entry in (("java.jar", "org/Some.class"), ("both.jar", "some/module.py")):
        with zipfile.ZipFile(tmp_path / name, "w") as jar:
            jar.writestr(entry, "")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            LIST_MODULE_PATH,
            tmp_path / "files",
            tmp_path / "java.jar",
            tmp_path / "both.jar",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    named = [Path(line).name for line in done.stdout.splitlines()]
    assert named.count("both.jar") == 2, "of the worker and of the driver"
    assert "java.jar" not in named
