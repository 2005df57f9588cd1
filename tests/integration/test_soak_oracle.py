"""The oracle of the soak on a real ClickHouse: it accepts what is right and names each thing that is not."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import soak_modules  # noqa: F401 - makes the next ones importable
from oncehouse.clickhouse.client import connect
from oncehouse.config.pipeline import ClickHouse
from soak_oracle import TABLE, VIEW, compare
from soak_traffic import FIELDS, make_events

EVENTS = 1003


@pytest.fixture
def client(clickhouse, database):
    client = connect(ClickHouse(url=f"{clickhouse.url}/{database}"))
    columns = ", ".join(f"{name} {type_}" for name, type_ in FIELDS.items())
    client.command(
        f"CREATE TABLE {TABLE} ({columns}, _unique_id FixedString(16) DEFAULT substring(SHA256(concat(producer, "
        "toString(sequence))), 1, 16)) ENGINE = MergeTree ORDER BY (producer, sequence)"
    )
    for statement in VIEW:
        client.command(statement)
    return client


def put(client, serials, events=None) -> None:
    table = events or make_events(np.asarray(serials))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    client.insert_arrow(TABLE, tuple(FIELDS), sink.getvalue(), {})


def test_what_was_produced_is_accepted(client):
    put(client, range(EVENTS))
    delivered = compare(client, EVENTS)
    assert delivered.rows == EVENTS
    assert not delivered.problems


def test_lost_events_are_counted(client):
    put(client, range(7, EVENTS))
    assert (compare(client, EVENTS).lost, compare(client, EVENTS).doubled) == (7, 0)


def test_doubled_events_are_counted(client):
    put(client, range(EVENTS))
    put(client, range(3))
    assert (compare(client, EVENTS).lost, compare(client, EVENTS).doubled) == (0, 3)


def test_rows_that_nobody_produced_are_counted(client):
    put(client, range(EVENTS + 2))
    assert compare(client, EVENTS).foreign == 2


def test_a_payload_that_is_not_its_own_is_noticed(client):
    right = make_events(np.arange(EVENTS))
    wrong = right["payload"].to_pylist()
    wrong[5] = wrong[6]
    put(client, (), right.set_column(2, "payload", pa.array(wrong)))
    assert compare(client, EVENTS).altered == 1


def test_payloads_of_other_events_are_noticed_though_their_hashes_match(client):
    right = make_events(np.arange(EVENTS))
    order = pa.array([*range(EVENTS - 1), 0])
    swapped = right.set_column(2, "payload", right["payload"].take(order))
    swapped = swapped.set_column(3, "payload_hash", right["payload_hash"].take(order))
    put(client, (), swapped)
    assert compare(client, EVENTS).altered == 1


def test_a_view_that_got_an_insert_twice_is_noticed(client):
    put(client, range(EVENTS))
    client.command("INSERT INTO sums SELECT * FROM sums LIMIT 1")
    assert compare(client, EVENTS).problems == ("producers with wrong sums in the view: 1",)
