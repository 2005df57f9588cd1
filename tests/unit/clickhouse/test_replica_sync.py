"""Reads that decide, over servers that are only played: who is asked, and what is said where nothing is decided."""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from clickhouse_connect.driver import exceptions as driver

from oncehouse.clickhouse import batch_rows, server_names
from oncehouse.clickhouse.batch_rows import read_unique_ids
from oncehouse.clickhouse.client import error_class
from oncehouse.clickhouse.errors import classify
from oncehouse.clickhouse.insert.insert_batch import insert_batch
from oncehouse.clickhouse.insert.outcome import InsertRequest, Retryable
from oncehouse.clickhouse.replica_sync import TRIES, read_in_step, write_in_step
from oncehouse.config.pipeline import ClickHouse
from oncehouse.errors import PermanentError, TransientError

REPLICATED = ("ReplicatedMergeTree", "ReplicatedMergeTree ORDER BY n")
COUNT = "SELECT count() FROM events"


def failure(code: int, text: str = "it failed") -> Exception:
    cause = driver.DatabaseError(f"Code: {code}. DB::Exception: {text}")
    judged = classify(cause)
    error = error_class(judged)(judged.message)
    error.__cause__ = cause
    return error


@dataclass
class Servers:
    """Servers behind one address, which answer in turns as `order` says."""

    engine: tuple[str, str] = REPLICATED
    order: tuple[str, ...] = ("a",)
    replicas: int = 2
    state: dict[str, int] = field(default_factory=dict)
    sync_error: Exception | None = None
    settings: dict[str, str] = field(default_factory=dict)
    shards_replicas: int = 1
    uuids: dict[str, str] = field(default_factory=dict)
    sent: list[str] = field(default_factory=list)
    sent_settings: dict[str, Any] = field(default_factory=dict)
    database: str = "sales"
    address: str = "http://balancer:8123"

    def __post_init__(self) -> None:
        self.config = ClickHouse(url=f"http://{uuid.uuid4().hex}:8123", user="loader")
        self.turns = itertools.cycle(self.order)

    def with_settings(self, settings):
        self.sent_settings = dict(settings)
        return self

    def answer(self) -> str:
        name = next(self.turns)
        for names in server_names._listeners.sets:
            names.add(name)
        return name

    def command(self, sql, parameters=None, settings=None):
        self.sent.append(f"SYNC {self.answer()}")
        assert settings["receive_timeout"] > 0
        if self.sync_error is not None:
            raise self.sync_error

    def query(self, sql, parameters=None, settings=None):
        if "engine_full" in sql:
            return [("sales", "events", *self.engine)] if self.engine else []
        if "system.settings" in sql:
            return list(self.settings.items())
        if "system.clusters" in sql:
            return [(self.shards_replicas,)]
        name = "a" if "system.replicas" in sql else self.answer()
        if "system.replicas" in sql:
            state = {"is_readonly": 0, "is_session_expired": 0, "delay": 70, "queue": 3} | self.state
            return [(name, self.uuids.get(name, name), *state.values(), self.replicas)]
        self.sent.append(f"READ {name}")
        return [(7,)]

    def query_arrow(self, sql, parameters=None, settings=None):
        self.query(sql)
        return pa.table({"id_hi": [7], "id_lo": [8]})


def count(servers: Servers) -> int:
    return read_in_step(servers, ["events"], lambda reader: reader.query(COUNT))[0][0]


def refusal(servers: Servers) -> str:
    with pytest.raises(TransientError) as caught:
        count(servers)
    assert not [sent for sent in servers.sent if sent.startswith("READ")]
    assert "sales.events" in str(caught.value)
    assert "nothing was decided" in str(caught.value)
    return str(caught.value)


def test_a_table_without_replicas_is_read_as_ever():
    servers = Servers(engine=("MergeTree", "MergeTree ORDER BY n"))
    assert [count(servers), count(servers)] == [7, 7]
    assert servers.sent == ["READ a", "READ a"]


def read_ids(servers: Servers, batches: int = 3):
    """As `repair` does, with a statement for each batch."""
    return read_unique_ids(
        servers, "events", batch_column="b", id_column="u", batch_ids=["x"] * batches, first=0, last=9
    )


@pytest.fixture
def one_batch_a_query(monkeypatch):
    monkeypatch.setattr(batch_rows, "_BATCHES_A_QUERY", 1)


