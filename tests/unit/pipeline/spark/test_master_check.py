"""What may stand in `spark.master`, and what is told when nobody is there."""

from __future__ import annotations

import socket

import pytest

from cluster_examples import make_cluster_pipeline
from oncehouse.config.pipeline import Spark
from oncehouse.errors import ConfigurationError, TransientError
from oncehouse.pipeline.spark.master_check import is_local, require_master, standalone_addresses


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize(
    "master",
    [
        *("local", "local[*]", "local[2]", "local[2, 4]", "yarn"),
        *("spark://host:7077", "spark://one:7077,two:7077", "spark://[::1]:7077"),
        *("k8s://https://kubernetes.default.svc", "k8s://host:6443", "k8s://https://proxy/clusters/one"),
    ],
)
def test_masters_that_spark_knows_are_taken(master):
    assert Spark(master=master).master == master


@pytest.mark.parametrize(
    "master",
    [
        *(
            "",
            "Local[2]",
            "local[]",
            "local[0]",
            "local-cluster[2,1,1024]",
            "yarn-client",
            "mesos://host:5050",
        ),
        *("spark://host", "spark://host:7077,", "spark://user@host:7077", "spark://host:7077 --conf x=y"),
        *("k8s://", "k8s://https://", "host:7077", "http://host:7077"),
    ],
)
def test_other_masters_are_refused_with_examples(master):
    with pytest.raises(
        ConfigurationError, match=r"no master of Spark; write local\[\*\], local\[2\], spark://host:7077"
    ):
        Spark(master=master)


def test_only_workers_of_this_machine_are_local():
    assert is_local("local[2]")
    assert not any(map(is_local, ("yarn", "spark://localhost:7077", "k8s://local")))


def test_a_standalone_cluster_may_have_several_masters():
    assert standalone_addresses("spark://one:7077,[::1]:7078") == [("one", 7077), ("::1", 7078)]
    assert standalone_addresses("yarn") == standalone_addresses("k8s://one:7077") == []


def test_a_master_that_is_away_is_told_before_spark_is_started(closed_port):
    with pytest.raises(
        TransientError,
        match=rf"No Spark master answers at spark://127.0.0.1:{closed_port} \(127.0.0.1: Connection refused",
    ):
        require_master(make_cluster_pipeline(master=f"spark://127.0.0.1:{closed_port}"))


def test_one_master_of_several_is_enough(listening, closed_port):
    require_master(make_cluster_pipeline(master=f"spark://127.0.0.1:{closed_port},127.0.0.1:{listening}"))


def test_yarn_needs_to_know_where_its_cluster_is():
    pipeline = make_cluster_pipeline(master="yarn")
    with pytest.raises(ConfigurationError, match="neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set"):
        require_master(pipeline, {})
    require_master(pipeline, {"YARN_CONF_DIR": "/etc/hadoop"})
