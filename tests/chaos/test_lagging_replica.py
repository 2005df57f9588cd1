"""A replica that lags answers reads that decide something: it is waited for, or nothing is decided.

The replicas are the stand-in of the dev stack: two real servers, one of which has the last rows only when it is let.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import clickhouse_connect
import pytest
from defective_loader import look_without_sync

from etl_shop import BASE_MS, BOUND
from etl_shop import open_shop as open_etl_shop
from live_pipeline import LivePipeline, make_event, wait_until
from oncehouse.clickhouse import replica_sync
from oncehouse.clickhouse.batch_rows import count_by_batch
from oncehouse.devstack.proxies.fault_proxy import FaultProxy
from oncehouse.devstack.proxies.faults import DropAnswer
from oncehouse.errors import TransientError
from oncehouse.etl.lineage.topic import Topic
from oncehouse.etl.scheduler.scheduler import Scheduler
from oncehouse.etl.state.coverage import count_late
from oncehouse.etl.state.declarations import declare
from oncehouse.etl.state.position import MAX_ID, Position
from oncehouse.etl.state.topic_lease import TopicWorker
from oncehouse.etl.steps import source_rows
from oncehouse.ledger.catalog import batches
from oncehouse.ledger.models import RequestKind, Stage
from oncehouse.pipeline.repair.repair import apply_repair
from oncehouse.pipeline.stages import load_stage
from replica_stand_in import ReplicaStandIn
from replicated_tables import UNTIL_RELEASED, connect_to, leave_out_sync, released_at_sync

EVENTS = [make_event(number) for number in range(150)]


@pytest.fixture
def make_replicated(make_pipeline, replicas) -> Callable[..., LivePipeline]:
    """A pipeline whose table, and the view behind it, both replicas have; the oracle asks the first one."""

    def make() -> LivePipeline:
        live_pipeline: LivePipeline = make_pipeline(tables=False, partitions=2)
        live_pipeline.document["clickhouse"]["url"] = replicas.url
        first, live_pipeline.client = (
            live_pipeline.client,
            clickhouse_connect.get_client(
                host="127.0.0.1", port=replicas.port, autogenerate_session_id=False
            ),
        )
        live_pipeline.create_tables()
        live_pipeline.create_view()
        live_pipeline.client.close()
        live_pipeline.client = first
        return live_pipeline

    return make


def lag(replicas: ReplicaStandIn) -> None:
    replicas.lag_seconds = UNTIL_RELEASED


# The look before a retry


def retry_on_a_lagging_replica(
    live_pipeline: LivePipeline, replicas: ReplicaStandIn, second: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer is lost, the token forgotten, and the retry looks where the rows have not come to yet."""
    may_go_on = threading.Event()
    right = load_stage.LoadStage._facts_for

    def wait_before_retry(self, batch):
        assert not batch.attempts or may_go_on.wait(120)
        return right(self, batch)

    monkeypatch.setattr(load_stage.LoadStage, "_facts_for", wait_before_retry)
    # Within a session all statements reach the server that took the INSERT, which has its rows.
    live_pipeline.document["clickhouse"]["insert_sessions"] = False
    live_pipeline.send(EVENTS[:100])
    lag(replicas)
    with FaultProxy(server_port=replicas.port) as proxy:
        live_pipeline.go_through(proxy)
        proxy.inject(DropAnswer())
        with released_at_sync(replicas), live_pipeline.start():
            try:
                wait_until(lambda: proxy.happened[DropAnswer], "an answer that is lost")
                wait_until(
                    lambda: [b for b in live_pipeline.batches(statuses=batches.WAITING) if b.attempts],
                    "an attempt",
                )
                window = f"ALTER TABLE {live_pipeline.table} MODIFY SETTING non_replicated_deduplication_window = 1"
                for client in (live_pipeline.client, second):
                    client.command(window)
                for token in ("one", "another"):
                    live_pipeline.client.command(
                        f"INSERT INTO {live_pipeline.table} (note) SETTINGS insert_deduplication_token = '{token}' "
                        "VALUES ('of others')"
                    )
                live_pipeline.client.command(f"DELETE FROM {live_pipeline.table} WHERE note = 'of others'")
                replicas.route(1)
            finally:
                may_go_on.set()
            wait_until(lambda: not live_pipeline.batches(statuses=batches.WAITING), "the retry")


