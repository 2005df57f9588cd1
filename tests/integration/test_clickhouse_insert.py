"""Inserting a batch into a real server: one block, once, whatever happens to attempts before it."""

import socket
import threading
import time
import uuid
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from attempt_examples import first_attempt, next_attempt
from oncehouse.clickhouse.client import connect
from oncehouse.clickhouse.insert.insert_batch import insert_batch
from oncehouse.clickhouse.insert.lost_answer import count_by_partition
from oncehouse.clickhouse.insert.outcome import AlreadyThere, Inserted, PartlyThere, Refused, Retryable
from oncehouse.common.query_ids import attempt_query_id
from oncehouse.config.pipeline import ClickHouse
from oncehouse.devstack.proxies.fault_proxy import FaultProxy
from oncehouse.devstack.proxies.faults import DropAnswer

WINDOW = "SETTINGS non_replicated_deduplication_window = 100"


@pytest.fixture
def client(clickhouse, database):
    return connect(ClickHouse(url=f"{clickhouse.url}/{database}"))


def numbers(count, partitions=1):
    return pa.table({"p": pa.array(np.arange(count) % partitions, pa.uint8()), "n": np.arange(count)})


def create(
    client, *, columns="p UInt8, n Int64", key="PARTITION BY p ORDER BY n", settings=WINDOW, name="events"
):
    client.command(f"CREATE TABLE {name} ({columns}, _batch_id UUID) ENGINE = MergeTree {key} {settings}")


def count(client, table="events"):
    return client.query(f"SELECT count() FROM {table}")[0][0]


def parts(client, table="events"):
    return client.query(
        "SELECT count() FROM system.parts WHERE database = currentDatabase() AND table = {table:String}",
        {"table": table},
    )[0][0]


def test_a_million_rows_are_one_block_and_one_part(client):
    create(client)
    rows = numbers(1_000_000)
    assert isinstance(insert_batch(client, first_attempt(rows), rows), Inserted)
    assert count(client) == 1_000_000
    assert parts(client) == 1


def test_a_batch_makes_one_part_in_each_partition(client):
    create(client)
    rows = numbers(200_000, partitions=5)
    assert isinstance(insert_batch(client, first_attempt(rows), rows), Inserted)
    assert parts(client) == 5


def test_rows_arrive_as_they_were_sent_with_the_batch_id_as_its_text(client):
    create(client, columns="name String, _unique_id FixedString(16)", key="ORDER BY name")
    ids = [uuid.uuid4().bytes, bytes(16)]
    rows = pa.table({"name": ["a", "ж"], "_unique_id": pa.array(ids, pa.binary(16))})
    request = first_attempt(rows)
    insert_batch(client, request, rows)
    found = client.query("SELECT name, hex(_unique_id), toString(_batch_id) FROM events ORDER BY name")
    batch = request.batch_id
    assert found == [("a", ids[0].hex().upper(), batch), ("ж", ids[1].hex().upper(), batch)]


@pytest.mark.parametrize("partitions", [1, 5])
def test_a_repeat_adds_nothing_even_without_looking(client, partitions):
    create(client)
    rows = numbers(1000, partitions)
    request = first_attempt(rows)
    for _ in range(3):
        assert isinstance(insert_batch(client, request, rows), Inserted)
    assert count(client) == 1000


def test_another_batch_with_the_same_rows_is_inserted(client):
    create(client)
    rows = numbers(1000)
    insert_batch(client, first_attempt(rows), rows)
    insert_batch(client, first_attempt(rows), rows)
    assert count(client) == 2000


def test_the_target_of_a_view_is_not_doubled_by_a_repeat(client):
    create(client)
    client.command(f"CREATE TABLE totals (n Int64, c UInt64) ENGINE = MergeTree ORDER BY n {WINDOW}")
    # More groups than fit into one block of a SELECT.
    client.command("CREATE MATERIALIZED VIEW view TO totals AS SELECT n, count() AS c FROM events GROUP BY n")
    rows = numbers(300_000, partitions=3)
    request = first_attempt(rows)
    for _ in range(2):  # without looking
        assert isinstance(insert_batch(client, request, rows), Inserted)
    again = insert_batch(client, next_attempt(request), rows)
    assert isinstance(again, AlreadyThere)
    assert not again.views_unproven
    assert client.query("SELECT sum(c), count() FROM totals") == [(300_000, 300_000)]
    assert count(client) == 300_000


