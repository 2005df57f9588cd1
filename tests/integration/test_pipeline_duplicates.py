"""Each event once: duplicates within an epoch, across epochs, restarts, partitions and topics."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from live_pipeline import FIELDS, LivePipeline, encode, make_event, note_of
from oncehouse.ledger.catalog import epochs, registration, segments
from oncehouse.ledger.models import OffsetRange
from oncehouse.pipeline.dedup import index_compaction
from oncehouse.pipeline.ingest import epoch
from oncehouse.pipeline.load import insert_task


@pytest.mark.scenario("duplicates near and far")
def test_an_event_sent_twice_within_an_epoch_arrives_once(live_pipeline):
    events = [make_event(number) for number in range(50)]
    live_pipeline.send([*events, *events[10:30]])
    live_pipeline.run()
    assert len(epochs.list_epochs(live_pipeline.catalog)) == 1
    assert live_pipeline.counts().duplicate == 20
    live_pipeline.assert_exact()


@pytest.mark.scenario("duplicates near and far")
def test_an_event_sent_again_in_a_later_epoch_arrives_once(make_pipeline):
    live_pipeline = make_pipeline(epoch={"max_rows": 80})
    events = [make_event(number) for number in range(200)]
    live_pipeline.send([*events, *events[:75]])
    live_pipeline.run()
    assert len(epochs.list_epochs(live_pipeline.catalog)) > 2
    assert live_pipeline.counts().duplicate == 75
    live_pipeline.assert_exact()


def send_again_after_a_restart(live_pipeline: LivePipeline) -> None:
    events = [make_event(number) for number in range(120)]
    live_pipeline.send(events)
    live_pipeline.run()
    live_pipeline.send([*events[:60], *(make_event(number) for number in range(500, 540))], partition=1)
    live_pipeline.run()


@pytest.mark.scenario("duplicates near and far")
def test_an_event_sent_again_after_a_restart_arrives_once(live_pipeline):
    send_again_after_a_restart(live_pipeline)
    assert live_pipeline.counts().duplicate == 60
    live_pipeline.assert_exact()


@pytest.mark.long
@pytest.mark.defect("duplicates near and far")
def test_an_index_that_forgets_its_first_segment_is_noticed(live_pipeline, monkeypatch):
    list_segments = segments.list_segments
    with monkeypatch.context() as forgetful:
        # For the ingest alone: the oracle has to see the index as it is.
        namespace = SimpleNamespace(list_segments=lambda catalog: list_segments(catalog)[1:])
        forgetful.setattr(epoch, "segments", namespace)
        send_again_after_a_restart(live_pipeline)
    with pytest.raises(AssertionError, match="60 rows are doubled"):
        live_pipeline.assert_exact()


def test_a_run_without_anything_new_changes_nothing(live_pipeline):
    live_pipeline.send(make_event(number) for number in range(10))
    live_pipeline.run()
    before = (epochs.list_epochs(live_pipeline.catalog), live_pipeline.batches())
    live_pipeline.run()
    assert (epochs.list_epochs(live_pipeline.catalog), live_pipeline.batches()) == before
    live_pipeline.assert_exact()


@pytest.mark.scenario("duplicates near and far")
@pytest.mark.scenario("one id with two payloads")
def test_the_lowest_position_wins_across_topics_and_partitions(make_pipeline):
    live_pipeline = make_pipeline(partitions=2, topics=2, epoch={"max_rows": 1000})
    events = [make_event(number) for number in range(30)]
    first, second = live_pipeline.topics
    # Produced the other way round, so that arrival time would choose differently.
    live_pipeline.send_raw([encode(event, "second topic") for event in events], topic=second, partition=0)
    live_pipeline.send_raw(
        [encode(event, "partition one") for event in events[:20]], topic=first, partition=1
    )
    live_pipeline.send_raw(
        [encode(event, "partition zero") for event in events[:10]], topic=first, partition=0
    )
    for at, event in enumerate(events):
        live_pipeline.expected[event] = (
            "partition zero" if at < 10 else "partition one" if at < 20 else "second topic"
        )
    live_pipeline.run()
    assert len(epochs.list_epochs(live_pipeline.catalog)) == 1, "the winner must be chosen within one epoch"
    assert live_pipeline.counts().conflicts == 30
    live_pipeline.assert_exact()


@pytest.mark.scenario("one id with two payloads")
def test_of_one_id_with_two_payloads_the_first_wins_and_the_conflict_is_counted(live_pipeline):
    events = [make_event(number) for number in range(10)]
    live_pipeline.send(events)
    live_pipeline.run()
    live_pipeline.send(events[:4], note="another payload")
    live_pipeline.send(events[4:7])
    live_pipeline.run()
    counts = live_pipeline.counts()
    assert (counts.duplicate, counts.conflicts) == (7, 4)
    live_pipeline.assert_exact()


@pytest.mark.long
@pytest.mark.scenario("duplicates near and far")
def test_random_duplicates_over_many_epochs_and_compactions_end_exact(make_pipeline, monkeypatch):
    monkeypatch.setattr(index_compaction, "FAN_IN", 3)
    monkeypatch.setattr(index_compaction, "SPLIT_KEYS", 100)
    live_pipeline = make_pipeline(partitions=3, epoch={"max_rows": 120})
    chance = random.Random(7)
    for partition in range(3):
        live_pipeline.send((make_event(chance.randrange(900)) for _ in range(360)), partition=partition)
    live_pipeline.run()
    assert len(epochs.list_epochs(live_pipeline.catalog)) > 8
    live_pipeline.compact()
    merged = [
        segment
        for segment in segments.list_segments(live_pipeline.catalog)
        if segment.segment.startswith("merged-")
    ]
    assert any(segment.bucket_to - segment.bucket_from < 15 for segment in merged), "cut into narrower ranges"
    live_pipeline.send((make_event(number) for number in range(0, 950, 5)), partition=1)
    live_pipeline.run()
    assert live_pipeline.counts().new == len(live_pipeline.expected)
    live_pipeline.assert_exact()


@pytest.mark.long
def test_ranges_join_without_gaps_over_restarts(make_pipeline):
    live_pipeline = make_pipeline(partitions=2, epoch={"max_rows": 60})
    for turn in range(3):
        live_pipeline.send((make_event(turn * 100 + number) for number in range(100)), partition=turn % 2)
        live_pipeline.run()
    spans: dict[int, list[OffsetRange]] = {}
    for _, span in epochs.list_ranges(live_pipeline.catalog):
        spans.setdefault(span.partition, []).append(span)
    assert {partition: found[-1].end for partition, found in spans.items()} == {0: 200, 1: 100}
    for found in spans.values():
        assert [span.end for span in found[:-1]] == [span.start for span in found[1:]]
        assert found[0].start == 0
    live_pipeline.assert_exact()


def send_dates_far_apart(make_pipeline) -> LivePipeline:
    """Events and their duplicates, of 1970, of today and of 2099, in epochs that retention follows."""
    live_pipeline = make_pipeline(source={"fields": FIELDS | {"at": "DateTime64(3, 'UTC')"}})
    times = ["1970-01-01T00:00:00Z", "2026-11-15T12:00:00.5Z", "2099-12-31T23:59:59.999Z"]
    events = [make_event(number) for number in range(30)]
    live_pipeline.expected = {event: note_of(event) for event in events}
    for turn in (events, [*events, *events[::-1]]):
        live_pipeline.send_raw([encode(event, at=times[event[2] % 3]) for event in turn])
        live_pipeline.run()
        live_pipeline.retain()
    return live_pipeline


@pytest.mark.scenario("events of 1970 and 2099")
def test_no_event_is_lost_because_of_its_own_time(make_pipeline):
    live_pipeline = send_dates_far_apart(make_pipeline)
    assert live_pipeline.counts().duplicate == 60
    live_pipeline.assert_exact()


@pytest.mark.long
@pytest.mark.defect("events of 1970 and 2099")
def test_rows_dropped_for_being_late_are_noticed(make_pipeline, monkeypatch):
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
    live_pipeline = send_dates_far_apart(make_pipeline)
    with pytest.raises(AssertionError, match="20 events are lost"):
        live_pipeline.assert_exact()


@pytest.mark.long
@pytest.mark.defect("events of 1970 and 2099")
def test_a_window_counted_by_the_events_own_time_is_noticed(make_pipeline, monkeypatch):
    """Segments are as old as the oldest event in them, so retention forgets what was seen a moment ago."""
    insert_segments = registration.insert_segments

    def of_1970(connection, catalog, added, now=None):
        insert_segments(connection, catalog, added, 0.0)

    monkeypatch.setattr(registration, "insert_segments", of_1970)
    live_pipeline = send_dates_far_apart(make_pipeline)
    with pytest.raises(AssertionError, match="rows are doubled"):
        live_pipeline.assert_exact()