@pytest.mark.usefixtures("one_batch_a_query")
def test_ids_are_given_while_they_are_read_after_one_sync():
    servers = Servers()
    ids = read_ids(servers)
    assert [high.tolist() for high in next(ids)] == [[7], [8]]
    assert servers.sent == ["SYNC a", "READ a"]
    assert len(list(ids)) == 2
    assert servers.sent == ["SYNC a", "READ a", "READ a", "READ a"]


@pytest.mark.usefixtures("one_batch_a_query")
def test_only_the_statement_of_ids_that_another_server_answered_is_repeated():
    servers = Servers(order=("a", "a", "a", "b", "b", "b"))
    ids = read_ids(servers)
    assert len([next(ids), next(ids)]) == 2
    assert len(list(ids)) == 1
    assert servers.sent == ["SYNC a", "READ a", "READ a", "READ b", "SYNC b", "READ b"]


@pytest.mark.usefixtures("one_batch_a_query")
def test_ids_of_servers_that_keep_changing_are_not_given():
    servers = Servers(order=("a", "a", *(f"s{number}" for number in range(100))))
    ids = read_ids(servers)
    next(ids)
    with pytest.raises(TransientError, match="changed the server"):
        next(ids)


def test_what_a_table_is_is_asked_once():
    servers = Servers(engine=("MergeTree", "MergeTree ORDER BY n"))
    count(servers)
    servers.engine = ()
    assert count(servers) == 7
    assert "query" not in servers.sent


def test_the_only_replica_of_a_table_has_all_rows():
    servers = Servers(replicas=1)
    count(servers)
    assert servers.sent == ["READ a"]


def test_a_replica_is_brought_in_step_before_it_is_read():
    servers = Servers()
    count(servers)
    assert servers.sent == ["SYNC a", "READ a"]
    assert servers.sent_settings == {}, "without a quorum a consistent read would hide rows"


def test_a_read_of_another_server_is_made_again():
    servers = Servers(order=("a", "b", "b", "a", "b"))
    count(servers)
    assert servers.sent == ["SYNC a", "READ b", "SYNC b", "SYNC a", "READ b"]


def test_servers_that_take_turns_are_all_brought_in_step():
    servers = Servers(order=("a", "b", "c"))
    count(servers)
    synced = {sent[-1] for sent in servers.sent if sent.startswith("SYNC")}
    assert servers.sent[-1][-1] in synced


def test_a_server_that_is_never_the_one_that_was_synced_decides_nothing():
    class Apart(Servers):
        def answer(self):
            name = "reader" if self.reading else "syncer"
            for names in server_names._listeners.sets:
                names.add(name)
            return name

        reading = False

        def command(self, *arguments, **named):
            self.reading = False
            super().command(*arguments, **named)

        def query(self, *arguments, **named):
            self.reading = True
            return super().query(*arguments, **named)

    servers = Apart()
    with pytest.raises(TransientError, match="changed the server between the statements") as caught:
        count(servers)
    assert "nothing was decided" in str(caught.value)
    assert len([sent for sent in servers.sent if sent.startswith("READ")]) == TRIES


def test_a_replica_that_stays_behind_is_named_with_how_far_it_is():
    message = refusal(Servers(sync_error=failure(159, "SYNC REPLICA sales.events: command timed out")))
    assert "the replica on a is 70 s behind, with 3 entries in its queue" in message
    assert "system.replication_queue" in message


@pytest.mark.parametrize("state", ["is_readonly", "is_session_expired"])
def test_a_replica_without_keeper_is_named(state):
    message = refusal(Servers(sync_error=failure(242), state={state: 1}))
    assert f"has lost its Keeper ({state} = 1)" in message


def test_a_missing_right_is_named_with_its_grant_and_is_no_decision():
    message = refusal(Servers(sync_error=failure(497, "Not enough privileges")))
    assert "GRANT SYSTEM SYNC REPLICA ON `sales`.`events` TO `loader`" in message


def test_a_profile_that_only_reads_is_named():
    message = refusal(Servers(sync_error=failure(164, "Cannot execute query in readonly mode")))
    assert "readonly = 0" in message


