"""Several tables of one pipeline: routes, one that fails while the other goes on, and filling one again."""

from __future__ import annotations

import pytest

from oncehouse.errors import ConfigurationError
from oncehouse.ledger.catalog import batches
from oncehouse.ledger.models import BatchStatus, EpochKind, RequestKind
from road import Road, make_event, wait_until

EVENTS = [make_event(number) for number in range(90)]


def only(road: Road, kind: str) -> dict:
    return {event: note for event, note in road.expected.items() if event[1] == kind}


def add_table(road: Road, name: str, *, kind: str | None = None) -> str:
    full = f"{road.database}.{name}"
    table = {"name": full}
    if kind is not None:
        table["route"] = {"field": "event_type", "values": [kind]}
    road.document["tables"].append(table)
    road.create_tables(full)
    return full


def test_each_table_gets_the_events_of_its_route(make_road):
    road = make_road()
    buys = add_table(road, "buys", kind="buy")
    road.send([*EVENTS, *EVENTS[:30]])
    road.run()
    road.assert_exact()
    road.assert_table(buys, only(road, "buy"))


def test_an_event_that_no_table_takes_is_skipped_and_not_remembered(make_road):
    road = make_road(tables=False)
    road.document["tables"][0]["route"] = {"field": "event_type", "values": ["buy"]}
    road.create_tables()
    road.send(EVENTS)
    road.send_raw([None, None])
    road.run()
    road.assert_table(road.table, only(road, "buy"))
    assert (road.counts().new, road.counts().skipped) == (30, 62)
    road.assert_settled()


def test_a_table_that_refuses_rows_is_parked_and_the_other_goes_on(make_road):
    road = make_road(epoch={"max_rows": 30})
    other = add_table(road, "other")
    road.send(EVENTS[:30])
    road.run()
    road.client.command(f"ALTER TABLE {other} ADD CONSTRAINT small CHECK product_id < 30")
    road.send(EVENTS[30:])
    result = road.run()
    assert result.parked
    parked = road.batches(statuses=[BatchStatus.PARKED])
    assert {batch.table for batch in parked} == {other}
    assert all("small" in (batch.reason or "") for batch in parked), "the reason names the constraint"
    road.assert_table(road.table, road.expected)
    assert [finding.where for finding in road.findings()] == [f"batch {batch.batch_id}" for batch in parked]

    road.client.command(f"ALTER TABLE {other} DROP CONSTRAINT small")
    for batch in parked:
        batches.retry_parked(road.catalog, batch.batch_id)
    assert not road.run().parked
    road.assert_exact()
    road.assert_table(other, road.expected)


@pytest.mark.scenario("column missing")
def test_a_table_that_loses_a_column_while_running_is_parked_and_the_other_goes_on(make_road):
    road = make_road()
    other = add_table(road, "other")
    road.send(EVENTS[:30])
    with road.start() as running:
        running.wait_for_rows(30)
        running.wait_for_rows(30, other)
        road.client.command(f"ALTER TABLE {other} DROP COLUMN note")
        road.send(EVENTS[30:])
        running.wait_for_rows(90)
        wait_until(lambda: road.batches(statuses=[BatchStatus.PARKED], table=other), "a parked batch")
    with pytest.raises(ConfigurationError, match="note"):
        road.run()
    road.client.command(f"ALTER TABLE {other} ADD COLUMN note String")
    road.client.command(f"TRUNCATE TABLE {other}")
    for batch in road.batches(statuses=[BatchStatus.PARKED]):
        batches.retry_parked(road.catalog, batch.batch_id)
    road.request(RequestKind.REFILL_TABLE, table=other)
    road.assert_exact()
    road.assert_table(other, road.expected)


def test_draining_ends_while_a_batch_waits_for_a_table_that_has_left_the_file(make_road):
    road = make_road()
    other = add_table(road, "other")
    road.client.command(f"ALTER TABLE {other} ADD CONSTRAINT none CHECK product_id > 1000")
    road.send(EVENTS)
    road.run()
    for batch in road.batches(statuses=[BatchStatus.PARKED]):
        batches.retry_parked(road.catalog, batch.batch_id)
    road.document["tables"].pop()
    road.run()
    assert {batch.table for batch in road.batches(statuses=[BatchStatus.RETRY])} == {other}
    road.assert_table(road.table, road.expected)


def test_a_new_table_is_filled_from_the_ledger_with_what_was_read_before(make_road):
    road = make_road(epoch={"max_rows": 30})
    road.send([*EVENTS[:60], *EVENTS[:20]])
    road.run()
    copy, buys = add_table(road, "copy"), add_table(road, "buys", kind="buy")
    road.send([*EVENTS[60:], *EVENTS[50:60]])
    road.run()
    for table in (copy, buys, copy):
        assert not road.request(RequestKind.REFILL_TABLE, table=table).startswith("refused")
    road.assert_exact()
    road.assert_table(copy, road.expected)
    road.assert_table(buys, only(road, "buy"))
    assert road.counts(EpochKind.REFILL).new == 0, "no event is new when a table is filled"


def test_a_truncated_table_is_filled_again_and_others_are_left_alone(make_road):
    road = make_road()
    buys = add_table(road, "buys", kind="buy")
    road.send([*EVENTS, *EVENTS[:30]])
    road.run()
    road.client.command(f"TRUNCATE TABLE {buys}")
    assert road.findings()
    road.request(RequestKind.REFILL_TABLE, table=buys)
    road.assert_exact()
    road.assert_table(buys, only(road, "buy"))


def test_filling_a_table_is_refused_while_only_some_rows_of_a_batch_are_there(make_road):
    road = make_road()
    road.send(EVENTS)
    road.run()
    road.client.command(f"DELETE FROM {road.table} WHERE product_id < 5")
    result = road.request(RequestKind.REFILL_TABLE, table=road.table)
    assert result.startswith("refused")
    assert "85 of the 90 rows" in result
    assert len(road.rows()) == 85


def test_filling_a_table_that_the_pipeline_does_not_have_is_refused(road):
    road.send(EVENTS[:3])
    road.run()
    assert "no table 'nowhere'" in road.request(RequestKind.REFILL_TABLE, table="nowhere")
    road.assert_exact()
