"""Servers that die, answers that get lost, and set-ups that must be refused before any data moves."""

from __future__ import annotations

import signal

import pytest
from sqlalchemy import update

from oncehouse.devstack.proxies.fault_proxy import FaultProxy
from oncehouse.devstack.proxies.faults import DelayAnswer, DropAnswer
from oncehouse.errors import ConfigurationError, LeaseHeldError, PermanentError
from oncehouse.ledger.catalog import batches, epochs, leases, schema
from oncehouse.ledger.models import BatchStatus, Stage
from road import Road, make_event, wait_until

EVENTS = [make_event(number) for number in range(120)]


@pytest.mark.scenario("answer swallowed")
def test_a_swallowed_answer_leaves_one_copy(make_road, clickhouse):
    with FaultProxy(server_port=clickhouse.place.ports["http"]) as proxy:
        road = make_road(epoch={"max_rows": 60})
        road.go_through(proxy)
        road.send([*EVENTS, *EVENTS[:30]])
        proxy.inject(DropAnswer())
        road.run()
        assert proxy.happened[DropAnswer] == 1
        attempts = [
            attempt
            for batch in road.batches()
            for attempt in batches.list_attempts(road.catalog, batch.batch_id)
        ]
        assert [attempt.outcome for attempt in attempts].count("unknown") == 1
        road.assert_exact()


@pytest.mark.scenario("answer swallowed")
def test_a_swallowed_answer_leaves_one_copy_in_every_partition_and_in_a_view(make_road, clickhouse):
    with FaultProxy(server_port=clickhouse.place.ports["http"]) as proxy:
        road = make_road(tables=False)
        road.create_tables(then=lambda ddl: ddl.replace("ORDER BY", "PARTITION BY product_id % 4 ORDER BY"))
        road.client.command(
            f"ALTER TABLE {road.table} MODIFY SETTING non_replicated_deduplication_window = 100000"
        )
        road.client.command(
            f"CREATE TABLE {road.database}.sums (kind String, n UInt64) ENGINE = SummingMergeTree ORDER BY kind "
            "SETTINGS non_replicated_deduplication_window = 100000"
        )
        road.client.command(
            f"CREATE MATERIALIZED VIEW {road.database}.counted TO {road.database}.sums AS "
            f"SELECT toString(event_type) AS kind, count() AS n FROM {road.table} GROUP BY kind"
        )
        road.go_through(proxy)
        road.send([*EVENTS, *EVENTS[:30]])
        proxy.inject(DropAnswer())
        road.run()
        assert proxy.happened[DropAnswer] == 1
        road.assert_exact()
        sums = road.client.query(
            f"SELECT kind, sum(n) FROM {road.database}.sums GROUP BY kind ORDER BY kind"
        ).result_rows
        assert sums == [("buy", 40), ("click", 40), ("view", 40)]


def test_the_catalog_may_stand_in_postgresql(make_road, postgres_url):
    road = make_road(partitions=2, epoch={"max_rows": 60}, ledger={"catalog": postgres_url})
    road.send(EVENTS[:80])
    road.run()
    road.send(EVENTS[40:], partition=1)
    road.run()
    assert road.counts().duplicate == 40
    road.assert_exact()


def test_a_changed_identity_rule_is_refused_before_any_data_moves(road):
    road.send(EVENTS[:10])
    road.run()
    road.send(EVENTS[10:20])
    road.document["identity"]["fields"] = ["project", "product_id"]
    with pytest.raises(ConfigurationError, match="identity rule has changed"):
        road.run()
    assert road.counts().read == 10


def test_a_changed_number_of_buckets_is_refused_before_any_data_moves(road):
    road.send(EVENTS[:10])
    road.run()
    road.send(EVENTS[10:20])
    road.document["identity"]["buckets"] = 32
    with pytest.raises(ConfigurationError, match=r"identity\.buckets is 32, the ledger was made with 16"):
        road.run()
    assert road.counts().read == 10


def test_a_ledger_of_a_newer_version_is_refused_and_left_alone(road):
    road.send(EVENTS[:10])
    road.run()
    with road.catalog.engine.begin() as connection:
        connection.execute(update(schema.ledger_version).values(version=schema.VERSION + 1))
    with pytest.raises(ConfigurationError, match=f"version {schema.VERSION + 1}"):
        road.run()


