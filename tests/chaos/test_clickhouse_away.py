"""ClickHouse is away while all events come in: the ledger takes them, and they arrive in few, large inserts.

`make bench` plays the same with five million events and prints the speeds.
"""

from __future__ import annotations

from itertools import pairwise

from live_pipeline import make_event, wait_until
from oncehouse.ledger.catalog import batches
from oncehouse.ledger.catalog.leases import list_leases
from oncehouse.ledger.models import BatchStatus

EVENTS = [make_event(number) for number in range(43_000)]
LEAST_ROWS = 10_000
INTERVAL_SECONDS = 1.0


def test_events_that_came_while_clickhouse_was_away_arrive_oldest_first_in_large_inserts(
    make_pipeline, stack
):
    limits = {
        "min_rows": LEAST_ROWS,
        "max_rows": 14_000,
        "max_wait": 0.5,
        "min_interval": INTERVAL_SECONDS,
    }
    live_pipeline = make_pipeline(epoch={"max_rows": 3000}, batch=limits)
    with live_pipeline.start() as running:
        # Whoever holds a lease has looked at ClickHouse already.
        wait_until(
            lambda: live_pipeline.catalog.exists() and list_leases(live_pipeline.catalog), "the leases"
        )
        stack.kill("clickhouse")
        live_pipeline.send(EVENTS[:50])
        wait_until(
            lambda: any("does not answer" in line for line in live_pipeline.said), "the few events to be due"
        )
        assert not live_pipeline.batches(), "no small batch is cut for a server that is away"
        live_pipeline.send(EVENTS[50:])
        wait_until(
            lambda: live_pipeline.counts().read == len(EVENTS) or running.error, "all events in the ledger"
        )
        assert len(live_pipeline.batches()) == 1, "one batch waits for an answer, and none is cut beside it"
        stack.start("clickhouse")
        running.wait_for_rows(len(EVENTS))
    sent = live_pipeline.batches(statuses=[BatchStatus.IN_CLICKHOUSE])
    assert min(batch.rows for batch in sent[:-1]) >= LEAST_ROWS, [batch.rows for batch in sent]
    order = [
        loaded.part.epoch
        for batch in sent
        for loaded in batches.load_parts(live_pipeline.catalog, batch.batch_id)
    ]
    assert order == sorted(order), "oldest first"
    starts = [batches.list_attempts(live_pipeline.catalog, batch.batch_id)[0].started_at for batch in sent]
    # By the catalog's clock, while the loader goes by its own.
    assert all(later - earlier > INTERVAL_SECONDS - 0.1 for earlier, later in pairwise(starts))
    live_pipeline.assert_exact()


def test_a_run_that_starts_while_clickhouse_is_away_reads_and_inserts_later(make_pipeline, stack):
    live_pipeline = make_pipeline()
    live_pipeline.send(EVENTS[:50])
    live_pipeline.run()
    stack.kill("clickhouse")
    live_pipeline.send(EVENTS[50:100])
    with live_pipeline.start() as running:
        wait_until(lambda: live_pipeline.counts().read == 100 or running.error, "the events in the ledger")
        assert any("does not answer" in line for line in live_pipeline.said)
        stack.start("clickhouse")
        running.wait_for_rows(100)
    live_pipeline.assert_exact()
