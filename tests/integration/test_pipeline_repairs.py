"""What people change or break beside a running ledger, and how it goes on."""

from __future__ import annotations

import pytest

from live_pipeline import make_event, wait_until
from oncehouse.ledger.catalog import requests
from oncehouse.ledger.catalog.batches import retry_parked
from oncehouse.ledger.models import BatchStatus, RequestKind


def test_a_batch_made_before_the_columns_changed_goes_out_as_it_was_made(make_pipeline):
    live_pipeline = make_pipeline()
    live_pipeline.send([make_event(number) for number in range(20)])
    live_pipeline.client.command(
        f"ALTER TABLE {live_pipeline.table} ADD CONSTRAINT no CHECK product_id > 1000"
    )
    live_pipeline.run()
    assert [batch.status for batch in live_pipeline.batches()] == [BatchStatus.PARKED]
    # A field comes in, one goes; the parked batch still has the old ones.
    live_pipeline.document["source"]["fields"] = {
        **live_pipeline.document["source"]["fields"],
        "extra": "Nullable(String)",
    }
    live_pipeline.client.command(f"ALTER TABLE {live_pipeline.table} ADD COLUMN extra Nullable(String)")
    live_pipeline.client.command(f"ALTER TABLE {live_pipeline.table} DROP CONSTRAINT no")
    retry_parked(live_pipeline.catalog, live_pipeline.batches()[0].batch_id)
    live_pipeline.send([make_event(number) for number in range(10, 30)])
    live_pipeline.run()
    assert len(live_pipeline.batches(statuses=[BatchStatus.IN_CLICKHOUSE])) == 2
    live_pipeline.assert_exact()


def test_a_parked_batch_that_is_proven_absent_is_released_by_filling_the_table(make_pipeline):
    live_pipeline = make_pipeline()
    live_pipeline.client.command(
        f"ALTER TABLE {live_pipeline.table} ADD CONSTRAINT no CHECK product_id > 1000"
    )
    live_pipeline.send([make_event(number) for number in range(20)])
    live_pipeline.run()
    live_pipeline.client.command(f"ALTER TABLE {live_pipeline.table} DROP CONSTRAINT no")
    requests.add_request(live_pipeline.catalog, RequestKind.REFILL_TABLE, {"table": live_pipeline.table})
    live_pipeline.run()
    assert [batch.status for batch in live_pipeline.batches()] == [
        BatchStatus.REPLACED,
        BatchStatus.IN_CLICKHOUSE,
    ]
    live_pipeline.assert_exact()


def test_a_refill_leaves_the_rows_that_a_run_shows_at_those_of_the_table(make_pipeline):
    live_pipeline = make_pipeline()
    live_pipeline.send([make_event(number) for number in range(20)])
    live_pipeline.run()
    with live_pipeline.start() as running:
        live_pipeline.send([make_event(number) for number in range(20, 50)])
        running.wait_for_rows(50)
        wait_until(lambda: running.progress.rows_in_clickhouse == 30, "the rows of this run")
        live_pipeline.client.command(f"TRUNCATE TABLE {live_pipeline.table}")
        requests.add_request(live_pipeline.catalog, RequestKind.REFILL_TABLE, {"table": live_pipeline.table})
        wait_until(lambda: not requests.open_requests(live_pipeline.catalog), "the request to be met")
        running.wait_for_rows(50)
        wait_until(lambda: running.progress.batches_waiting == 0, "the batches of the refill")
    assert running.progress.rows_in_clickhouse == 50
    live_pipeline.assert_exact()


def test_a_request_that_cannot_be_met_now_does_not_keep_events_out(make_pipeline, stack):
    live_pipeline = make_pipeline()
    with live_pipeline.start() as running:
        live_pipeline.send([make_event(number) for number in range(5)])
        running.wait_for_rows(5)
        stack.kill("clickhouse")
        requests.add_request(live_pipeline.catalog, RequestKind.REFILL_TABLE, {"table": live_pipeline.table})
        wait_until(lambda: any("waits" in said for said in live_pipeline.said), "the request to be tried")
        live_pipeline.send([make_event(number) for number in range(5, 10)])
        wait_until(lambda: live_pipeline.counts().read == 10, "the ledger to go on without ClickHouse")
        stack.start("clickhouse")
        wait_until(lambda: not requests.open_requests(live_pipeline.catalog), "the request to be met")
        running.wait_for_rows(10)
    live_pipeline.assert_exact()


@pytest.mark.timeout(200)
def test_a_catalog_that_is_away_for_a_moment_is_waited_for(make_pipeline, postgres_url, stack):
    live_pipeline = make_pipeline(ledger={"catalog": postgres_url})
    with live_pipeline.start() as running:
        live_pipeline.send([make_event(number) for number in range(50)])
        running.wait_for_rows(50)
        stack.kill("postgres")
        live_pipeline.send([make_event(number) for number in range(30, 80)])
        stack.start("postgres")
        running.wait_for_rows(80)
    live_pipeline.assert_exact()