def test_a_table_without_a_column_is_refused_before_any_data_moves(road):
    road.client.command(f"ALTER TABLE {road.table} DROP COLUMN note")
    road.send(EVENTS[:10])
    with pytest.raises(ConfigurationError, match="note"):
        road.run()
    assert not road.catalog.exists()


def test_a_second_driver_that_may_not_wait_is_told_who_runs_the_pipeline(road):
    road.send(EVENTS[:10])
    road.run()
    leases.acquire(road.catalog, Stage.LOAD, holder="elsewhere pid 7", lease_seconds=60)
    with pytest.raises(LeaseHeldError, match="elsewhere pid 7"):
        road.run(wait=False)
    free = [lease for lease in leases.list_leases(road.catalog) if lease.stage is not Stage.LOAD]
    assert all(lease.expires_at == 0 for lease in free), "what it had taken already was given back"


def test_a_driver_whose_lease_was_taken_over_stops_and_changes_nothing(road):
    road.send(EVENTS[:10])
    with road.start() as running:
        running.wait_for_rows(10)
        taken = road.catalog
        with taken.engine.begin() as connection:
            connection.execute(update(schema.leases).values(token=schema.leases.c.token + 1, holder="B"))
        road.send(EVENTS[10:30])
        error = running.wait_for_error()
    assert isinstance(error, PermanentError)
    assert "another process" in str(error)
    assert road.counts().read == 10
    with taken.engine.begin() as connection:
        connection.execute(update(schema.leases).values(expires_at=0.0))
    road.run()
    road.assert_exact()


def is_in_the_middle(road: Road) -> bool:
    """A batch is sent, and what came after it is in none yet, as none is due for a long time."""
    return bool(road.rows() and batches.open_parts(road.catalog))


def stop_in_the_middle(make_road, defect: str = "") -> Road:
    """SIGTERM while most of what was read is not sent yet: what has begun ends, the rest is for the next run."""
    road = make_road(epoch={"max_rows": 20}, stop_within="60s")
    road.document["batch"]["min_interval"] = 600.0
    road.send(EVENTS)
    process = road.spawn(defect=defect)
    try:
        wait_until(
            lambda: is_in_the_middle(road) or process.poll() is not None,
            "the first rows, and others that are not sent yet",
        )
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=90)
    finally:
        process.kill()
        process.wait()
    assert code == 0, road.log()[-2000:]
    assert "did not finish" not in road.log()
    assert not road.batches(statuses=[BatchStatus.IN_PROCESS]), "no insert was left hanging"
    assert all(lease.expires_at == 0 for lease in leases.list_leases(road.catalog))
    road.document["batch"]["min_interval"] = 0.1
    return road


@pytest.mark.long
@pytest.mark.scenario("SIGTERM in the middle")
def test_a_signal_in_the_middle_lets_what_has_begun_end_and_exits_well(make_road):
    road = stop_in_the_middle(make_road)
    assert len(road.rows()) < len(EVENTS), "it has to be in the middle"
    assert not road.findings()
    road.run()
    road.assert_exact()
    assert epochs.list_epochs(road.catalog)


@pytest.mark.long
@pytest.mark.defect("SIGTERM in the middle")
def test_a_stop_that_calls_loaded_what_was_not_sent_is_noticed(make_road):
    road = stop_in_the_middle(make_road, "loaded by word")
    road.run()
    with pytest.raises(AssertionError, match="events are lost"):
        road.assert_exact()


@pytest.mark.long
@pytest.mark.scenario("SIGTERM in the middle")
def test_a_stop_that_takes_too_long_ends_at_once_and_loses_nothing(make_road, clickhouse):
    """The insert that is under way hangs; whoever comes next looks what became of it."""
    with FaultProxy(server_port=clickhouse.place.ports["http"]) as proxy:
        road = make_road(stop_within="2s", lease=2.0)
        road.go_through(proxy)
        road.send(EVENTS)
        proxy.inject(DelayAnswer(seconds=60))
        process = road.spawn()
        try:
            wait_until(lambda: road.rows() or process.poll() is not None, "rows whose insert is not answered")
            process.send_signal(signal.SIGTERM)
            code = process.wait(timeout=90)
        finally:
            process.kill()
            process.wait()
        assert code == 0, road.log()[-2000:]
        assert "did not finish within 2 s (stop_within)" in road.log()
        road.run()
        road.assert_exact()
