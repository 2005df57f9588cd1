"""Real servers for the tests, started when the first test asks for them and stopped when the session ends.

`kafka`, `clickhouse`, `postgres`, `redis`, `zookeeper`, `connect`, `s3` and `spark_cluster` live as long as the
session; what a test makes in them (topics, databases) is its own. A server that a test killed is started again before
the next test. Tests that touch a server carry the marker `servers`, so that `-m "not servers"` runs without any.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import clickhouse_connect
import pytest
from clickhouse_connect.driver.client import Client
from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import HealthCheck, settings

from answer_schemas import hold_answers
from chaos_report import ChaosReport
from clickhouse_users import add_users
from fresh_databases import fresh_clickhouse, fresh_postgres
from oncehouse.common import redaction
from oncehouse.devstack.clickhouse import ClickHouseServer
from oncehouse.devstack.kafka import KafkaServer
from oncehouse.devstack.kafka_connect import Connect
from oncehouse.devstack.postgres import Postgres
from oncehouse.devstack.redis import Redis
from oncehouse.devstack.s3 import S3
from oncehouse.devstack.spark import SparkMaster
from oncehouse.devstack.stack import Stack
from oncehouse.devstack.state import load_ports
from oncehouse.devstack.zookeeper import ZooKeeper
from replica_stand_in import ReplicaStandIn
from replicated_tables import open_replicas
from scenarios import SCENARIOS

# How long an example takes says how busy the machine is, and nothing about what is tested.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

_PARTS = {
    *("kafka", "brokers", "secure_kafka", "clickhouse", "second_clickhouse"),
    *("postgres", "redis", "zookeeper", "connect", "s3", "spark_cluster"),
}
_FOLDER_PREFIX = "oncehouse-tests-"
LENT_STACK = "ONCEHOUSE_TESTS_STACK"
"""The folder of another session's stack, for a session that such a one starts: servers are the larger part of it."""
_STACK = pytest.StashKey[Stack]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-chaos", action="store_true", help="run all chaos scenarios and long tests, and nothing else"
    )
    parser.addoption(
        "--scenario",
        default="",
        help="with --all-chaos: run this scenario of tests/support/scenarios.py and its defect alone",
    )

    parser.addoption(
        "--write-screenshots",
        action="store_true",
        help="let the browser tests write docs/images, which they otherwise leave as they are",
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A skipped browser is told even where skips are not listed."""
    skipped = [
        found for found in terminalreporter.stats.get("skipped", ()) if "tests/browser/" in found.nodeid
    ]
    if skipped:
        why = skipped[0].longrepr[2] if isinstance(skipped[0].longrepr, tuple) else str(skipped[0].longrepr)
        terminalreporter.write_line(
            f"{len(skipped)} browser tests did not run: {why.removeprefix('Skipped: ')}"
        )


def pytest_configure(config: pytest.Config) -> None:
    # A terminated session must stop its servers as an interrupted one does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asked = config.getoption("--scenario")
    if asked and asked not in {scenario.name for scenario in SCENARIOS}:
        raise pytest.UsageError(f"{asked!r} is not a scenario of tests/support/scenarios.py")
    if config.getoption("--all-chaos"):
        whole = config.args_source == pytest.Config.ArgsSource.TESTPATHS and not (
            config.option.keyword or config.option.markexpr or config.option.scenario
        )
        config.pluginmanager.register(ChaosReport(whole=whole), "chaos-report")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _PARTS & set(getattr(item, "fixturenames", ())):
            item.add_marker("servers")
    wanted = _is_scenario if config.getoption("--all-chaos") else _is_quick
    if asked := config.getoption("--scenario"):
        wanted = partial(_plays, asked)
    left_out = [item for item in items if not wanted(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if wanted(item)]


def _is_scenario(item: pytest.Item) -> bool:
    """What `make chaos` runs."""
    marks = ("long", "scenario", "defect")
    return _is_chaos(item) or any(item.get_closest_marker(mark) is not None for mark in marks)


def _plays(scenario: str, item: pytest.Item) -> bool:
    marks = (found for mark in ("scenario", "defect") for found in item.iter_markers(mark))
    return any(found.args == (scenario,) for found in marks)


def _is_quick(item: pytest.Item) -> bool:
    """What every test session runs."""
    if item.get_closest_marker("long") is not None:
        return False
    return not _is_chaos(item) or item.get_closest_marker("short") is not None


def _is_chaos(item: pytest.Item) -> bool:
    return Path(__file__).parent / "chaos" in item.path.parents


@pytest.fixture(scope="session", autouse=True)
def _answers_fit_the_published_schema() -> Iterator[None]:
    with hold_answers():
        yield


@pytest.fixture(scope="session")
def stack(pytestconfig: pytest.Config) -> Iterator[Stack]:
    """The session's stack, empty until a part is asked for. Has `kill(part)`, `stop(part)`, `start(part)`."""
    if lent := os.environ.get(LENT_STACK):
        yield Stack(folder=Path(lent))
        return
    _stop_what_dead_sessions_left()
    folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER_PREFIX}{os.getpid()}-"))
    add_users(folder / ClickHouseServer.name)
    stack = Stack(folder=folder)
    pytestconfig.stash[_STACK] = stack
    try:
        yield stack
    finally:
        stack.discard()