@pytest.fixture
def second_client(second_clickhouse) -> Iterator[object]:
    client = clickhouse_connect.get_client(
        host="127.0.0.1", port=second_clickhouse.place.ports["http"], autogenerate_session_id=False
    )
    yield client
    client.close()


@pytest.mark.scenario("lagging replica answers the look before a retry")
def test_a_look_waits_for_a_replica_that_lags(make_replicated, replicas, second_client, monkeypatch):
    live_pipeline = make_replicated()
    retry_on_a_lagging_replica(live_pipeline, replicas, second_client, monkeypatch)
    live_pipeline.assert_table(live_pipeline.table, live_pipeline.expected)
    live_pipeline.assert_view()


@pytest.mark.defect("lagging replica answers the look before a retry")
def test_a_look_that_believes_a_replica_that_lags_is_noticed(
    make_replicated, replicas, second_client, monkeypatch
):
    look_without_sync(monkeypatch)
    live_pipeline = make_replicated()
    retry_on_a_lagging_replica(live_pipeline, replicas, second_client, monkeypatch)
    with pytest.raises(AssertionError, match="100 rows are doubled"):
        live_pipeline.assert_table(live_pipeline.table, live_pipeline.expected)


# Verify


def load_in_two_parts(live_pipeline: LivePipeline, replicas: ReplicaStandIn) -> None:
    """The second replica lacks the rows of the last 50 events."""
    live_pipeline.send(EVENTS[:100])
    live_pipeline.run()
    lag(replicas)
    live_pipeline.send(EVENTS[100:])
    live_pipeline.run()
    replicas.route(1)


@pytest.mark.scenario("lagging replica answers verify")
def test_verify_waits_for_a_replica_that_lags(make_replicated, replicas):
    live_pipeline = make_replicated()
    load_in_two_parts(live_pipeline, replicas)
    with released_at_sync(replicas):
        assert not live_pipeline.findings()
    live_pipeline.assert_exact()


@pytest.mark.defect("lagging replica answers verify")
def test_a_verify_that_believes_a_replica_that_lags_is_noticed(make_replicated, replicas, monkeypatch):
    leave_out_sync(monkeypatch)
    live_pipeline = make_replicated()
    load_in_two_parts(live_pipeline, replicas)
    with released_at_sync(replicas):
        missing = live_pipeline.findings()
    assert "50 are missing" in missing[0].message, "it says that rows are lost which are there"


def test_verify_decides_nothing_while_the_replica_does_not_get_in_step(
    make_replicated, replicas, monkeypatch
):
    monkeypatch.setattr(replica_sync, "WAIT_SECONDS", 1.0)
    live_pipeline = make_replicated()
    load_in_two_parts(live_pipeline, replicas)
    with pytest.raises(TransientError, match="replica-2 is 60 s behind") as caught:
        live_pipeline.findings()
    assert live_pipeline.table in str(caught.value)


# Replay


def refill_on_a_lagging_replica(live_pipeline: LivePipeline, replicas: ReplicaStandIn) -> None:
    load_in_two_parts(live_pipeline, replicas)
    with released_at_sync(replicas):
        live_pipeline.request(RequestKind.REFILL_TABLE, table=live_pipeline.table)
        live_pipeline.run()


@pytest.mark.scenario("lagging replica answers a replay")
def test_a_table_is_not_filled_again_with_what_a_replica_does_not_show_yet(make_replicated, replicas):
    live_pipeline = make_replicated()
    refill_on_a_lagging_replica(live_pipeline, replicas)
    live_pipeline.assert_exact()