@pytest.mark.parametrize("code", [159, 164, 242, 497])
def test_a_batch_whose_rows_cannot_be_looked_for_is_neither_sent_nor_parked(code):
    servers = Servers(sync_error=failure(code))
    request = InsertRequest(
        table="events",
        columns=("n",),
        batch_column="_batch_id",
        batch_id="0f8fad5b-d9cb-469f-a165-70867728950e",
        attempt=9,
        rows=10,
        earlier_query_ids=(),
        outcome_unknown=True,
        may_be_forgotten=True,
        merges_rows=False,
    )
    outcome = insert_batch(servers, request, pa.table({"n": range(10)}))
    assert isinstance(outcome, Retryable)
    assert outcome.outcome_unknown
    assert "nothing was decided" in outcome.message


def test_a_table_that_is_gone_stays_what_it_is():
    with pytest.raises(PermanentError, match="60"):
        count(Servers(sync_error=failure(60)))


def test_answers_without_the_name_of_their_server_decide_nothing():
    assert "X-ClickHouse-Server-Display-Name" in refusal(Servers(order=("",)))


def test_two_servers_of_one_name_decide_nothing():
    servers = Servers()
    count(servers)
    servers.sent.clear()
    servers.uuids = {"a": "another"}
    assert "display_name" in refusal(servers)


@pytest.mark.parametrize(
    ("settings", "is_consistent"),
    [
        ({"insert_quorum": "auto", "insert_quorum_parallel": "0"}, True),
        ({"insert_quorum": "2", "insert_quorum_parallel": "0"}, True),
        ({"insert_quorum": "2", "insert_quorum_parallel": "1"}, False),
        ({"insert_quorum": "0", "insert_quorum_parallel": "0"}, False),
    ],
)
def test_a_read_is_consistent_by_the_quorum_where_one_is_in_force(settings, is_consistent):
    servers = Servers(settings=settings)
    count(servers)
    assert servers.sent_settings == ({"select_sequential_consistency": 1} if is_consistent else {})
    assert servers.sent == ["SYNC a", "READ a"]


def test_a_shared_table_is_read_consistently_on_any_server():
    servers = Servers(engine=("SharedMergeTree", ""), order=("a", "b"))
    count(servers)
    assert servers.sent == ["SYNC a", "READ b"]
    assert servers.sent_settings == {"select_sequential_consistency": 1}


DISTRIBUTED = ("Distributed", "Distributed('main', 'sales', 'events_local', rand())")


def test_a_distributed_table_over_replicas_decides_nothing():
    message = refusal(Servers(engine=DISTRIBUTED, shards_replicas=2))
    assert "the cluster 'main', whose shards have several replicas" in message


def test_a_distributed_table_over_single_servers_is_read_as_ever():
    servers = Servers(engine=DISTRIBUTED)
    count(servers)
    assert servers.sent == ["READ a"]


def test_a_distributed_table_over_replicas_with_a_quorum_is_read_consistently():
    quorum = {"insert_quorum": "2", "insert_quorum_parallel": "0"}
    servers = Servers(engine=DISTRIBUTED, shards_replicas=2, settings=quorum)
    count(servers)
    assert servers.sent_settings == {"select_sequential_consistency": 1}


# Statements that write what they read


def write(servers: Servers, *, refused: int = 0) -> list[str]:
    """The conditions that each try was sent with."""
    conditions: list[str] = []

    def insert(_writer: Servers, condition: str) -> None:
        conditions.append(condition)
        if len(conditions) <= refused:
            raise failure(395, "oncehouse: this server was not brought in step")

    write_in_step(servers, ["events"], insert)
    return conditions


def test_a_write_may_only_be_done_by_a_server_that_is_in_step():
    (condition,) = write(Servers())
    assert "displayName() NOT IN ('a')" in condition


def test_a_write_that_another_server_refused_is_sent_again():
    conditions = write(Servers(order=("a", "b")), refused=1)
    assert "('a')" in conditions[0]
    assert "('a', 'b')" in conditions[1]


def test_a_write_over_a_table_without_replicas_has_no_condition():
    assert write(Servers(engine=("MergeTree", ""))) == [""]


def test_a_write_that_fails_otherwise_is_not_sent_again():
    def insert(_writer: Servers, _condition: str) -> None:
        raise failure(395, "the range of this topic has changed")

    with pytest.raises(PermanentError, match="range of this topic"):
        write_in_step(Servers(), ["events"], insert)
