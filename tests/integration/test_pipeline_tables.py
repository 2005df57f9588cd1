"""Several tables of one pipeline: routes, one that fails while the other goes on, and filling one again."""

from __future__ import annotations

import pytest

from live_pipeline import LivePipeline, make_event, wait_until
from oncehouse.errors import ConfigurationError
from oncehouse.ledger.catalog import batches
from oncehouse.ledger.models import BatchStatus, EpochKind, RequestKind

EVENTS = [make_event(number) for number in range(90)]


def only(live_pipeline: LivePipeline, kind: str) -> dict:
    return {event: note for event, note in live_pipeline.expected.items() if event[1] == kind}


def add_table(live_pipeline: LivePipeline, name: str, *, kind: str | None = None) -> str:
    full = f"{live_pipeline.database}.{name}"
    table = {"name": full}
    if kind is not None:
        table["route"] = {"field": "event_type", "values": [kind]}
    live_pipeline.document["tables"].append(table)
    live_pipeline.create_tables(full)
    return full


def test_each_table_gets_the_events_of_its_route(make_pipeline):
    live_pipeline = make_pipeline()
    buys = add_table(live_pipeline, "buys", kind="buy")
    live_pipeline.send([*EVENTS, *EVENTS[:30]])
    live_pipeline.run()
    live_pipeline.assert_exact()
    live_pipeline.assert_table(buys, only(live_pipeline, "buy"))


def test_an_event_that_no_table_takes_is_skipped_and_not_remembered(make_pipeline):
    live_pipeline = make_pipeline(tables=False)
    live_pipeline.document["tables"][0]["route"] = {"field": "event_type", "values": ["buy"]}
    live_pipeline.create_tables()
    live_pipeline.send(EVENTS)
    live_pipeline.send_raw([None, None])
    live_pipeline.run()
    live_pipeline.assert_table(live_pipeline.table, only(live_pipeline, "buy"))
    assert (live_pipeline.counts().new, live_pipeline.counts().skipped) == (30, 62)
    live_pipeline.assert_settled()


def test_a_table_that_refuses_rows_is_parked_and_the_other_goes_on(make_pipeline):
    live_pipeline = make_pipeline(epoch={"max_rows": 30})
    other = add_table(live_pipeline, "other")
    live_pipeline.send(EVENTS[:30])
    live_pipeline.run()
    live_pipeline.client.command(f"ALTER TABLE {other} ADD CONSTRAINT small CHECK product_id < 30")
    live_pipeline.send(EVENTS[30:])
    result = live_pipeline.run()
    assert result.parked
    parked = live_pipeline.batches(statuses=[BatchStatus.PARKED])
    assert {batch.table for batch in parked} == {other}
    assert all("small" in (batch.reason or "") for batch in parked), "the reason names the constraint"
    live_pipeline.assert_table(live_pipeline.table, live_pipeline.expected)
    assert [finding.where for finding in live_pipeline.findings()] == [
        f"batch {batch.batch_id}" for batch in parked
    ]

    live_pipeline.client.command(f"ALTER TABLE {other} DROP CONSTRAINT small")
    for batch in parked:
        batches.retry_parked(live_pipeline.catalog, batch.batch_id)
    assert not live_pipeline.run().parked
    live_pipeline.assert_exact()
    live_pipeline.assert_table(other, live_pipeline.expected)


