"""What keeps an INSERT that comes late or again from being run, and how far a table has come, on a real server."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
import pytest

from attempt_examples import first_attempt, next_attempt
from clickhouse_users import PASSWORD
from oncehouse.clickhouse.client import connect
from oncehouse.clickhouse.insert import view_proof
from oncehouse.clickhouse.insert.block_counts import blocks_between, read_block_count
from oncehouse.clickhouse.insert.deadline import Deadline, Moment, read_moment
from oncehouse.clickhouse.insert.insert_batch import encode, insert_batch
from oncehouse.clickhouse.insert.outcome import AlreadyThere, Inserted, Retryable
from oncehouse.clickhouse.insert.repeatable_block import repeatable_settings
from oncehouse.clickhouse.insert.session_fence import make_open_settings, session_settings
from oncehouse.clickhouse.insert.view_proof import has_finished
from oncehouse.clickhouse.table_info import describe_table
from oncehouse.common.query_ids import attempt_query_id
from oncehouse.config.pipeline import ClickHouse
from oncehouse.devstack.proxies.fault_proxy import FaultProxy
from oncehouse.devstack.proxies.faults import HoldRequest
from oncehouse.errors import TransientError
from oncehouse.messaging.clickhouse_handler import send_rows

ROWS = pa.table({"n": np.arange(100)})


@pytest.fixture
def client(clickhouse, database):
    return connect(ClickHouse(url=f"{clickhouse.url}/{database}"))


def create(client, *, window=100, columns="n Int64, _batch_id UUID"):
    client.command(
        f"CREATE TABLE events ({columns}) ENGINE = MergeTree ORDER BY n "
        f"SETTINGS non_replicated_deduplication_window = {window}"
    )


def count(client, table="events"):
    return client.query(f"SELECT count() FROM {table}")[0][0]


def in_session(client, **changes):
    """A first attempt whose session stands open, as the driver opens it."""
    request = first_attempt(ROWS, **changes)
    session = attempt_query_id(request.batch_id, 1)
    client.query("SELECT 1", settings=make_open_settings(session))
    return replace(request, session=session)


def again(client, request):
    session = attempt_query_id(request.batch_id, request.attempt + 1)
    client.query("SELECT 1", settings=make_open_settings(session))
    earlier = (*request.earlier_sessions, request.session)
    return replace(next_attempt(request), session=session, earlier_sessions=earlier)


def test_the_server_runs_an_insert_once_in_its_session(client):
    create(client, window=0)
    request = in_session(client)
    assert isinstance(insert_batch(client, request, ROWS), Inserted)
    repeated = insert_batch(client, request, ROWS)
    assert isinstance(repeated, Retryable)
    assert (repeated.code, repeated.outcome_unknown) == (372, True)
    assert "clickhouse.insert_sessions" in repeated.message
    assert count(client) == 100


def test_an_earlier_session_is_ended_so_that_its_insert_cannot_begin_any_more(client):
    create(client, window=0)
    first = in_session(client)
    assert isinstance(insert_batch(client, again(client, first), ROWS), Inserted)
    assert isinstance(insert_batch(client, first, ROWS), Retryable)
    assert count(client) == 100


def test_an_insert_that_is_still_arriving_is_waited_for(client, clickhouse, database):
    """The server reads up to 256 KiB of a body before it knows the query, so no list of queries has it."""
    create(client, window=0)
    request = in_session(client)
    body = encode(request, ROWS).to_pybytes()
    settings = {
        **repeatable_settings(client, request.batch_id, request.session),
        **session_settings(request.session),
    }
    asked = {"query": f"INSERT INTO {database}.events (n, _batch_id) FORMAT ArrowStream", **settings}
    with socket.create_connection(("127.0.0.1", clickhouse.place.ports["http"])) as slow:
        head = f"POST /?{urlencode(asked)} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        slow.sendall(head.encode() + body[:50])
        time.sleep(0.5)
        second = again(client, request)
        outcome = insert_batch(client, second, ROWS)
        assert isinstance(outcome, Retryable)
        assert "still arriving" in outcome.message
        assert outcome.outcome_unknown
        slow.sendall(body[50:])
        assert slow.recv(1000).startswith(b"HTTP/1.1 200")
    assert isinstance(insert_batch(client, again(client, second), ROWS), AlreadyThere)
    assert count(client) == 100


def test_after_its_deadline_an_insert_is_not_sent_and_its_outcome_is_known(client):
    create(client)
    began = read_moment()
    late = Deadline(began=replace(began, boot_seconds=began.boot_seconds - 61.0), seconds=60.0)
    outcome = insert_batch(client, first_attempt(ROWS, deadline=late), ROWS)
    assert isinstance(outcome, Retryable)
    assert not outcome.outcome_unknown
    assert "61 s ago" in outcome.message
    assert count(client) == 0
    assert client.query("SELECT 1") == [(1,)]


def test_the_deadline_counts_after_rows_are_encoded_and_the_connection_stands(client, monkeypatch):
    from oncehouse.clickhouse.insert import insert_batch as insert

    create(client)
    right = insert.encode

    def encode_slowly(*given):
        time.sleep(0.5)
        return right(*given)

    monkeypatch.setattr(insert, "encode", encode_slowly)
    request = first_attempt(ROWS, deadline=Deadline(began=read_moment(), seconds=0.3))
    assert isinstance(insert_batch(client, request, ROWS), Retryable)
    assert count(client) == 0


def test_a_batch_of_a_consumer_that_arrives_late_adds_nothing(client, clickhouse, database):
    create(client, window=1)
    rows = ROWS.append_column("_batch_id", pa.array(["00000000-0000-0000-0000-000000000000"] * 100))
    with FaultProxy(server_port=clickhouse.place.ports["http"]) as proxy:
        slow = connect(ClickHouse(url=f"{proxy.url}/{database}", insert_timeout=1))
        proxy.inject(HoldRequest())
        with pytest.raises(TransientError):
            send_rows(slow, "events", rows, token="one")
        send_rows(client, "events", rows, token="one")
        for token in ("two", "three"):  # the table has forgotten the first by then
            send_rows(client, "events", rows, token=token)
        assert count(client) == 300
        proxy.release()
        end = time.monotonic() + 30
        while not proxy.late_answers:
            assert time.monotonic() < end
            time.sleep(0.02)
        assert proxy.late_answers == [372]
    assert count(client) == 300


def test_rows_of_a_consumer_are_not_sent_after_their_deadline(client):
    create(client)
    with pytest.raises(TransientError, match="Nothing was sent"):
        send_rows(
            client,
            "events",
            [{"n": 1}],
            token="one",
            deadline=Deadline(began=Moment(boot="", boot_seconds=0, wall_seconds=0), seconds=60.0),
        )
    assert count(client) == 0


def read_count(client):
    return read_block_count(client, "events", describe_table(client, "events"))


def test_every_block_counts_whoever_inserts_it_also_one_that_is_dropped_as_a_repeat(client):
    create(client)
    before = read_count(client)
    for _ in range(3):
        client.command("INSERT INTO events (n) SETTINGS insert_deduplication_token = 'x' VALUES (1)")
    assert count(client) == 1
    client.command("INSERT INTO events (n) VALUES (2)")
    assert blocks_between(before, read_count(client)) >= 4
    client.command("OPTIMIZE TABLE events FINAL")
    assert blocks_between(before, read_count(client)) >= 4


def test_a_table_that_was_emptied_or_made_again_tells_no_count(client):
    create(client)
    client.command("INSERT INTO events (n) VALUES (1)")
    before = read_count(client)
    client.command("TRUNCATE TABLE events")
    assert blocks_between(before, read_count(client)) is None
    client.command("DROP TABLE events SYNC")
    create(client)
    for number in range(5):
        client.command(f"INSERT INTO events (n) VALUES ({number})")
    assert blocks_between(before, read_count(client)) is None


def test_a_user_who_may_not_see_parts_opens_a_session_all_the_same(client, clickhouse, database):
    create(client)
    narrow = connect(ClickHouse(url=clickhouse.url, user="of_one_table", password=PASSWORD))
    facts = describe_table(client, "events")
    assert read_block_count(narrow, f"{database}.events", facts, make_open_settings("narrow")) is None
    assert narrow.query("SELECT 1", settings={"session_id": "narrow", "session_check": 1}) == [(1,)]


def test_the_query_log_shows_an_insert_that_ended_and_no_other(client):
    create(client)
    request = first_attempt(ROWS)
    insert_batch(client, request, ROWS)
    assert has_finished(client, [attempt_query_id(request.batch_id, 1)])
    assert not has_finished(client, [attempt_query_id(request.batch_id, 2)])
    days_ago = time.time() - 5 * 86_400
    assert has_finished(client, [attempt_query_id(request.batch_id, 1)], since=days_ago)


def test_a_user_who_may_not_have_the_log_written_waits_for_it(client, clickhouse):
    """The server of the tests writes its log twice a second."""
    create(client)
    reader = connect(ClickHouse(url=clickhouse.url, user="without_insert", password=PASSWORD))
    request = first_attempt(ROWS)
    insert_batch(client, request, ROWS)
    assert has_finished(reader, [attempt_query_id(request.batch_id, 1)])


def test_a_user_who_may_not_read_the_log_has_no_proof(client, clickhouse, monkeypatch):
    create(client)
    narrow = connect(ClickHouse(url=clickhouse.url, user="of_one_table", password=PASSWORD))
    monkeypatch.setattr(view_proof, "_WAIT_SECONDS", 0.1)
    assert not has_finished(narrow, ["some id"])