@pytest.mark.defect("lagging replica answers a replay")
def test_a_table_that_is_filled_by_what_a_lagging_replica_shows_is_noticed(
    make_replicated, replicas, monkeypatch
):
    leave_out_sync(monkeypatch)
    live_pipeline = make_replicated()
    refill_on_a_lagging_replica(live_pipeline, replicas)
    assert len(live_pipeline.rows()) == 200
    with pytest.raises(AssertionError, match="50 rows are doubled"):
        live_pipeline.assert_exact()


# Repair


def repair_on_a_lagging_replica(live_pipeline: LivePipeline, replicas: ReplicaStandIn) -> None:
    """The catalog is lost, its snapshot does not know the last 50 events, and the table is asked about them."""
    live_pipeline.send(EVENTS[:100])
    live_pipeline.run()
    live_pipeline.retain()
    lag(replicas)
    live_pipeline.send(EVENTS[100:])
    live_pipeline.run(only=[Stage.INGEST])
    live_pipeline.run(only=[Stage.LOAD])
    live_pipeline.catalog.close()
    for file in Path(live_pipeline.folder).glob("catalog.db*"):
        file.unlink()
    replicas.route(1)
    live_pipeline.age_marks()
    with released_at_sync(replicas):
        apply_repair(live_pipeline.pipeline, live_pipeline.said.append)
        live_pipeline.run()


@pytest.mark.scenario("lagging replica answers repair")
def test_a_catalog_learns_what_a_lagging_replica_does_not_show_yet(make_replicated, replicas):
    live_pipeline = make_replicated()
    repair_on_a_lagging_replica(live_pipeline, replicas)
    live_pipeline.assert_exact()


@pytest.mark.defect("lagging replica answers repair")
def test_a_catalog_that_learns_from_a_lagging_replica_is_noticed(make_replicated, replicas, monkeypatch):
    leave_out_sync(monkeypatch)
    live_pipeline = make_replicated()
    repair_on_a_lagging_replica(live_pipeline, replicas)
    with pytest.raises(AssertionError, match="50 rows are doubled"):
        live_pipeline.assert_exact()


# A range of etl


def build_on_a_lagging_replica(replicas: ReplicaStandIn, database: str, folder: Path) -> None:
    """The range is found on one replica, and inserted from another that lacks ten of its rows."""
    with open_etl_shop(replicas.url, database, folder, BOUND) as shop:
        shop.add(0, 70)
        shop.add(80, 70)
        lag(replicas)
        shop.add(70, 10)
        shop.add(150, 1)
        replicas.route(0, insert_select=(1,), sync=(0, 1))
        with released_at_sync(replicas):
            shop.catch_up()
            replicas.release()
            wait_until(lambda: not shop.catch_up() and shop.offset().state == "done", "the end")
        assert shop.offset().last.id == 150
        shop.check_exact()


@pytest.mark.scenario("lagging replica answers an etl range")
def test_a_range_is_inserted_from_a_replica_that_has_all_of_it(replicas, database, tmp_path):
    build_on_a_lagging_replica(replicas, database, tmp_path)


@pytest.mark.scenario("lagging replica answers an etl range")
def test_a_range_of_which_fewer_rows_are_seen_than_were_found_is_not_inserted(
    replicas, database, tmp_path, monkeypatch
):
    """Even where nobody waited for the replica: a view, say, hides that its table has some."""
    leave_out_sync(monkeypatch)
    build_on_a_lagging_replica(replicas, database, tmp_path)


@pytest.mark.scenario("lagging replica answers an etl range")
def test_ranges_are_built_and_counted_behind_a_balancer_that_takes_turns(replicas, database, tmp_path):
    with open_etl_shop(replicas.url, database, tmp_path, BOUND) as shop:
        replicas.lag_seconds = 0.3
        replicas.route(0, 1)

        def is_built(last_id: int) -> bool:
            shop.catch_up()
            offset = shop.store.read_all().offsets.get("Fact")  # none before its first range is begun
            return offset is not None and offset.last.id == last_id and not offset.is_open

        shop.add(100, 90)
        wait_until(lambda: is_built(189), "all ranges", seconds=90)
        shop.add(190, 1)
        wait_until(lambda: is_built(190), "one range more", seconds=90)
        assert count_late(shop.offset().topic_state.segments) == 0, "rows that one server lacked are not late"
        replicas.release()
        replicas.route(0)
        shop.check_exact()


