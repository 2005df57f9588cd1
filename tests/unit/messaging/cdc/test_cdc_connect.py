"""Talking to Kafka Connect: what is put, what is left alone, and how refusals and failures read."""

import base64

import pytest

from fake_connect import serve_connect
from oncehouse.errors import ConfigurationError, PermanentError, TransientError
from oncehouse.messaging.cdc.apply_connector import apply_connector, wait_until_running
from oncehouse.messaging.cdc.connect_client import ConnectClient, find_cause
from oncehouse.messaging.cdc.health import list_connectors
from oncehouse.messaging.cdc.settings import CdcSettings

CONFIG = {"connector.class": "io.debezium.connector.postgresql.PostgresConnector", "slot.name": "s"}
TRACE = """org.apache.kafka.connect.errors.ConnectException: tolerance exceeded
\tat org.apache.kafka.connect.runtime.Worker.run(Worker.java:1)
Caused by: io.debezium.DebeziumException: could not stream
\tat io.debezium.Something.run(Something.java:1)
Caused by: java.net.UnknownHostException: db
\t... 3 more
"""


@pytest.fixture
def fake():
    with serve_connect() as served:
        yield served


@pytest.fixture
def client(fake):
    return ConnectClient(CdcSettings(connect=fake.url))


def test_a_connector_is_put_once_and_again_only_when_it_differs(fake, client):
    assert apply_connector(client, "a b/c", CONFIG) == "created"
    assert apply_connector(client, "a b/c", CONFIG) == "unchanged"
    assert fake.puts == 1
    assert apply_connector(client, "a b/c", CONFIG | {"tasks.max": "1"}) == "changed"
    assert fake.connectors == {"a b/c": CONFIG | {"tasks.max": "1", "name": "a b/c"}}
    assert wait_until_running(client, "a b/c", timeout_seconds=5).running


def test_a_failed_task_is_told_in_its_own_words(fake, client):
    apply_connector(client, "shop", CONFIG)
    fake.fail("shop", TRACE)
    with pytest.raises(
        PermanentError, match=r"connector shop failed: java.net.UnknownHostException: db\. Correct"
    ):
        wait_until_running(client, "shop", timeout_seconds=5)


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (None, "is not started"),
        ({"connector": {"state": "RUNNING"}, "tasks": []}, "is RUNNING with 0 tasks"),
        ({"connector": {"state": "PAUSED"}, "tasks": []}, "is PAUSED with 0 tasks"),
    ],
)
def test_a_connector_that_does_not_get_up_is_waited_for_only_so_long(fake, client, state, told):
    if state is not None:
        fake.states["shop"] = state
    with pytest.raises(TransientError, match=told):
        wait_until_running(client, "shop", timeout_seconds=0)


def test_a_rebalance_is_waited_for(fake, client):
    fake.answers = [(409, {"message": "rebalance"}), (409, {"message": "rebalance"})]
    assert client.list_names() == []


@pytest.mark.parametrize(
    ("status", "body", "kind", "told"),
    [
        (
            400,
            {"message": "slot.name\n is wrong"},
            ConfigurationError,
            r"refused it \(400\): slot.name is wrong",
        ),
        (
            500,
            {"message": "Failed to find any class that implements Connector"},
            ConfigurationError,
            "has no Debezium for PostgreSQL",
        ),
        (500, {"message": "oops"}, TransientError, "is busy"),
        (403, {}, ConfigurationError, "refused the user"),
        (200, b"<html>", PermanentError, "is it Kafka Connect"),
        (404, b"", PermanentError, "is not Kafka Connect"),
    ],
)
def test_refusals_read_as_advice(fake, client, status, body, kind, told):
    fake.answers = [(status, body)]
    with pytest.raises(kind, match=told):
        client.put_config("shop", CONFIG)


def test_a_worker_that_is_away_may_be_asked_later():
    client = ConnectClient(CdcSettings(connect="http://127.0.0.1:9"))
    with pytest.raises(
        TransientError, match=r"127.0.0.1:9 does not answer \(.*refused.*\)\. Check cdc.connect"
    ):
        client.list_names()


def test_the_user_of_the_settings_is_shown_to_connect(fake):
    fake.authorization = "Basic " + base64.b64encode(b"me:secret").decode()
    settings = CdcSettings(connect=fake.url, user="me", password="secret")
    assert ConnectClient(settings).list_names() == []
    assert "secret" not in repr(settings)
    with pytest.raises(ConfigurationError, match=r"refused the user \(401\)"):
        ConnectClient(CdcSettings(connect=fake.url)).list_names()


def test_connectors_of_other_kinds_are_not_ours_to_watch(fake, client):
    fake.connectors = {"sink": {"connector.class": "FileStreamSink"}, "shop": CONFIG}
    (found,) = list_connectors(client)
    assert (found.name, found.state, found.slot) == ("shop", "UNASSIGNED", "s")


def test_the_innermost_cause_of_a_trace_is_shown():
    assert find_cause(TRACE) == "java.net.UnknownHostException: db"
    assert find_cause("just this\n\tat x") == "just this"
    assert find_cause("") == ""


@pytest.mark.parametrize(
    "url", ["localhost:8083", "http://me:secret@host:8083", "ftp://host", "http://host:8083/?a"]
)
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ConfigurationError, match="connect"):
        CdcSettings(connect=url)
