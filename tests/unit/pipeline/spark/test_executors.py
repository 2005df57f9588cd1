"""What the executors of a cluster are told, and how it is told when they cannot work."""

from __future__ import annotations

import itertools
import sys
import threading

import pytest

from cluster_examples import make_cluster_pipeline
from oncehouse.errors import ConfigurationError, TransientError
from oncehouse.ledger.storage.file_cache import BYTES_VARIABLE
from oncehouse.pipeline.spark import executors
from oncehouse.pipeline.spark.executors import (
    ExecutorProbe,
    await_executors,
    choose_python,
    describe_unseen,
    executor_settings,
    explain_failure,
)
from oncehouse.pipeline.spark.session import CONNECTOR, _gather_settings, runs_java
from oncehouse.pipeline.spark.version_check import VARIABLE, read_versions, versions_here

# As Spark words it: the driver gets the first failure of the task that ended the job.
FAILED = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent \
failure: Lost task 0.3 in stage 0.0 (TID 7) (10.0.0.7 executor 1): {reason}"""


def test_executors_are_told_the_bound_of_their_cache_and_the_drivers_versions():
    settings = executor_settings(make_cluster_pipeline(master="spark://host:7077", cache="2GB"))
    assert settings.pop(f"spark.executorEnv.{BYTES_VARIABLE}") == str(2 << 30)
    assert read_versions(settings.pop(f"spark.executorEnv.{VARIABLE}")) == versions_here()
    assert settings == {}


def test_a_bound_of_the_drivers_environment_is_passed_on_unless_the_file_has_one(monkeypatch):
    name = f"spark.executorEnv.{BYTES_VARIABLE}"
    monkeypatch.setenv(BYTES_VARIABLE, "3GB")
    assert executor_settings(make_cluster_pipeline(master="yarn"))[name] == "3GB"
    assert executor_settings(make_cluster_pipeline(master="yarn", cache="2GB"))[name] == str(2 << 30)
    monkeypatch.delenv(BYTES_VARIABLE)
    assert name not in executor_settings(make_cluster_pipeline(master="yarn"))


def test_workers_of_this_machine_run_this_python_and_are_told_the_bound_alone(monkeypatch):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    pipeline = make_cluster_pipeline(environment="nowhere.tar.gz", cache="2GB")
    assert executor_settings(pipeline) == {f"spark.executorEnv.{BYTES_VARIABLE}": str(2 << 30)}
    assert choose_python(pipeline) == sys.executable


def test_a_packed_environment_is_shipped_and_its_python_is_run(tmp_path):
    packed = tmp_path / "packed.tar.gz"
    packed.touch()
    pipeline = make_cluster_pipeline(master="yarn", environment=str(packed))
    assert executor_settings(pipeline)["spark.archives"] == f"{packed}#environment"
    assert choose_python(pipeline) == "./environment/bin/python"


def test_a_packed_environment_behind_an_address_is_left_to_spark():
    pipeline = make_cluster_pipeline(master="yarn", environment="hdfs:///packed.tar.gz")
    assert executor_settings(pipeline)["spark.archives"] == "hdfs:///packed.tar.gz#environment"


def test_a_packed_environment_that_is_not_there_is_named_before_spark_starts():
    with pytest.raises(ConfigurationError, match=r"no file nowhere\.tar\.gz\. `oncehouse bundle nowhere"):
        executor_settings(make_cluster_pipeline(master="yarn", environment="nowhere.tar.gz"))


def test_a_python_that_spark_was_told_of_goes_before_all_others(monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3")
    assert choose_python(make_cluster_pipeline(master="yarn")) == "/usr/bin/python3"
    settings = {"spark.pyspark.python": "/opt/python"}
    assert choose_python(make_cluster_pipeline(master="yarn", settings=settings)) == "/opt/python"


def test_an_executor_without_the_python_is_named_with_its_host():
    told = explain_failure(
        "shop",
        FAILED.format(reason='java.io.IOException: Cannot run program "/opt/py": error=2, No such file'),
    )
    assert isinstance(told, ConfigurationError)
    assert str(told).startswith("The executor on 10.0.0.7 cannot start /opt/py: there is no such Python")


def test_an_executor_without_oncehouse_is_named_with_its_host():
    reason = (
        "org.apache.spark.SparkException: \nError from python worker:\n  /usr/bin/python3: Error while finding module "
        "specification for 'oncehouse.pipeline.spark.worker_daemon' (ModuleNotFoundError: No module named 'oncehouse')"
    )
    told = explain_failure("shop", FAILED.format(reason=reason))
    assert isinstance(told, ConfigurationError)
    assert str(told).startswith("The executor on 10.0.0.7 has no oncehouse in its Python. ")
    assert "oncehouse bundle" in str(told)


def test_what_an_executors_daemon_said_is_told_in_its_own_words():
    reason = (
        "org.apache.spark.SparkException: \nError from python worker:\n  Traceback (most recent call last):\n    …\n"
        "  oncehouse.errors.ConfigurationError: The executor on seven differs from the driver: pyarrow 25.0.0.\n"
    )
    told = explain_failure("shop", FAILED.format(reason=reason))
    assert isinstance(told, ConfigurationError)
    assert str(told) == "The executor on seven differs from the driver: pyarrow 25.0.0."


def test_a_lost_executor_may_be_tried_again():
    told = explain_failure("shop", FAILED.format(reason="ExecutorLostFailure (worker lost)"))
    assert isinstance(told, TransientError)


@pytest.fixture
def given(monkeypatch):
    """`given(0, 1)`: how many executors there are at each look; the clock goes on by a second with each."""

    def make(*counts: int) -> threading.Event:
        looks, clock = iter(counts), itertools.count()
        monkeypatch.setattr(executors, "count_executors", lambda _: next(looks))
        monkeypatch.setattr(executors.time, "monotonic", lambda: next(clock))
        stop = threading.Event()
        monkeypatch.setattr(stop, "wait", lambda _: None)
        return stop

    return make


def test_a_cluster_that_gives_an_executor_late_is_waited_for_and_it_is_told(given):
    said: list[str] = []
    stop = given(*[0] * 30, 1)
    await_executors(None, make_cluster_pipeline(master="spark://host:7077"), said.append, stop)
    assert said == ["spark://host:7077 has given pipeline shop no executor yet. Waiting."]


def test_a_cluster_that_gives_no_executor_at_all_is_left(given):
    stop = given(*[0] * 400)
    with pytest.raises(TransientError, match=r"no executor within 301 s\. Look whether it has machines"):
        await_executors(None, make_cluster_pipeline(master="spark://host:7077"), lambda _: None, stop)


def test_who_is_told_to_stop_waits_for_no_executor(given):
    stop = given()
    stop.set()
    await_executors(None, make_cluster_pipeline(master="spark://host:7077"), lambda _: None, stop)


@pytest.mark.parametrize(
    ("files", "advice"),
    [
        (
            "s3://key:word@bucket/shop",
            "(s3://**********@bucket/shop): gone. Give the executors the same keys",
        ),
        ("/srv/ledger", "(/srv/ledger): gone. A folder has to be the same one on all machines"),
    ],
)
def test_executors_that_cannot_read_the_ledgers_files_are_named_without_its_keys(files, advice):
    pipeline = make_cluster_pipeline(files, master="yarn")
    told = describe_unseen(pipeline, ExecutorProbe(host="seven", problem="gone"))
    assert told.startswith("The executor on seven cannot read what the driver has put under ledger.files ")
    assert advice in told


def test_a_java_that_spark_submit_has_started_is_seen(monkeypatch):
    monkeypatch.setattr("pyspark.SparkContext._gateway", None)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert not runs_java()
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "4040")
    assert runs_java()


def test_the_kafka_connector_is_fetched_only_where_nobody_brings_it(monkeypatch, tmp_path):
    (tmp_path / "jars").mkdir()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert _gather_settings(make_cluster_pipeline(), ())["spark.jars.packages"] == CONNECTOR
    brought = make_cluster_pipeline(settings={"spark.jars": "/some.jar"})
    assert "spark.jars.packages" not in _gather_settings(brought, ())
    (tmp_path / "jars" / "spark-sql-kafka-0-10_2.13-4.0.0.jar").touch()
    assert "spark.jars.packages" not in _gather_settings(make_cluster_pipeline(), ())
