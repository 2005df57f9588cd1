"""Reading a real server and its tables before anything is loaded."""

import pickle

import pytest

from oncehouse.clickhouse.client import connect
from oncehouse.clickhouse.describe import describe_table
from oncehouse.clickhouse.preflight import Level, Needs, inspect
from oncehouse.clickhouse.schema import create_table_ddl
from oncehouse.clickhouse.windows import WindowNeeds
from oncehouse.config import ClickHouse
from oncehouse.errors import ConfigurationError, PermanentError, TransientError

WINDOW = WindowNeeds(min_interval_seconds=1.0, retry_horizon_seconds=600.0)
COLUMNS = {
    "project": "LowCardinality(String)",
    "product_id": "UInt64",
    "price": "Nullable(Decimal(18, 4))",
    "at": "DateTime64(3, 'UTC')",
    "session": "UUID",
    "tags": "Array(String)",
    "kind": "Enum8('a' = 1, 'b' = 2)",
    "attributes": "Map(String, String)",
    "place": "Tuple(lat Float64, lon Float64)",
}
NEEDS = Needs(
    table="events", columns=COLUMNS, batch_column="_batch_id", id_column="_unique_id", window=WINDOW
)


@pytest.fixture
def client(clickhouse, database):
    return connect(ClickHouse(url=f"{clickhouse.url}/{database}"))


def create(client, **changes):
    request = {
        "table": "events",
        "columns": COLUMNS,
        "identity_columns": ("project", "product_id"),
        "batch_column": "_batch_id",
        "id_column": "_unique_id",
        "window": WINDOW,
    }
    client.command(create_table_ddl(**{**request, **changes}))


def test_a_table_that_oncehouse_made_has_no_findings(client):
    create(client)
    assert inspect(client, NEEDS) == ()


def test_a_table_that_is_not_there_is_found(client):
    assert [finding.level for finding in inspect(client, NEEDS)] == [Level.ERROR]


def test_every_difference_is_found_at_once(client):
    client.command(
        "CREATE TABLE events (project String, product_id UInt8, at DateTime64(3), _batch_id String) "
        "ENGINE = MergeTree ORDER BY project"
    )
    wheres = {finding.where for finding in inspect(client, NEEDS)}
    for place in ("product_id", "price", "_batch_id", "_unique_id"):
        assert f"events.{place}" in wheres
    assert "events.project" not in wheres
    assert "events: non_replicated_deduplication_window" in wheres


def test_the_advice_about_the_window_cures_it(client):
    create(client)
    client.command("ALTER TABLE events MODIFY SETTING non_replicated_deduplication_window = 5")
    (finding,) = inspect(client, NEEDS)
    client.command(finding.advice.removeprefix("run: "))
    assert inspect(client, NEEDS) == ()


def test_facts_tell_engine_keys_ttl_and_views(client, database):
    client.command(
        "CREATE TABLE events (a Int64, at DateTime, _batch_id UUID) ENGINE = ReplacingMergeTree "
        "PARTITION BY toYYYYMM(at) ORDER BY a TTL at + INTERVAL 1 DAY"
    )
    client.command("CREATE MATERIALIZED VIEW view ENGINE = MergeTree ORDER BY a AS SELECT a FROM events")
    facts = describe_table(client, "events")
    assert facts is not None
    assert (facts.engine, facts.partition_key, facts.sorting_key) == (
        "ReplacingMergeTree",
        "toYYYYMM(at)",
        "a",
    )
    assert facts.expires_rows
    assert facts.merges_rows
    assert facts.window_blocks == 0
    assert facts.views == (f"{database}.view",)
    assert describe_table(client, f"{database}.events") == facts


def test_a_client_travels_by_pickle(client):
    assert pickle.loads(pickle.dumps(client)).query("SELECT 1 + 1") == [(2,)]


def test_values_are_bound_whatever_they_hold(client):
    hostile = "'; DROP TABLE x; --\n\\'{a:String}"
    assert client.query("SELECT {value:String}", {"value": hostile}) == [(hostile,)]


def test_a_wrong_password_is_said_without_showing_it(clickhouse):
    client = connect(ClickHouse(url=clickhouse.url, user="default", password="correct-horse"))
    with pytest.raises(ConfigurationError, match=r"clickhouse\.password") as caught:
        client.server_version()
    assert "correct-horse" not in str(caught.value)


def test_a_missing_database_is_said(clickhouse):
    with pytest.raises(ConfigurationError, match="Create the database"):
        connect(ClickHouse(url=f"{clickhouse.url}/nowhere")).server_version()


def test_a_port_of_another_protocol_is_said(clickhouse):
    with pytest.raises(ConfigurationError, match=r"clickhouse\.url"):
        connect(ClickHouse(url=f"http://127.0.0.1:{clickhouse.place.ports['tcp']}")).server_version()
    with pytest.raises(ConfigurationError, match=r"clickhouse\.url"):
        connect(ClickHouse(url=clickhouse.url.replace("http:", "https:"))).server_version()


def test_a_server_that_does_not_run_is_transient_with_advice():
    with pytest.raises(TransientError, match="Check that the server runs"):
        connect(ClickHouse(url="http://127.0.0.1:9", connect_timeout=1)).server_version()


def test_a_broken_query_is_permanent(client):
    with pytest.raises(PermanentError, match="UNKNOWN_IDENTIFIER"):
        client.query("SELECT nothing_of_the_kind")