def _stop_what_dead_sessions_left() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*-*"):
        session = folder.name.removeprefix(_FOLDER_PREFIX).split("-")[0]
        if folder.stat().st_uid == os.getuid() and not Path(f"/proc/{session}").exists():
            Stack(folder=folder).discard()


@pytest.fixture(autouse=True)
def _forget_secrets_of_other_tests() -> Iterator[None]:
    """What one test called a secret may be what another has to find in the output."""
    before = set(redaction._known)
    yield
    redaction._known.clear()
    redaction._known.update(before)


@pytest.fixture(autouse=True)
def _restart_what_an_earlier_test_ended(pytestconfig: pytest.Config) -> None:
    stack = pytestconfig.stash.get(_STACK, None)
    if stack is not None:
        for part in load_ports(stack.folder):
            if stack.process(part) is None:
                stack.start(part)


@pytest.fixture(scope="session")
def kafka(stack: Stack) -> KafkaServer:
    stack.up(["kafka"])
    return stack.kafka


@pytest.fixture(scope="session")
def brokers(stack: Stack) -> KafkaServer:
    """Three brokers that are one cluster."""
    stack.up(["brokers"])
    return stack.brokers


@pytest.fixture(scope="session")
def clickhouse(stack: Stack) -> ClickHouseServer:
    stack.up(["clickhouse"])
    return stack.clickhouse


@pytest.fixture(scope="session")
def second_clickhouse() -> Iterator[ClickHouseServer]:
    """Another server, that knows nothing of the first."""
    stack = Stack(folder=Path(tempfile.mkdtemp(prefix=f"{_FOLDER_PREFIX}{os.getpid()}-")))
    try:
        stack.up(["clickhouse"])
        yield stack.clickhouse
    finally:
        stack.discard()


@pytest.fixture
def replicas(
    clickhouse: ClickHouseServer, second_clickhouse: ClickHouseServer, database: str
) -> Iterator[ReplicaStandIn]:
    """A stand-in for replicated tables in the test's database, which both servers have."""
    ports = (clickhouse.place.ports["http"], second_clickhouse.place.ports["http"])
    with open_replicas(ports, database) as replicas:
        yield replicas


@pytest.fixture(scope="session")
def postgres(stack: Stack) -> Postgres:
    stack.up(["postgres"])
    return stack.postgres


@pytest.fixture(scope="session")
def redis(stack: Stack) -> Redis:
    stack.up(["redis"])
    return stack.redis


@pytest.fixture(scope="session")
def zookeeper(stack: Stack) -> ZooKeeper:
    """ClickHouse is told of ZooKeeper too, and restarted for that if it runs already."""
    stack.up(["zookeeper", "clickhouse"])
    return stack.zookeeper


@pytest.fixture(scope="session")
def connect(stack: Stack, kafka: KafkaServer, postgres: Postgres) -> Connect:
    """Kafka Connect with Debezium; what a test puts there, it deletes."""
    del kafka, postgres
    stack.up(["connect"])
    return stack.connect


@pytest.fixture(scope="session")
def s3(stack: Stack) -> S3:
    stack.up(["s3"])
    return stack.s3


@pytest.fixture(scope="session")
def spark_cluster(stack: Stack) -> SparkMaster:
    """A master and two workers, processes of their own."""
    stack.up(["spark"])
    return stack.spark_master


@pytest.fixture(scope="session")
def kafka_admin(kafka: KafkaServer) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})


@pytest.fixture
def topic(kafka_admin: AdminClient) -> Iterator[Callable[..., str]]:
    """`topic(partitions=3, **{"cleanup.policy": "compact"})` makes a topic of a fresh name and returns it."""
    made: list[str] = []

    def make(*, partitions: int = 1, **config: str) -> str:
        name = f"events-{uuid.uuid4().hex[:12]}"
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
        kafka_admin.create_topics([new])[name].result(timeout=30)
        made.append(name)
        # A broker under load hears of a topic a little later than its creator.
        while kafka_admin.describe_topics(TopicCollection([name]))[name].exception(timeout=30) is not None:
            time.sleep(0.05)
        return name

    yield make
    if made:
        for deleted in kafka_admin.delete_topics(made).values():
            deleted.exception(timeout=30)  # a test may have deleted its topic itself


@pytest.fixture
def produce(kafka: KafkaServer) -> Callable[..., None]:
    """`produce(topic, [b"…", None], partition=0)` sends in order and returns once the broker has all."""

    def send(topic: str, values: Sequence[bytes | None], *, partition: int = 0) -> None:
        settings = {"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True, "linger.ms": 5}
        producer = Producer(settings)
        for value in values:
            while True:
                try:
                    producer.produce(topic, value=value, partition=partition)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(60) == 0, f"{topic}: the broker did not take all messages"

    return send


@pytest.fixture(scope="session")
def clickhouse_client(clickhouse: ClickHouseServer) -> Iterator[Client]:
    port = clickhouse.place.ports["http"]
    client = clickhouse_connect.get_client(host="127.0.0.1", port=port, autogenerate_session_id=False)
    yield client
    client.close()


@pytest.fixture
def database(clickhouse_client: Client) -> Iterator[str]:
    """The name of a fresh ClickHouse database, dropped after the test."""
    with fresh_clickhouse(clickhouse_client) as name:
        yield name


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """A fresh PostgreSQL database, as a SQLAlchemy URL."""
    with fresh_postgres(postgres) as url:
        yield url
