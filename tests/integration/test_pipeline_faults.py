"""Servers that die, answers that get lost, and set-ups that must be refused before any data moves."""

from __future__ import annotations

import signal

import pytest
from sqlalchemy import update

from live_pipeline import LivePipeline, make_event, wait_until
from oncehouse.devstack.proxies.fault_proxy import FaultProxy
from oncehouse.devstack.proxies.faults import DelayAnswer, DropAnswer
from oncehouse.errors import ConfigurationError, LeaseHeldError, PermanentError
from oncehouse.ledger.catalog import batches, epochs, leases, schema
from oncehouse.ledger.models import BatchStatus, Stage

EVENTS = [make_event(number) for number in range(120)]


@pytest.mark.scenario("answer swallowed")
def test_a_swallowed_answer_leaves_one_copy(make_pipeline, clickhouse):
    with FaultProxy(server_port=clickhouse.place.ports["http"]) as proxy:
        live_pipeline = make_pipeline(epoch={"max_rows": 60})
        live_pipeline.go_through(proxy)
        live_pipeline.send([*EVENTS, *EVENTS[:30]])
        proxy.inject(DropAnswer())
        live_pipeline.run()
        assert proxy.happened[DropAnswer] == 1
        attempts = [
            attempt
            for batch in live_pipeline.batches()
            for attempt in batches.list_attempts(live_pipeline.catalog, batch.batch_id)
        ]
        assert [attempt.outcome for attempt in attempts].count("unknown") == 1
        live_pipeline.assert_exact()


@pytest.mark.scenario("answer swallowed")
def test_a_swallowed_answer_leaves_one_copy_in_every_partition_and_in_a_view(make_pipeline, clickhouse):
    with FaultProxy(server_port=clickhouse.place.ports["http"]) as proxy:
        live_pipeline = make_pipeline(tables=False)
        live_pipeline.create_tables(
            then=lambda ddl: ddl.replace("ORDER BY", "PARTITION BY product_id % 4 ORDER BY")
        )
        live_pipeline.client.command(
            f"ALTER TABLE {live_pipeline.table} MODIFY SETTING non_replicated_deduplication_window = 100000"
        )
        live_pipeline.client.command(
            f"CREATE TABLE {live_pipeline.database}.sums (kind String, n UInt64) "
            "ENGINE = SummingMergeTree ORDER BY kind "
            "SETTINGS non_replicated_deduplication_window = 100000"
        )
        live_pipeline.client.command(
            f"CREATE MATERIALIZED VIEW {live_pipeline.database}.counted TO {live_pipeline.database}.sums AS "
            f"SELECT toString(event_type) AS kind, count() AS n FROM {live_pipeline.table} GROUP BY kind"
        )
        live_pipeline.go_through(proxy)
        live_pipeline.send([*EVENTS, *EVENTS[:30]])
        proxy.inject(DropAnswer())
        live_pipeline.run()
        assert proxy.happened[DropAnswer] == 1
        live_pipeline.assert_exact()
        sums = live_pipeline.client.query(
            f"SELECT kind, sum(n) FROM {live_pipeline.database}.sums GROUP BY kind ORDER BY kind"
        ).result_rows
        assert sums == [("buy", 40), ("click", 40), ("view", 40)]


def test_the_catalog_may_stand_in_postgresql(make_pipeline, postgres_url):
    live_pipeline = make_pipeline(partitions=2, epoch={"max_rows": 60}, ledger={"catalog": postgres_url})
    live_pipeline.send(EVENTS[:80])
    live_pipeline.run()
    live_pipeline.send(EVENTS[40:], partition=1)
    live_pipeline.run()
    assert live_pipeline.counts().duplicate == 40
    live_pipeline.assert_exact()


def test_a_changed_identity_rule_is_refused_before_any_data_moves(live_pipeline):
    live_pipeline.send(EVENTS[:10])
    live_pipeline.run()
    live_pipeline.send(EVENTS[10:20])
    live_pipeline.document["identity"]["fields"] = ["project", "product_id"]
    with pytest.raises(ConfigurationError, match="identity rule has changed"):
        live_pipeline.run()
    assert live_pipeline.counts().read == 10


def test_a_changed_number_of_buckets_is_refused_before_any_data_moves(live_pipeline):
    live_pipeline.send(EVENTS[:10])
    live_pipeline.run()
    live_pipeline.send(EVENTS[10:20])
    live_pipeline.document["identity"]["buckets"] = 32
    with pytest.raises(ConfigurationError, match=r"identity\.buckets is 32, the ledger was made with 16"):
        live_pipeline.run()
    assert live_pipeline.counts().read == 10


def test_a_ledger_of_a_newer_version_is_refused_and_left_alone(live_pipeline):
    live_pipeline.send(EVENTS[:10])
    live_pipeline.run()
    with live_pipeline.catalog.engine.begin() as connection:
        connection.execute(update(schema.ledger_version).values(version=schema.VERSION + 1))
    with pytest.raises(ConfigurationError, match=f"version {schema.VERSION + 1}"):
        live_pipeline.run()


