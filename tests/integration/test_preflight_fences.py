"""What `check` sees of sessions and of other writers, on a real server."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from oncehouse.clickhouse.client import connect
from oncehouse.clickhouse.preflight import insert_fences
from oncehouse.clickhouse.preflight.finding import Level
from oncehouse.clickhouse.preflight.insert_fences import (
    check_sessions,
    check_traffic,
    read_session_reach,
    read_traffic,
)
from oncehouse.clickhouse.table_info import describe_table
from oncehouse.config.pipeline import ClickHouse


@pytest.fixture
def client(clickhouse, database):
    return connect(ClickHouse(url=f"{clickhouse.url}/{database}"))


def level(findings):
    return [found.level for found in findings]


def test_one_server_knows_a_session_on_all_connections(client):
    assert read_session_reach(client) is True
    assert level(check_sessions(True)) == [Level.OK]


def test_servers_that_take_turns_are_refused_with_the_setting_to_change(client, monkeypatch):
    """Another server does not know the session: here it is another name each time."""
    right, numbers = client.query, itertools.count()

    def ask_another(sql, parameters=None, settings=None):
        return right(sql, parameters, {**settings, "session_id": f"{settings['session_id']}-{next(numbers)}"})

    monkeypatch.setattr(client, "query", ask_another)
    assert read_session_reach(client) is False
    (found,) = check_sessions(False)
    assert found.level is Level.ERROR
    assert "clickhouse.insert_sessions: false" in (found.advice or "")


def test_sessions_that_are_off_are_told(clickhouse):
    client = connect(ClickHouse(url=clickhouse.url, insert_sessions=False))
    assert read_session_reach(client) is None
    assert level(check_sessions(None)) == [Level.INFO]


def test_blocks_of_others_are_counted_and_too_many_are_warned_of(client, monkeypatch):
    client.command(
        "CREATE TABLE events (n Int64) ENGINE = MergeTree ORDER BY n "
        "SETTINGS non_replicated_deduplication_window = 10"
    )
    facts = describe_table(client, "events")
    assert facts is not None
    assert read_traffic(client, facts) is None
    client.command("INSERT INTO events VALUES (1)")
    client.command("SELECT sleep(2)")
    monkeypatch.setattr(insert_fences, "TRAFFIC_SECONDS", 1)
    for number in range(12):
        client.command(f"INSERT INTO events VALUES ({number})")
    blocks = read_traffic(client, facts)
    assert blocks is not None
    assert 1 <= blocks <= 12
    assert level(check_traffic(facts, 10)) == [Level.WARNING]
    assert level(check_traffic(replace(facts, window_blocks=1000), 10)) == [Level.OK]
    assert level(check_traffic(facts, None)) == []