def test_a_view_that_failed_is_said_by_the_retry(client):
    create(client)
    client.command("CREATE TABLE switch (broken UInt8) ENGINE = Memory")
    client.command("INSERT INTO switch VALUES (1)")
    client.command(f"CREATE TABLE copy (n Int64) ENGINE = MergeTree ORDER BY n {WINDOW}")
    client.command(
        "CREATE MATERIALIZED VIEW view TO copy AS "
        "SELECT n + throwIf(n = 7 AND (SELECT max(broken) FROM switch) = 1) AS n FROM events"
    )
    rows = numbers(1000, partitions=5)
    request = first_attempt(rows)
    failed = insert_batch(client, request, rows)
    assert isinstance(failed, Retryable)
    assert failed.code == 395
    assert failed.outcome_unknown
    assert (count(client), count(client, "copy")) == (1000, 0)  # the table was written before its view
    client.command("TRUNCATE TABLE switch")
    client.command("INSERT INTO switch VALUES (0)")
    outcome = insert_batch(client, next_attempt(request), rows)
    assert isinstance(outcome, AlreadyThere)
    assert outcome.views_unproven
    assert (count(client), count(client, "copy")) == (1000, 0)


@pytest.mark.scenario("batch over partitions fails half-way")
def test_a_batch_that_reached_some_partitions_only_is_completed_and_not_doubled(client):
    create(client)
    rows = numbers(1000, partitions=5)
    some = rows.filter(pa.compute.is_in(rows["p"], pa.array([1, 3], pa.uint8())))
    request = first_attempt(rows)
    insert_batch(client, replace(request, rows=some.num_rows), some)  # what a crash between partitions leaves
    assert count(client) == 400
    assert isinstance(insert_batch(client, next_attempt(request), rows), Inserted)
    found = count_by_partition(client, "events", "_batch_id", request.batch_id)
    assert found == {str(partition): 200 for partition in range(5)}


@pytest.mark.scenario("retry after the token is forgotten")
def test_a_partial_batch_whose_token_may_be_forgotten_is_left_alone(client):
    create(client)
    rows = numbers(1000, partitions=5)
    some = rows.filter(pa.compute.equal(rows["p"], pa.scalar(1, pa.uint8())))
    request = first_attempt(rows)
    insert_batch(client, replace(request, rows=some.num_rows), some)
    outcome = insert_batch(client, next_attempt(request, may_be_forgotten=True), rows)
    assert isinstance(outcome, PartlyThere)
    assert outcome.partitions == (("1", 200),)
    assert count(client) == 200


@pytest.mark.scenario("retry after the token is forgotten")
def test_a_whole_batch_whose_token_is_forgotten_is_found_and_not_doubled(client):
    create(client, settings="SETTINGS non_replicated_deduplication_window = 1")
    rows = numbers(1000)
    request = first_attempt(rows)
    insert_batch(client, request, rows)
    insert_batch(client, first_attempt(rows), rows)  # pushes the token out of the window
    assert isinstance(insert_batch(client, next_attempt(request, may_be_forgotten=True), rows), AlreadyThere)
    assert count(client) == 2000


@pytest.mark.scenario("ClickHouse is slow")
def test_an_earlier_attempt_that_still_runs_is_ended_first(client):
    slow = "p UInt8, n Int64, slow UInt8 MATERIALIZED sleepEachRow(0.1)"
    create(client, columns=slow, key="ORDER BY n")
    rows = numbers(20)
    request = first_attempt(rows)
    outcomes = []
    worker = threading.Thread(target=lambda: outcomes.append(insert_batch(client, request, rows)))
    worker.start()
    ids = {"id": attempt_query_id(request.batch_id, 1)}
    while not client.query("SELECT 1 FROM system.processes WHERE query_id = {id:String}", ids):
        time.sleep(0.02)
    assert isinstance(insert_batch(client, next_attempt(request), rows), Inserted)
    worker.join()
    assert isinstance(outcomes[0], Retryable)
    assert outcomes[0].outcome_unknown
    assert count(client) == 20