def test_a_table_without_a_column_is_refused_before_any_data_moves(live_pipeline):
    live_pipeline.client.command(f"ALTER TABLE {live_pipeline.table} DROP COLUMN note")
    live_pipeline.send(EVENTS[:10])
    with pytest.raises(ConfigurationError, match="note"):
        live_pipeline.run()
    assert not live_pipeline.catalog.exists()


def test_a_second_driver_that_may_not_wait_is_told_who_runs_the_pipeline(live_pipeline):
    live_pipeline.send(EVENTS[:10])
    live_pipeline.run()
    leases.acquire(live_pipeline.catalog, Stage.LOAD, holder="elsewhere pid 7", lease_seconds=60)
    with pytest.raises(LeaseHeldError, match="elsewhere pid 7"):
        live_pipeline.run(wait=False)
    free = [lease for lease in leases.list_leases(live_pipeline.catalog) if lease.stage is not Stage.LOAD]
    assert all(lease.expires_at == 0 for lease in free), "what it had taken already was given back"


def test_a_driver_whose_lease_was_taken_over_stops_and_changes_nothing(live_pipeline):
    live_pipeline.send(EVENTS[:10])
    with live_pipeline.start() as running:
        running.wait_for_rows(10)
        taken = live_pipeline.catalog
        with taken.engine.begin() as connection:
            connection.execute(update(schema.leases).values(token=schema.leases.c.token + 1, holder="B"))
        live_pipeline.send(EVENTS[10:30])
        error = running.wait_for_error()
    assert isinstance(error, PermanentError)
    assert "another process" in str(error)
    assert live_pipeline.counts().read == 10
    with taken.engine.begin() as connection:
        connection.execute(update(schema.leases).values(expires_at=0.0))
    live_pipeline.run()
    live_pipeline.assert_exact()


def is_in_the_middle(live_pipeline: LivePipeline) -> bool:
    """A batch is sent, and what came after it is in none yet, as none is due for a long time."""
    return bool(live_pipeline.rows() and batches.open_parts(live_pipeline.catalog))


def stop_in_the_middle(make_pipeline, defect: str = "") -> LivePipeline:
    """SIGTERM while most of what was read is not sent yet: what has begun ends, the rest is for the next run."""
    live_pipeline = make_pipeline(epoch={"max_rows": 20}, stop_within="60s")
    live_pipeline.document["batch"]["min_interval"] = 600.0
    live_pipeline.send(EVENTS)
    process = live_pipeline.spawn(defect=defect)
    try:
        wait_until(
            lambda: is_in_the_middle(live_pipeline) or process.poll() is not None,
            "the first rows, and others that are not sent yet",
        )
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=90)
    finally:
        process.kill()
        process.wait()
    assert code == 0, live_pipeline.log()[-2000:]
    assert "did not finish" not in live_pipeline.log()
    assert not live_pipeline.batches(statuses=[BatchStatus.IN_PROCESS]), "no insert was left hanging"
    assert all(lease.expires_at == 0 for lease in leases.list_leases(live_pipeline.catalog))
    live_pipeline.document["batch"]["min_interval"] = 0.1
    return live_pipeline


@pytest.mark.long
@pytest.mark.scenario("SIGTERM in the middle")
def test_a_signal_in_the_middle_lets_what_has_begun_end_and_exits_well(make_pipeline):
    live_pipeline = stop_in_the_middle(make_pipeline)
    assert len(live_pipeline.rows()) < len(EVENTS), "it has to be in the middle"
    assert not live_pipeline.findings()
    live_pipeline.run()
    live_pipeline.assert_exact()
    assert epochs.list_epochs(live_pipeline.catalog)


@pytest.mark.long
@pytest.mark.defect("SIGTERM in the middle")
def test_a_stop_that_calls_loaded_what_was_not_sent_is_noticed(make_pipeline):
    live_pipeline = stop_in_the_middle(make_pipeline, "loaded by word")
    live_pipeline.run()
    with pytest.raises(AssertionError, match="events are lost"):
        live_pipeline.assert_exact()


@pytest.mark.long
@pytest.mark.scenario("SIGTERM in the middle")
def test_a_stop_that_takes_too_long_ends_at_once_and_loses_nothing(make_pipeline, clickhouse):
    """The insert that is under way hangs; whoever comes next looks what became of it."""
    with FaultProxy(server_port=clickhouse.place.ports["http"]) as proxy:
        live_pipeline = make_pipeline(stop_within="2s", lease=2.0)
        live_pipeline.go_through(proxy)
        live_pipeline.send(EVENTS)
        proxy.inject(DelayAnswer(seconds=60))
        process = live_pipeline.spawn()
        try:
            wait_until(
                lambda: live_pipeline.rows() or process.poll() is not None,
                "rows whose insert is not answered",
            )
            process.send_signal(signal.SIGTERM)
            code = process.wait(timeout=90)
        finally:
            process.kill()
            process.wait()
        assert code == 0, live_pipeline.log()[-2000:]
        assert "did not finish within 2 s (stop_within)" in live_pipeline.log()
        live_pipeline.run()
        live_pipeline.assert_exact()
