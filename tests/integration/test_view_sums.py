"""The view that sums up batches, on a real server: it says where a repeat left more, or less, than the table has."""

from __future__ import annotations

import uuid

import pytest

from oncehouse.clickhouse.client import Client, connect
from oncehouse.config.pipeline import ClickHouse
from oncehouse.devstack.chaos.scenario_run import ViewSums

BATCHES = [str(uuid.UUID(int=number)) for number in (1, 2)]


@pytest.fixture
def client(clickhouse, database) -> Client:
    client = connect(ClickHouse(url=f"{clickhouse.url}/{database}"))
    client.command(
        "CREATE TABLE events (id String, _batch_id UUID) ENGINE = MergeTree ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 100"
    )
    return client


@pytest.fixture(params=["id", None])
def sums(request) -> ViewSums:
    return ViewSums(view="sums", table="events", batch_column="_batch_id", id_column=request.param)


def insert(client: Client, batch: str) -> None:
    client.command(
        f"INSERT INTO events SETTINGS insert_deduplication_token = '{batch}', insert_deduplicate = 1, "
        "deduplicate_insert = 'enable', deduplicate_blocks_in_dependent_materialized_views = 1 "
        f"SELECT toString(number), '{batch}' FROM numbers(3)"
    )


def test_a_repeat_that_the_view_drops_as_well_leaves_the_same_sums(client, sums):
    client.command(sums.create())
    for batch in (*BATCHES, *BATCHES):
        insert(client, batch)
    assert client.query("SELECT count() FROM events") == [(6,)]
    assert client.query(sums.mismatch_query) == []


def test_a_batch_that_the_view_took_twice_is_told(client, sums):
    client.command(sums.create(remembered_blocks=0))
    for batch in (*BATCHES, BATCHES[1]):
        insert(client, batch)
    assert client.query("SELECT count() FROM events") == [(6,)]
    assert client.query(sums.mismatch_query) == [(BATCHES[1], 3, 6)]


def test_a_batch_that_never_reached_the_view_is_told(client, sums):
    insert(client, BATCHES[0])
    client.command(sums.create())
    insert(client, BATCHES[1])
    assert client.query(sums.mismatch_query) == [(BATCHES[0], 3, 0)]


def test_a_batch_that_somebody_deleted_from_the_table_is_not_asked_for(client, sums):
    client.command(sums.create())
    for batch in BATCHES:
        insert(client, batch)
    client.command(f"DELETE FROM events WHERE _batch_id = '{BATCHES[0]}'")
    assert client.query(sums.mismatch_query) == []