def build_past_a_declared_source(replicas: ReplicaStandIn, database: str, folder: Path) -> None:
    """A source is declared to have come to where its rows are, which the replica does not show yet."""
    with open_etl_shop(replicas.url, database, folder, BOUND) as shop:
        for table in ("other", "between"):
            shop.run(
                f"CREATE TABLE {{db}}.{table} (pos DateTime64(3), id UInt64, v UInt64) ENGINE = MergeTree "
                "ORDER BY (pos, id) SETTINGS non_replicated_deduplication_window = 1000"
            )
        shop.run(f"CREATE VIEW {{db}}.BetweenTransform AS SELECT pos, id, v FROM {{db}}.other WHERE {BOUND}")
        shop.run(
            "CREATE OR REPLACE VIEW {db}.FactTransform AS SELECT pos, id, (SELECT count() FROM {db}.between) AS v, "
            f"toUInt8(1) AS c FROM {{db}}.stage WHERE {BOUND}"
        )
        between = replace(
            shop.topic,
            topic="Between",
            dst=f"{database}.between",
            depends_on=(f"{database}.other",),
            transform=f"{database}.BetweenTransform",
            maxstep_rows=1000,
        )
        fact = replace(shop.topic, depends_on=(f"{database}.stage", between.dst), maxstep_rows=1000)
        shop.add(0, 50)
        lag(replicas)
        shop.run("INSERT INTO {db}.other SELECT pos, id, v FROM {db}.stage")
        declare(
            shop.store, "Other", Position(time_ms=BASE_MS + 49, id=MAX_ID), consumer="the loader of others"
        )
        other = Topic(topic="Other", dst=f"{database}.other")
        replicas.route(1)
        with released_at_sync(replicas):
            worker = TopicWorker(hostid="here")
            with Scheduler(
                shop.client, shop.store, (other, between, fact), folder=folder, worker=worker
            ) as scheduler:
                scheduler.run_until_idle()
        assert shop.sql("SELECT count(), min(v), max(v) FROM {db}.fact") == [(50, 50, 50)]


@pytest.mark.scenario("lagging replica answers an etl range")
def test_a_fact_waits_for_declared_rows_that_a_replica_does_not_show_yet(replicas, database, tmp_path):
    build_past_a_declared_source(replicas, database, tmp_path)


@pytest.mark.defect("lagging replica answers an etl range")
def test_a_fact_that_goes_past_declared_rows_is_noticed(replicas, database, tmp_path, monkeypatch):
    leave_out_sync(monkeypatch)
    with pytest.raises(AssertionError):
        build_past_a_declared_source(replicas, database, tmp_path)


@pytest.mark.defect("lagging replica answers an etl range")
def test_a_range_that_a_lagging_replica_inserts_in_part_is_noticed(replicas, database, tmp_path, monkeypatch):
    leave_out_sync(monkeypatch)
    monkeypatch.setattr(source_rows, "_keeps_rows", lambda *_: False)
    with pytest.raises(AssertionError):
        build_on_a_lagging_replica(replicas, database, tmp_path)


# A balancer that changes the server


def test_a_balancer_that_takes_its_servers_in_turns_is_followed(replicas, database):
    client = connect_to(replicas)
    client.command(f"CREATE TABLE {database}.events (_batch_id UUID, n UInt64) ENGINE = MergeTree ORDER BY n")
    replicas.lag_seconds = 0.5
    batch = "0f8fad5b-d9cb-469f-a165-70867728950e"
    client.command(f"INSERT INTO {database}.events SELECT '{batch}', number FROM numbers(10)")
    replicas.route(0, 1)
    for _ in range(4):
        assert count_by_batch(client, f"{database}.events", "_batch_id") == {batch: 10}
