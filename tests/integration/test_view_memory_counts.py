"""A table that merges rows, and what its views write to: whether a batch may be sent again after a lost answer."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from attempt_examples import first_attempt, next_attempt
from clickhouse_users import PASSWORD
from oncehouse.clickhouse.client import connect
from oncehouse.clickhouse.insert import lost_answer
from oncehouse.clickhouse.insert.insert_batch import insert_batch
from oncehouse.clickhouse.insert.outcome import AlreadyThere, Inserted, PartlyThere
from oncehouse.clickhouse.insert.view_memory import find_forgetful_target
from oncehouse.config.pipeline import ClickHouse

# Two versions of each key, so that the table shows half of the rows that it took.
ROWS = pa.table({"k": pa.array(np.arange(40) // 2), "v": np.arange(40)})


@pytest.fixture
def client(clickhouse, database):
    return connect(ClickHouse(url=f"{clickhouse.url}/{database}"))


@pytest.fixture
def merging_table(client):
    """With a view into a table of twenty partitions, so that each batch is twenty blocks there."""
    client.command(
        "CREATE TABLE events (k Int64, v Int64, _batch_id UUID) ENGINE = ReplacingMergeTree(v) ORDER BY k "
        "SETTINGS non_replicated_deduplication_window = 1000"
    )
    client.command(
        "CREATE TABLE sums (k Int64, rows UInt64) ENGINE = SummingMergeTree PARTITION BY k ORDER BY k "
        "SETTINGS non_replicated_deduplication_window = 1000"
    )
    client.command("CREATE MATERIALIZED VIEW summed TO sums AS SELECT k, 1 AS rows FROM events")
    time.sleep(1.1)  # ClickHouse gives times of tables and parts in whole seconds


@pytest.fixture
def unlogged(monkeypatch):
    """A user who may not read the query log, or a server that died before it was written."""
    monkeypatch.setattr(lost_answer, "has_finished", lambda *_, **__: False)


def begin(client):
    return first_attempt(ROWS, merges_rows=True, earlier_began=client.now())


def sums(client):
    return client.query("SELECT sum(rows) FROM sums WHERE k < 1000")[0][0]


def push_out(client):
    """Others write into what the view writes to, where each row is a block."""
    client.command(
        "INSERT INTO sums SELECT 1000 + number, 1 FROM numbers(1100)",
        settings={"max_partitions_per_insert_block": 0},
    )


def test_a_batch_that_the_log_has_as_done_is_not_sent_again(client, merging_table):
    request = begin(client)
    assert isinstance(insert_batch(client, request, ROWS), Inserted)
    push_out(client)
    outcome = insert_batch(client, next_attempt(request), ROWS)
    assert isinstance(outcome, AlreadyThere)
    assert not outcome.views_unproven
    assert sums(client) == 40


def test_a_batch_is_parked_whose_token_was_pushed_out_behind_the_view_alone(client, merging_table, unlogged):
    request = begin(client)
    insert_batch(client, request, ROWS)
    push_out(client)
    outcome = insert_batch(client, next_attempt(request), ROWS)
    assert isinstance(outcome, PartlyThere)
    assert "sums, to which a materialized view writes them, may have forgotten its token" in outcome.message
    assert sums(client) == 40


def test_own_batches_push_the_token_out_too_where_each_is_many_blocks_behind_the_view(
    client, merging_table, unlogged
):
    """They are ten blocks in the table and two hundred behind its view, and as many may come until a repeat is done."""
    request = begin(client)
    insert_batch(client, request, ROWS)
    for _ in range(10):
        insert_batch(client, first_attempt(ROWS), ROWS)
    assert isinstance(insert_batch(client, next_attempt(request), ROWS), PartlyThere)
    assert sums(client) == 440


def test_a_batch_is_completed_while_all_targets_remember_it(client, merging_table, unlogged):
    request = begin(client)
    insert_batch(client, request, ROWS)
    assert isinstance(insert_batch(client, next_attempt(request), ROWS), Inserted)
    assert sums(client) == 40


def test_blocks_of_before_the_attempt_do_not_count(client, merging_table):
    push_out(client)
    time.sleep(1.1)
    request = begin(client)
    insert_batch(client, request, ROWS)
    assert find_forgetful_target(client, request, found=20) is None


def test_a_table_that_took_the_place_of_a_target_remembers_nothing(client, merging_table, database):
    request = begin(client)
    insert_batch(client, request, ROWS)
    client.command("RENAME TABLE sums TO earlier_sums")
    client.command(
        "CREATE TABLE sums (k Int64, rows UInt64) ENGINE = SummingMergeTree ORDER BY k "
        "SETTINGS non_replicated_deduplication_window = 1000"
    )
    assert find_forgetful_target(client, request, found=20) == f"{database}.sums"


def test_a_view_behind_a_view_is_looked_at_too(client, merging_table, database):
    client.command("CREATE TABLE last (k Int64) ENGINE = MergeTree ORDER BY k")
    client.command("CREATE MATERIALIZED VIEW behind TO last AS SELECT k FROM sums")
    time.sleep(1.1)
    assert find_forgetful_target(client, begin(client), found=20) == f"{database}.last"


def test_what_keeps_nothing_forgets_nothing(client, merging_table):
    client.command("CREATE TABLE nothing (k Int64) ENGINE = Null")
    client.command("CREATE MATERIALIZED VIEW thrown_away TO nothing AS SELECT k FROM events")
    time.sleep(1.1)
    assert find_forgetful_target(client, begin(client), found=20) is None


@pytest.fixture
def narrow(client, clickhouse):
    """A user with the rights that a pipeline cannot do without, in a database of its own."""
    client.command("DROP DATABASE IF EXISTS of_a_view")
    client.command("CREATE DATABASE of_a_view")
    client.command(
        "CREATE TABLE of_a_view.events (k Int64, v Int64, _batch_id UUID) ENGINE = ReplacingMergeTree(v) ORDER BY k "
        "SETTINGS non_replicated_deduplication_window = 1000"
    )
    yield connect(ClickHouse(url=f"{clickhouse.url}/of_a_view", user="of_a_view", password=PASSWORD))
    client.command("DROP DATABASE of_a_view")


def test_a_target_whose_parts_the_user_may_not_see_is_measured_by_the_own_inserts(client, narrow):
    client.command(
        "CREATE TABLE of_a_view.sums (k Int64, rows UInt64) ENGINE = SummingMergeTree PARTITION BY k ORDER BY k "
        "SETTINGS non_replicated_deduplication_window = 1000"
    )
    client.command(
        "CREATE MATERIALIZED VIEW of_a_view.v TO of_a_view.sums AS SELECT k, 1 AS rows FROM of_a_view.events"
    )
    time.sleep(1.1)
    request = begin(client)
    assert find_forgetful_target(narrow, request, found=20) is None
    many = replace(request, attempts_since=10)
    assert find_forgetful_target(narrow, many, found=20) == "of_a_view.sums", "a hundred blocks each"


def test_a_target_that_the_user_may_not_see_is_believed_only_where_no_row_was_found(
    client, narrow, merging_table
):
    client.command("CREATE MATERIALIZED VIEW hidden TO sums AS SELECT k, 1 AS rows FROM of_a_view.events")
    request = begin(client)
    assert find_forgetful_target(narrow, request, found=20) == "(not visible)"
    assert find_forgetful_target(narrow, request, found=0) is None
