"""A pipeline declares to the etl scheduler how far its tables have come: with new rows, and without."""

from __future__ import annotations

import time

import pytest

from live_pipeline import LivePipeline, make_event, wait_until
from oncehouse.clickhouse.client import connect
from oncehouse.etl.state.clickhouse_store import RocksDbOffsets
from oncehouse.etl.state.declarations import declare, withdraw
from oncehouse.etl.state.position import START, Position
from oncehouse.ledger.models import BatchStatus

EVENTS = [make_event(number) for number in range(60)]


@pytest.fixture
def store(live_pipeline) -> RocksDbOffsets:
    name = f"{live_pipeline.database}.OffsetsLocal"
    live_pipeline.document["tables"][0]["declare"] = {
        "topic": "Stage",
        "offsets": name,
        "pos": "inserted",
        "every": "100ms",
    }
    # As `pos: inserted` needs it: the table itself writes down when a row came.
    live_pipeline.client.command(
        f"ALTER TABLE {live_pipeline.table} ADD COLUMN pos DateTime64(3) DEFAULT now64(3)"
    )
    store = RocksDbOffsets(connect(live_pipeline.pipeline.clickhouse), name)
    store.prepare()
    return store


def declared_ms(store: RocksDbOffsets) -> int:
    row = store.read_all().offsets.get("Stage")
    return row.last.time_ms if row else 0


def test_a_table_is_declared_to_have_come_as_far_as_all_of_kafka_is_loaded(
    live_pipeline: LivePipeline, store
):
    began_ms = time.time_ns() // 1_000_000
    live_pipeline.send(EVENTS)
    sent_ms = time.time_ns() // 1_000_000
    live_pipeline.run()
    live_pipeline.assert_table(live_pipeline.table, live_pipeline.expected)
    assert sent_ms <= declared_ms(store) <= time.time_ns() // 1_000_000
    assert began_ms < declared_ms(store)


def test_a_topic_without_new_records_moves_the_declaration_on(live_pipeline: LivePipeline, store):
    live_pipeline.send(EVENTS[:5])
    with live_pipeline.start() as running:
        running.wait_for_rows(5)
        wait_until(lambda: declared_ms(store), "a first declaration")
        first = declared_ms(store)
        wait_until(lambda: declared_ms(store) > first + 500, "a heartbeat")


def test_nothing_is_declared_while_rows_are_not_in_clickhouse(live_pipeline: LivePipeline, store):
    with live_pipeline.start():
        wait_until(lambda: declared_ms(store), "a first declaration")
        live_pipeline.client.command(
            f"RENAME TABLE {live_pipeline.database}.events TO {live_pipeline.database}.elsewhere"
        )
        live_pipeline.send(EVENTS)
        sent_ms = time.time_ns() // 1_000_000
        wait_until(
            lambda: [one for one in live_pipeline.batches() if one.status is BatchStatus.PARKED],
            "a parked batch",
        )
        time.sleep(1.0)
        assert declared_ms(store) <= sent_ms


def test_a_declaration_that_another_loader_makes_is_left_alone_and_said(live_pipeline: LivePipeline, store):
    declare(store, "Stage", Position(time_ms=5, id=0), consumer="cron")
    live_pipeline.send(EVENTS[:5])
    live_pipeline.run()
    assert declared_ms(store) == 5
    assert [one for one in live_pipeline.said if "declared" in one and "'cron'" in one]
    withdraw(store, "Stage")
    assert store.read_all().offsets["Stage"].last == START
    live_pipeline.run()
    assert declared_ms(store) > 5