@pytest.mark.scenario("ClickHouse killed")
def test_a_server_that_is_killed_in_the_middle_is_completed_by_the_retry(client, stack):
    slow = "p UInt8, n Int64, slow UInt8 MATERIALIZED sleepEachRow(0.1)"
    create(client, columns=slow)
    rows = numbers(20, partitions=4)
    request = first_attempt(rows)
    outcomes = []
    worker = threading.Thread(target=lambda: outcomes.append(insert_batch(client, request, rows)))
    worker.start()
    ids = {"id": attempt_query_id(request.batch_id, 1)}
    while not client.query("SELECT 1 FROM system.processes WHERE query_id = {id:String}", ids):
        time.sleep(0.02)
    stack.kill("clickhouse")
    worker.join()
    assert isinstance(outcomes[0], Retryable)
    assert outcomes[0].outcome_unknown
    down = insert_batch(client, next_attempt(request), rows)
    assert isinstance(down, Retryable)
    stack.start("clickhouse")
    assert isinstance(insert_batch(client, next_attempt(next_attempt(request)), rows), Inserted)
    assert count(client) == 20


@pytest.mark.scenario("answer swallowed")
@pytest.mark.parametrize("reset", [False, True])
def test_an_answer_that_is_swallowed_is_found_out_and_the_insert_is_sent_once(
    clickhouse, database, client, reset
):
    create(client)
    rows = numbers(1000)
    request = first_attempt(rows)
    with FaultProxy(server_port=clickhouse.place.ports["http"]) as proxy:
        through_proxy = connect(ClickHouse(url=f"{proxy.url}/{database}"))
        proxy.inject(DropAnswer(reset=reset))
        lost = insert_batch(through_proxy, request, rows)
        assert (proxy.inserts, proxy.happened[DropAnswer]) == (1, 1)
    assert isinstance(lost, Retryable)
    assert lost.outcome_unknown
    assert ("reset" in lost.message) is reset, lost.message
    assert isinstance(insert_batch(client, next_attempt(request), rows), AlreadyThere)
    assert count(client) == 1000


def test_a_server_that_is_not_there_is_tried_again_with_nothing_written():
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    rows = numbers(10)
    outcome = insert_batch(connect(ClickHouse(url=f"http://127.0.0.1:{port}")), first_attempt(rows), rows)
    assert isinstance(outcome, Retryable)
    assert not outcome.outcome_unknown


@pytest.mark.scenario("table missing")
def test_a_missing_table_is_refused_with_its_name(client):
    rows = numbers(1_000_000)
    outcome = insert_batch(client, first_attempt(rows), rows)
    assert isinstance(outcome, Refused)
    assert outcome.code == 60
    assert "events" in outcome.message


@pytest.mark.parametrize(
    ("columns", "rows", "code"),
    [
        ("n Int64", pa.table({"n": pa.array([1, None], pa.int64())}), 349),
        ("n Int64, CONSTRAINT small CHECK n < 5", pa.table({"n": [1, 7]}), 469),
        ("n Int64", pa.table({"n": ["1", "x"]}), 6),
        ("other Int64", pa.table({"n": [1, 2]}), 16),
    ],
)
def test_rows_that_the_table_cannot_take_are_refused_whole(client, columns, rows, code):
    create(client, columns=columns, key="ORDER BY tuple()")
    outcome = insert_batch(client, first_attempt(rows), rows)
    assert isinstance(outcome, Refused)
    assert outcome.code == code
    assert count(client) == 0


def test_a_batch_over_more_partitions_than_the_server_allows_is_refused(client):
    create(client)
    rows = numbers(1000, partitions=150)
    outcome = insert_batch(client, first_attempt(rows), rows)
    assert isinstance(outcome, Refused)
    assert outcome.code == 252
    assert count(client) == 0


@pytest.mark.scenario("too many parts")
def test_too_many_parts_are_said_to_the_batcher(client):
    create(client, settings=f"{WINDOW}, parts_to_throw_insert = 1, parts_to_delay_insert = 1")
    client.command("SYSTEM STOP MERGES events")
    rows = numbers(10)
    outcomes = [insert_batch(client, first_attempt(rows), rows) for _ in range(4)]
    assert isinstance(outcomes[-1], Retryable)
    assert outcomes[-1].too_many_parts


def test_hostile_names_are_only_names(client):
    table, column = "ev`; DROP TABLE x; --", "a` Int8) --"
    quoted = table.replace("`", "\\`"), column.replace("`", "\\`")
    client.command(
        f"CREATE TABLE `{quoted[0]}` (`{quoted[1]}` Int64, `batch \\` id` UUID) "
        f"ENGINE = MergeTree ORDER BY tuple() {WINDOW}"
    )
    rows = pa.table({column: [1, 2, 3]})
    request = first_attempt(rows, table=table, batch_column="batch ` id")
    assert isinstance(insert_batch(client, request, rows), Inserted)
    assert isinstance(insert_batch(client, next_attempt(request), rows), AlreadyThere)