@pytest.mark.scenario("column missing")
def test_a_table_that_loses_a_column_while_running_is_parked_and_the_other_goes_on(make_pipeline):
    live_pipeline = make_pipeline()
    other = add_table(live_pipeline, "other")
    live_pipeline.send(EVENTS[:30])
    with live_pipeline.start() as running:
        running.wait_for_rows(30)
        running.wait_for_rows(30, other)
        live_pipeline.client.command(f"ALTER TABLE {other} DROP COLUMN note")
        live_pipeline.send(EVENTS[30:])
        running.wait_for_rows(90)
        wait_until(
            lambda: live_pipeline.batches(statuses=[BatchStatus.PARKED], table=other), "a parked batch"
        )
    with pytest.raises(ConfigurationError, match="note"):
        live_pipeline.run()
    live_pipeline.client.command(f"ALTER TABLE {other} ADD COLUMN note String")
    live_pipeline.client.command(f"TRUNCATE TABLE {other}")
    for batch in live_pipeline.batches(statuses=[BatchStatus.PARKED]):
        batches.retry_parked(live_pipeline.catalog, batch.batch_id)
    live_pipeline.request(RequestKind.REFILL_TABLE, table=other)
    live_pipeline.assert_exact()
    live_pipeline.assert_table(other, live_pipeline.expected)


def test_draining_ends_while_a_batch_waits_for_a_table_that_has_left_the_file(make_pipeline):
    live_pipeline = make_pipeline()
    other = add_table(live_pipeline, "other")
    live_pipeline.client.command(f"ALTER TABLE {other} ADD CONSTRAINT none CHECK product_id > 1000")
    live_pipeline.send(EVENTS)
    live_pipeline.run()
    for batch in live_pipeline.batches(statuses=[BatchStatus.PARKED]):
        batches.retry_parked(live_pipeline.catalog, batch.batch_id)
    live_pipeline.document["tables"].pop()
    live_pipeline.run()
    assert {batch.table for batch in live_pipeline.batches(statuses=[BatchStatus.RETRY])} == {other}
    live_pipeline.assert_table(live_pipeline.table, live_pipeline.expected)


def test_a_new_table_is_filled_from_the_ledger_with_what_was_read_before(make_pipeline):
    live_pipeline = make_pipeline(epoch={"max_rows": 30})
    live_pipeline.send([*EVENTS[:60], *EVENTS[:20]])
    live_pipeline.run()
    copy, buys = add_table(live_pipeline, "copy"), add_table(live_pipeline, "buys", kind="buy")
    live_pipeline.send([*EVENTS[60:], *EVENTS[50:60]])
    live_pipeline.run()
    for table in (copy, buys, copy):
        assert not live_pipeline.request(RequestKind.REFILL_TABLE, table=table).startswith("refused")
    live_pipeline.assert_exact()
    live_pipeline.assert_table(copy, live_pipeline.expected)
    live_pipeline.assert_table(buys, only(live_pipeline, "buy"))
    assert live_pipeline.counts(EpochKind.REFILL).new == 0, "no event is new when a table is filled"


def test_a_truncated_table_is_filled_again_and_others_are_left_alone(make_pipeline):
    live_pipeline = make_pipeline()
    buys = add_table(live_pipeline, "buys", kind="buy")
    live_pipeline.send([*EVENTS, *EVENTS[:30]])
    live_pipeline.run()
    live_pipeline.client.command(f"TRUNCATE TABLE {buys}")
    assert live_pipeline.findings()
    live_pipeline.request(RequestKind.REFILL_TABLE, table=buys)
    live_pipeline.assert_exact()
    live_pipeline.assert_table(buys, only(live_pipeline, "buy"))


def test_filling_a_table_is_refused_while_only_some_rows_of_a_batch_are_there(make_pipeline):
    live_pipeline = make_pipeline()
    live_pipeline.send(EVENTS)
    live_pipeline.run()
    live_pipeline.client.command(f"DELETE FROM {live_pipeline.table} WHERE product_id < 5")
    result = live_pipeline.request(RequestKind.REFILL_TABLE, table=live_pipeline.table)
    assert result.startswith("refused")
    assert "85 of the 90 rows" in result
    assert len(live_pipeline.rows()) == 85


def test_filling_a_table_that_the_pipeline_does_not_have_is_refused(live_pipeline):
    live_pipeline.send(EVENTS[:3])
    live_pipeline.run()
    assert "no table 'nowhere'" in live_pipeline.request(RequestKind.REFILL_TABLE, table="nowhere")
    live_pipeline.assert_exact()
