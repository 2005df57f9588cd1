"""What people change or break beside a running ledger, and how it goes on."""

from __future__ import annotations

import pytest

from oncehouse.ledger.catalog import requests
from oncehouse.ledger.catalog.batches import retry_parked
from oncehouse.ledger.models import BatchStatus, RequestKind
from road import make_event, wait_until


def test_a_batch_made_before_the_columns_changed_goes_out_as_it_was_made(make_road):
    road = make_road()
    road.send([make_event(number) for number in range(20)])
    road.client.command(f"ALTER TABLE {road.table} ADD CONSTRAINT no CHECK product_id > 1000")
    road.run()
    assert [batch.status for batch in road.batches()] == [BatchStatus.PARKED]
    # A field comes in, one goes; the parked batch still has the old ones.
    road.document["source"]["fields"] = {**road.document["source"]["fields"], "extra": "Nullable(String)"}
    road.client.command(f"ALTER TABLE {road.table} ADD COLUMN extra Nullable(String)")
    road.client.command(f"ALTER TABLE {road.table} DROP CONSTRAINT no")
    retry_parked(road.catalog, road.batches()[0].batch_id)
    road.send([make_event(number) for number in range(10, 30)])
    road.run()
    assert len(road.batches(statuses=[BatchStatus.IN_CLICKHOUSE])) == 2
    road.assert_exact()


def test_a_parked_batch_that_is_proven_absent_is_released_by_filling_the_table(make_road):
    road = make_road()
    road.client.command(f"ALTER TABLE {road.table} ADD CONSTRAINT no CHECK product_id > 1000")
    road.send([make_event(number) for number in range(20)])
    road.run()
    road.client.command(f"ALTER TABLE {road.table} DROP CONSTRAINT no")
    requests.add_request(road.catalog, RequestKind.REFILL_TABLE, {"table": road.table})
    road.run()
    assert [batch.status for batch in road.batches()] == [BatchStatus.REPLACED, BatchStatus.IN_CLICKHOUSE]
    road.assert_exact()


def test_a_request_that_cannot_be_met_now_does_not_keep_events_out(make_road, stack):
    road = make_road()
    with road.start() as running:
        road.send([make_event(number) for number in range(5)])
        running.wait_for_rows(5)
        stack.kill("clickhouse")
        requests.add_request(road.catalog, RequestKind.REFILL_TABLE, {"table": road.table})
        wait_until(lambda: any("waits" in said for said in road.said), "the request to be tried")
        road.send([make_event(number) for number in range(5, 10)])
        wait_until(lambda: road.counts().read == 10, "the ledger to go on without ClickHouse")
        stack.start("clickhouse")
        wait_until(lambda: not requests.open_requests(road.catalog), "the request to be met")
        running.wait_for_rows(10)
    road.assert_exact()


@pytest.mark.timeout(200)
def test_a_catalog_that_is_away_for_a_moment_is_waited_for(make_road, postgres_url, stack):
    road = make_road(ledger={"catalog": postgres_url})
    with road.start() as running:
        road.send([make_event(number) for number in range(50)])
        running.wait_for_rows(50)
        stack.kill("postgres")
        road.send([make_event(number) for number in range(30, 80)])
        stack.start("postgres")
        running.wait_for_rows(80)
    road.assert_exact()
