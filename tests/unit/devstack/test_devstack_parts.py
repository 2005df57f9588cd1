"""What the dev stack decides without starting anything."""

from __future__ import annotations

import json
import re
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from typer.testing import CliRunner

from oncehouse.devstack import jars
from oncehouse.devstack.cli import app
from oncehouse.devstack.clickhouse import ClickHouseServer
from oncehouse.devstack.java import find_java, parse_java_major, spark_jars_folder
from oncehouse.devstack.kafka_connect import Connect
from oncehouse.devstack.redis import Redis
from oncehouse.devstack.server_base import ServerPlace
from oncehouse.devstack.spark import FirstSparkWorker, SecondSparkWorker
from oncehouse.devstack.stack import Stack, sort_by_start
from oncehouse.devstack.state import add_ports, load_ports
from oncehouse.errors import ConfigurationError, TransientError

ROOT = Path(__file__).parents[3]


def write_program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("shown", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ("command not understood", None),
    ],
)
def test_the_major_version_of_java_is_read_from_what_it_shows(shown, major):
    assert parse_java_major(shown) == major


def test_a_missing_java_is_answered_with_what_to_install(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"no Java on PATH\. Install Java 17 or 21"):
        find_java()


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_402", "24.0.1"])
def test_a_java_that_spark_does_not_run_on_is_refused(monkeypatch, tmp_path, version):
    write_program(tmp_path / "bin" / "java", f"echo 'openjdk version \"{version}\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="Install Java 17 or 21"):
        find_java()


def test_a_failed_retrieval_leaves_no_jars_behind_and_may_be_tried_again(monkeypatch, tmp_path):
    # A Java that fetches half of what was asked for and fails.
    java = """
    if [ "$1" = -version ]; then echo 'openjdk version "17.0.1"' >&2; exit 0; fi
    for last; do :; done; touch "${last%/*}/kafka_2.13-4.1.0.jar"; echo "a download failed"; exit 1
    """
    write_program(tmp_path / "jdk" / "bin" / "java", java)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setenv("ONCEHOUSE_CACHE", str(tmp_path / "cache"))

    for _ in range(2):
        with pytest.raises(TransientError, match=r"(?s)could not be fetched.*a download failed"):
            jars.kafka_broker_jars()
    assert list((tmp_path / "cache" / "jars").iterdir()) == []

    write_program(tmp_path / "jdk" / "bin" / "java", java.replace("exit 1", "exit 0"))
    assert [jar.name for jar in jars.kafka_broker_jars()] == ["kafka_2.13-4.1.0.jar"]


def test_the_connector_brings_nothing_that_spark_ships_itself():
    connector = {jars.artifact_of(jar) for jar in jars.connector_jars()}
    shipped = {jars.artifact_of(jar) for jar in spark_jars_folder().glob("*.jar")}
    assert {"spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13", "kafka-clients"} <= connector
    assert connector & shipped == set()


def test_redis_comes_from_the_path_where_there_is_no_wheel_for_this_python(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    redis = Redis(place=ServerPlace(folder=tmp_path, ports={"redis": 1}))
    with pytest.raises(ConfigurationError, match="apt install redis-server"):
        redis.launch()
    (tmp_path / "redis-server").touch(mode=0o755)
    assert redis.launch().command[0] == str(tmp_path / "redis-server")


def test_clickhouse_prefers_a_binary_on_the_path_to_the_wheel(monkeypatch, tmp_path):
    part = ClickHouseServer(place=ServerPlace(folder=tmp_path / "ch", ports={"http": 1, "tcp": 2}))
    assert "clickhouse_server.py" in " ".join(part.launch().command)

    binary = write_program(tmp_path / "bin" / "clickhouse", "exit 0")
    monkeypatch.setenv("PATH", str(binary.parent))
    launch = part.launch()
    assert launch.command[:2] == (str(binary), "server")
    assert launch.command[2] == f"--config-file={next(iter(launch.files))}"


def test_clickhouse_settings_are_sound_whatever_the_folder_is_called(tmp_path):
    place = ServerPlace(folder=tmp_path / "a & <b>", ports={"http": 1, "tcp": 2})
    (settings,) = ClickHouseServer(place=place).launch().files.values()
    parsed = ET.fromstring(settings)
    assert parsed.findtext("path") == f"{tmp_path}/a & <b>/data/"
    assert parsed.findtext("listen_host") == "127.0.0.1"
    assert parsed.find("zookeeper") is None


def test_connect_is_told_of_the_stacks_own_kafka_and_of_nothing_beyond_its_secrets(tmp_path):
    place = ServerPlace(
        folder=tmp_path, ports={"rest": 1}, neighbours={"kafka": {"broker": 7, "controller": 8}}
    )
    part = Connect(place=place)
    part.prepare()
    part.prepare()
    settings = dict(
        line.split("=", 1) for line in part.launch().files[tmp_path / "worker.properties"].splitlines()
    )
    assert settings["bootstrap.servers"] == "127.0.0.1:7"
    assert settings["listeners"] == part.url == "http://127.0.0.1:1"
    assert settings["config.providers.file.param.allowed.paths"] == str(part.secrets)
    plugins = Path(settings["plugin.path"])
    assert list(plugins.glob("debezium/debezium-connector-postgres-*.jar"))


def test_connect_without_kafka_says_what_to_start(tmp_path):
    with pytest.raises(ConfigurationError, match="oncehouse dev up --with connect"):
        Connect(place=ServerPlace(folder=tmp_path, ports={"rest": 1})).launch()


def test_ports_once_chosen_stay_and_never_meet():
    ports = add_ports({}, part="kafka", names=("broker", "controller"))
    more = add_ports(ports, part="clickhouse", names=("http", "tcp"))
    assert more["kafka"] == ports["kafka"]
    assert add_ports(more, part="kafka", names=("broker", "controller")) == more
    assert len({port for numbers in more.values() for port in numbers.values()}) == 4


def test_a_state_file_that_is_none_is_named(tmp_path):
    (tmp_path / "state.json").write_text("[]")
    with pytest.raises(ConfigurationError, match=re.escape(str(tmp_path / "state.json"))):
        load_ports(tmp_path)


def test_parts_start_in_an_order_and_unknown_ones_are_refused():
    assert sort_by_start(["clickhouse", "kafka", "zookeeper"]) == ["zookeeper", "kafka", "clickhouse"]
    with pytest.raises(ConfigurationError, match="no part called mysql"):
        sort_by_start(["kafka", "mysql"])


def test_a_part_that_was_never_brought_up_says_how_to_add_it(tmp_path):
    with pytest.raises(ConfigurationError, match="oncehouse dev up --with postgres"):
        _ = Stack(folder=tmp_path).postgres


def test_status_and_down_of_no_stack_are_calm(tmp_path):
    folder = str(tmp_path / "none")
    shown = CliRunner().invoke(app, ["status", "--json", "--folder", folder])
    stopped = CliRunner().invoke(app, ["down", "--json", "--folder", folder])
    assert (shown.exit_code, json.loads(shown.output)) == (0, {"parts": []})
    assert (stopped.exit_code, json.loads(stopped.output)) == (0, {"stopped": []})
    assert not Path(folder).exists()


IMAGE_EXTRAS = {"clickhouse", "direct", "pipeline", "protobuf", "messaging", "etl", "sync", "postgres"}


def test_requirement_files_name_what_the_package_declares():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    image = {*project["dependencies"], *(line for name in IMAGE_EXTRAS for line in extras[name])}
    image = {line for line in image if not line.startswith("oncehouse[")}
    image.remove("sqlalchemy>=2.0.43")  # with the extra `asyncio` it is listed as well
    runtime = (ROOT / "requirements" / "runtime.in").read_text().splitlines()
    dev = [
        line
        for name in ("dev", "redis")
        for line in (ROOT / "requirements" / f"{name}.in").read_text().splitlines()
    ]
    assert {line for line in runtime if not line.startswith("#")} == image
    every = {line for name in extras for line in extras[name] if not line.startswith("oncehouse[")}
    assert {canonical(line) for line in every} <= {canonical(line) for line in (*runtime, *dev)}


def canonical(requirement):
    return re.split(r"[<>=\[]", requirement)[0]


def test_pinned_requirements_hold_hashes_and_no_addresses():
    for name in ("runtime", "dev", "redis"):
        text = (ROOT / "requirements" / f"{name}.txt").read_text()
        assert "://" not in text
        assert "--index-url" not in text
        pins = re.split(r"\n(?=\S)", text.strip())
        assert all("--hash=sha256:" in pin for pin in pins)


def test_the_spark_cluster_is_three_parts_under_one_name_and_starts_with_its_master():
    assert sort_by_start(["spark", "s3"]) == ["s3", "spark-master", "spark-worker-1", "spark-worker-2"]


def test_the_workers_are_machines_of_their_own_below_one_master(tmp_path):
    ports = {"spark-master": {"master": 1, "web": 2}}
    launches = []
    for number, part in enumerate((FirstSparkWorker, SecondSparkWorker)):
        place = ServerPlace(
            folder=tmp_path / part.name, ports={"worker": 10 + number, "web": 20 + number}, neighbours=ports
        )
        launches.append(part(place=place).launch())
    assert [launch.command[-1] for launch in launches] == ["spark://127.0.0.1:1"] * 2
    hosts = [launch.command[launch.command.index("--host") + 1] for launch in launches]
    scratch = [launch.environment["TMPDIR"] for launch in launches]
    assert len(set(hosts)) == len(set(scratch)) == 2


def test_a_spark_worker_without_its_master_says_what_to_start(tmp_path):
    with pytest.raises(ConfigurationError, match="oncehouse dev up --with spark"):
        FirstSparkWorker(place=ServerPlace(folder=tmp_path, ports={"worker": 1, "web": 2})).launch()
