"""The stand-in for a replicated table shows what a replicated table would, on two real servers."""

import pytest

from oncehouse.clickhouse.client import failure_of
from oncehouse.clickhouse.preflight.finding import Level
from oncehouse.clickhouse.preflight.replica_reads import inspect_reads
from oncehouse.clickhouse.server_names import collect_server_names
from oncehouse.clickhouse.table_info import describe_table
from oncehouse.errors import TransientError
from replicated_tables import UNTIL_RELEASED, connect_to

COUNT = "SELECT count() FROM {db}.events"


@pytest.fixture
def client(replicas, database):
    client = connect_to(replicas)
    client.command(
        f"CREATE TABLE {database}.events (n UInt64) ENGINE = ReplicatedMergeTree('/t/{{shard}}', '{{replica}}') "
        "ORDER BY n SETTINGS replicated_deduplication_window = 50"
    )
    return client


def count(client, database, **settings):
    return client.query(COUNT.replace("{db}", database), settings=settings)[0][0]


def insert(client, database, first=0, token=""):
    settings = {"insert_deduplication_token": token} if token else {}
    client.command(
        f"INSERT INTO {database}.events (n) SELECT number FROM numbers({first}, 10)", settings=settings
    )


def test_a_plain_table_reads_as_a_replicated_one(client, database):
    facts = describe_table(client, f"{database}.events")
    assert (facts.engine, facts.window_blocks, facts.window_seconds) == ("ReplicatedMergeTree", 50, 3600)


def test_rows_reach_the_second_replica_when_they_are_let(client, replicas, database):
    replicas.lag_seconds = UNTIL_RELEASED
    insert(client, database)
    replicas.route(0, 1)
    assert [count(client, database), count(client, database)] == [10, 0]
    replicas.release()
    assert [count(client, database), count(client, database)] == [10, 10]


def test_an_answer_says_which_replica_gave_it(client, replicas):
    replicas.route(0, 1)
    with collect_server_names() as names:
        said = [client.query("SELECT displayName()")[0][0] for _ in range(2)]
    assert names == set(said) == {"replica-1", "replica-2"}


def test_a_token_is_shared_by_both_replicas(client, replicas, database):
    insert(client, database, token="one")
    replicas.route(1)
    insert(client, database, first=10, token="one")
    client.command(f"SYSTEM SYNC REPLICA {database}.events LIGHTWEIGHT")
    assert count(client, database) == 10


def test_an_insert_that_selects_reads_from_the_replica_it_reached(client, replicas, database):
    client.command(f"CREATE TABLE {database}.copy (n UInt64) ENGINE = MergeTree ORDER BY n")
    replicas.lag_seconds = UNTIL_RELEASED
    insert(client, database)
    replicas.route(1)
    client.command(f"INSERT INTO {database}.copy SELECT n FROM {database}.events")
    replicas.route(0)
    assert client.query(f"SELECT count() FROM {database}.copy") == [(0,)]


def test_a_sync_waits_until_the_replica_has_what_was_written(client, replicas, database):
    replicas.lag_seconds = 0.5
    insert(client, database)
    replicas.route(1)
    client.command(f"SYSTEM SYNC REPLICA {database}.events LIGHTWEIGHT")
    assert count(client, database) == 10


def test_a_sync_gives_up_after_its_timeout(client, replicas, database):
    replicas.lag_seconds = UNTIL_RELEASED
    insert(client, database)
    replicas.route(1)
    with pytest.raises(TransientError) as caught:
        client.command(f"SYSTEM SYNC REPLICA {database}.events", settings={"receive_timeout": 1})
    assert failure_of(caught.value).code == 159


def test_a_replica_behind_the_quorum_refuses_a_consistent_read(client, replicas, database):
    replicas.lag_seconds, replicas.has_quorum = UNTIL_RELEASED, True
    insert(client, database)
    replicas.route(1)
    assert count(client, database) == 0
    with pytest.raises(TransientError) as caught:
        count(client, database, select_sequential_consistency=1)
    assert failure_of(caught.value).code == 289


def test_check_tells_servers_apart_by_what_their_answers_say(client, replicas, database):
    replicas.route(0, 1)
    assert inspect_reads(client, [f"{database}.events"]) == ()
    replicas.names_servers = False
    (finding,) = inspect_reads(client, [f"{database}.events"])
    assert (finding.level, "cannot be distinguished" in finding.what) == (Level.WARNING, True)
