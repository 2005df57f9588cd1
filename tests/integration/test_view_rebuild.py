"""The statements that rebuild a materialized view's target, run on a real server, and what they are refused for."""

from __future__ import annotations

import pytest

from oncehouse.clickhouse.client import connect
from oncehouse.clickhouse.table_info import describe_table
from oncehouse.clickhouse.view_rebuild import plan_rebuilds
from oncehouse.config.pipeline import ClickHouse

WINDOW = "SETTINGS non_replicated_deduplication_window = 1000"


@pytest.fixture
def client(clickhouse, database):
    client = connect(ClickHouse(url=f"{clickhouse.url}/{database}"))
    client.command(f"CREATE TABLE events (n Int64, k String) ENGINE = MergeTree ORDER BY n {WINDOW}")
    return client


def insert(client, start):
    client.command(f"INSERT INTO events SELECT number + {start}, toString(number % 3) FROM numbers(100)")


def plan(client):
    (found,) = plan_rebuilds(client, describe_table(client, "events"))
    return found


def test_a_target_that_lacks_rows_has_them_afterwards_and_the_view_goes_on(client):
    client.command(
        f"CREATE TABLE `su``ms` (k String, c UInt64) ENGINE = SummingMergeTree ORDER BY k {WINDOW}"
    )
    client.command(
        "CREATE MATERIALIZED VIEW `a view` TO `su``ms` AS SELECT k, count() AS c FROM events GROUP BY k"
    )
    insert(client, 0)
    client.command("TRUNCATE TABLE `su``ms`")
    insert(client, 100)
    found = plan(client)
    assert found.refused is None
    for statement in found.statements:
        client.command(statement)
    insert(client, 200)
    assert client.query("SELECT k, sum(c) FROM `su``ms` GROUP BY k ORDER BY k") == client.query(
        "SELECT k, count() FROM events GROUP BY k ORDER BY k"
    )
    assert client.query("SELECT count() FROM system.tables WHERE name LIKE '%_rebuilt'") == [(0,)]
    engine = client.query("SELECT engine_full FROM system.tables WHERE name LIKE 'su%ms'")[0][0]
    assert "non_replicated_deduplication_window = 1000" in engine


@pytest.mark.parametrize(
    ("target", "query", "reason"),
    [
        (
            "(k String, c UInt64) ENGINE = MergeTree ORDER BY k",
            "k, count() AS c FROM events GROUP BY k",
            "does not merge",
        ),
        (
            "(n Int64) ENGINE = MergeTree ORDER BY n",
            "n FROM events JOIN other USING (n)",
            "more than the inserted",
        ),
        ("(n Int64) ENGINE = MergeTree ORDER BY n", "DISTINCT n FROM events", "inserted together"),
        ("(n Int64) ENGINE = Memory", "n FROM events", "cannot be exchanged"),
    ],
)
def test_what_would_not_be_the_same_is_refused(client, target, query, reason):
    client.command("CREATE TABLE other (n Int64) ENGINE = MergeTree ORDER BY n")
    client.command(f"CREATE TABLE target {target}")
    client.command(f"CREATE MATERIALIZED VIEW view TO target AS SELECT {query}")
    found = plan(client)
    assert reason in (found.refused or "")
    assert found.statements == ()


def test_a_view_with_a_table_of_its_own_and_a_target_of_two_views_are_refused(client):
    client.command("CREATE MATERIALIZED VIEW own ENGINE = MergeTree ORDER BY n AS SELECT n FROM events")
    assert "table of its own" in (plan(client).refused or "")
    client.command("DROP TABLE own SYNC")
    client.command("CREATE TABLE target (n Int64) ENGINE = MergeTree ORDER BY n")
    for name in ("one", "two"):
        client.command(f"CREATE MATERIALIZED VIEW {name} TO target AS SELECT n FROM events")
    for found in plan_rebuilds(client, describe_table(client, "events")):
        assert "other views write" in (found.refused or "")


def test_a_table_that_drops_rows_cannot_give_them_to_its_view_again(client):
    client.command("CREATE TABLE target (n Int64) ENGINE = MergeTree ORDER BY n")
    client.command("CREATE MATERIALIZED VIEW view TO target AS SELECT n FROM events")
    client.command("ALTER TABLE events ADD COLUMN day Date DEFAULT today()")
    client.command("ALTER TABLE events MODIFY TTL day + INTERVAL 90 DAY")
    assert "drops rows" in (plan(client).refused or "")
