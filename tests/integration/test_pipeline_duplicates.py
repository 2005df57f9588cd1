"""Each event once: duplicates within an epoch, across epochs, restarts, partitions and topics."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from oncehouse.ledger.catalog import epochs, registration, segments
from oncehouse.ledger.models import OffsetRange
from oncehouse.pipeline.dedup import index_compaction
from oncehouse.pipeline.ingest import epoch
from oncehouse.pipeline.load import insert_task
from road import FIELDS, Road, encode, make_event, note_of


@pytest.mark.scenario("duplicates near and far")
def test_an_event_sent_twice_within_an_epoch_arrives_once(road):
    events = [make_event(number) for number in range(50)]
    road.send([*events, *events[10:30]])
    road.run()
    assert len(epochs.list_epochs(road.catalog)) == 1
    assert road.counts().duplicate == 20
    road.assert_exact()


@pytest.mark.scenario("duplicates near and far")
def test_an_event_sent_again_in_a_later_epoch_arrives_once(make_road):
    road = make_road(epoch={"max_rows": 80})
    events = [make_event(number) for number in range(200)]
    road.send([*events, *events[:75]])
    road.run()
    assert len(epochs.list_epochs(road.catalog)) > 2
    assert road.counts().duplicate == 75
    road.assert_exact()


def send_again_after_a_restart(road: Road) -> None:
    events = [make_event(number) for number in range(120)]
    road.send(events)
    road.run()
    road.send([*events[:60], *(make_event(number) for number in range(500, 540))], partition=1)
    road.run()


@pytest.mark.scenario("duplicates near and far")
def test_an_event_sent_again_after_a_restart_arrives_once(road):
    send_again_after_a_restart(road)
    assert road.counts().duplicate == 60
    road.assert_exact()


@pytest.mark.long
@pytest.mark.defect("duplicates near and far")
def test_an_index_that_forgets_its_first_segment_is_noticed(road, monkeypatch):
    list_segments = segments.list_segments
    with monkeypatch.context() as forgetful:
        # For the ingest alone: the oracle has to see the index as it is.
        namespace = SimpleNamespace(list_segments=lambda catalog: list_segments(catalog)[1:])
        forgetful.setattr(epoch, "segments", namespace)
        send_again_after_a_restart(road)
    with pytest.raises(AssertionError, match="60 rows are doubled"):
        road.assert_exact()


def test_a_run_without_anything_new_changes_nothing(road):
    road.send(make_event(number) for number in range(10))
    road.run()
    before = (epochs.list_epochs(road.catalog), road.batches())
    road.run()
    assert (epochs.list_epochs(road.catalog), road.batches()) == before
    road.assert_exact()


@pytest.mark.scenario("duplicates near and far")
@pytest.mark.scenario("one id with two payloads")
def test_the_lowest_position_wins_across_topics_and_partitions(make_road):
    road = make_road(partitions=2, topics=2, epoch={"max_rows": 1000})
    events = [make_event(number) for number in range(30)]
    first, second = road.topics
    # Produced the other way round, so that arrival time would choose differently.
    road.send_raw([encode(event, "second topic") for event in events], topic=second, partition=0)
    road.send_raw([encode(event, "partition one") for event in events[:20]], topic=first, partition=1)
    road.send_raw([encode(event, "partition zero") for event in events[:10]], topic=first, partition=0)
    for at, event in enumerate(events):
        road.expected[event] = "partition zero" if at < 10 else "partition one" if at < 20 else "second topic"
    road.run()
    assert len(epochs.list_epochs(road.catalog)) == 1, "the winner must be chosen within one epoch"
    assert road.counts().conflicts == 30
    road.assert_exact()


@pytest.mark.scenario("one id with two payloads")
def test_of_one_id_with_two_payloads_the_first_wins_and_the_conflict_is_counted(road):
    events = [make_event(number) for number in range(10)]
    road.send(events)
    road.run()
    road.send(events[:4], note="another payload")
    road.send(events[4:7])
    road.run()
    counts = road.counts()
    assert (counts.duplicate, counts.conflicts) == (7, 4)
    road.assert_exact()


@pytest.mark.long
@pytest.mark.scenario("duplicates near and far")
def test_random_duplicates_over_many_epochs_and_compactions_end_exact(make_road, monkeypatch):
    monkeypatch.setattr(index_compaction, "FAN_IN", 3)
    monkeypatch.setattr(index_compaction, "SPLIT_KEYS", 100)
    road = make_road(partitions=3, epoch={"max_rows": 120})
    chance = random.Random(7)
    for partition in range(3):
        road.send((make_event(chance.randrange(900)) for _ in range(360)), partition=partition)
    road.run()
    assert len(epochs.list_epochs(road.catalog)) > 8
    road.compact()
    merged = [
        segment for segment in segments.list_segments(road.catalog) if segment.segment.startswith("merged-")
    ]
    assert any(segment.bucket_to - segment.bucket_from < 15 for segment in merged), "cut into narrower ranges"
    road.send((make_event(number) for number in range(0, 950, 5)), partition=1)
    road.run()
    assert road.counts().new == len(road.expected)
    road.assert_exact()


@pytest.mark.long
def test_ranges_join_without_gaps_over_restarts(make_road):
    road = make_road(partitions=2, epoch={"max_rows": 60})
    for turn in range(3):
        road.send((make_event(turn * 100 + number) for number in range(100)), partition=turn % 2)
        road.run()
    spans: dict[int, list[OffsetRange]] = {}
    for _, span in epochs.list_ranges(road.catalog):
        spans.setdefault(span.partition, []).append(span)
    assert {partition: found[-1].end for partition, found in spans.items()} == {0: 200, 1: 100}
    for found in spans.values():
        assert [span.end for span in found[:-1]] == [span.start for span in found[1:]]
        assert found[0].start == 0
    road.assert_exact()


def send_dates_far_apart(make_road) -> Road:
    """Events and their duplicates, of 1970, of today and of 2099, in epochs that retention follows."""
    road = make_road(source={"fields": FIELDS | {"at": "DateTime64(3, 'UTC')"}})
    times = ["1970-01-01T00:00:00Z", "2026-11-15T12:00:00.5Z", "2099-12-31T23:59:59.999Z"]
    events = [make_event(number) for number in range(30)]
    road.expected = {event: note_of(event) for event in events}
    for turn in (events, [*events, *events[::-1]]):
        road.send_raw([encode(event, at=times[event[2] % 3]) for event in turn])
        road.run()
        road.retain()
    return road


@pytest.mark.scenario("events of 1970 and 2099")
def test_no_event_is_lost_because_of_its_own_time(make_road):
    road = send_dates_far_apart(make_road)
    assert road.counts().duplicate == 60
    road.assert_exact()


@pytest.mark.long
@pytest.mark.defect("events of 1970 and 2099")
def test_rows_dropped_for_being_late_are_noticed(make_road, monkeypatch):
    """As a watermark drops them: what is older than the newest by more than the window is not sent."""

    def send_what_is_not_late(plan):
        from dataclasses import replace
        from datetime import timedelta

        import pyarrow.compute as pc

        from oncehouse.pipeline.load import insert_task

        live_rows = insert_task.live_rows

        def without_late(store, parts):
            rows = live_rows(store, parts)
            watermark = pc.max(rows["at"]).as_py() - timedelta(days=60)
            return rows.filter(pc.greater_equal(rows["at"], watermark))

        insert_task.live_rows = without_late
        try:
            kept = without_late(insert_task.FileStore(plan.files_root), plan.parts).num_rows
            return insert_task.send_batch(replace(plan, request=replace(plan.request, rows=kept)))
        finally:
            insert_task.live_rows = live_rows

    monkeypatch.setattr(insert_task, "send_batch", send_what_is_not_late)
    road = send_dates_far_apart(make_road)
    with pytest.raises(AssertionError, match="20 events are lost"):
        road.assert_exact()


@pytest.mark.long
@pytest.mark.defect("events of 1970 and 2099")
def test_a_window_counted_by_the_events_own_time_is_noticed(make_road, monkeypatch):
    """Segments are as old as the oldest event in them, so retention forgets what was seen a moment ago."""
    insert_segments = registration.insert_segments

    def of_1970(connection, catalog, added, now=None):
        insert_segments(connection, catalog, added, 0.0)

    monkeypatch.setattr(registration, "insert_segments", of_1970)
    road = send_dates_far_apart(make_road)
    with pytest.raises(AssertionError, match="rows are doubled"):
        road.assert_exact()
