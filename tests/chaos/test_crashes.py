"""kill -9 of the driver at every step of the pipeline: after the next start everything is there once.

The process dies in a Python of its own; the restart runs here, on the shared Spark session.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from live_pipeline import LivePipeline, encode, make_event, note_of
from oncehouse.ledger.catalog import epochs, requests, segments
from oncehouse.ledger.catalog.dead_letters import add_edits
from oncehouse.ledger.models import BatchStatus, EpochKind, RequestKind
from oncehouse.pipeline.dead_letters.edits import match_edits
from oncehouse.pipeline.dead_letters.jsonl import DeadLetterPosition, Edit
from oncehouse.pipeline.ingest.part_files import epoch_path
from oncehouse.pipeline.maintenance import retention
from oncehouse.pipeline.schema.identity_guard import identity_of
from oncehouse.pipeline.stages import ingest_stage

DAY = 86_400.0
EVENTS = [make_event(number) for number in range(150)]


@pytest.fixture
def busy_pipeline(make_pipeline, proxy) -> LivePipeline:
    """Something is settled already, and more is waiting, duplicates of both among it.

    INSERTs go through the proxy, which sees whether what is sent again is the same.
    """
    live_pipeline = make_pipeline(partitions=2, epoch={"max_rows": 60})
    live_pipeline.go_through(proxy)
    live_pipeline.send(EVENTS[:40])
    live_pipeline.run()
    live_pipeline.send([*EVENTS[20:100], *EVENTS[60:80]])
    live_pipeline.send([*EVENTS[80:], *EVENTS[:10]], partition=1)
    return live_pipeline


INGESTING = (
    "before writing parts",
    "before writing parts:2",
    "parts written",
    "parts written:2",
    "before registering",
    "before registering:3",
    "after registering",
    "after registering:3",
)
LOADING = (
    "before making batches",
    "after making batches",
    "before inserting",
    "before inserting:2",
    "after inserting",
    "after inserting:2",
)


def die_and_go_on(live_pipeline: LivePipeline, point: str, *, defect: str = "") -> None:
    live_pipeline.crash(point, "--once", defect=defect)
    live_pipeline.run()
    live_pipeline.assert_exact()
    assert not live_pipeline.batches(statuses=[BatchStatus.IN_PROCESS, BatchStatus.RETRY, BatchStatus.PARKED])
    # What the dead process wrote and did not register is swept, and nothing else.
    live_pipeline.retain()
    live_pipeline.assert_swept()
    live_pipeline.send(EVENTS)
    live_pipeline.run()
    live_pipeline.assert_exact()


@pytest.mark.scenario("driver killed while it ingests")
@pytest.mark.parametrize("point", INGESTING)
def test_a_driver_killed_while_it_ingests_loses_and_doubles_nothing(busy_pipeline, point):
    die_and_go_on(busy_pipeline, point)


@pytest.mark.defect("driver killed while it ingests")
def test_offsets_that_are_written_down_before_their_rows_are_noticed(busy_pipeline):
    with pytest.raises(AssertionError, match="events are lost"):
        die_and_go_on(busy_pipeline, "before registering", defect="offsets first")


@pytest.mark.scenario("driver killed while it loads")
@pytest.mark.parametrize("point", LOADING)
def test_a_driver_killed_while_it_loads_loses_and_doubles_nothing(busy_pipeline, proxy, point):
    die_and_go_on(busy_pipeline, point)
    # Only what was sent before the end of the process is sent again.
    assert bool(proxy.bodies.repeated) is point.startswith("after inserting")


def die_while_merging(
    live_pipeline: LivePipeline, point: str, monkeypatch: pytest.MonkeyPatch, *, defect: str = ""
) -> None:
    live_pipeline.send(EVENTS)
    with monkeypatch.context() as idle:
        idle.setattr(ingest_stage, "compact", lambda *_: 0)  # so that there is something left to merge
        live_pipeline.run()
    live_pipeline.crash(point, defect=defect)
    live_pipeline.send([*EVENTS[:50], make_event(999)])
    live_pipeline.run()
    live_pipeline.assert_exact()
    live_pipeline.compact()
    assert any(
        segment.segment.startswith("merged-") for segment in segments.list_segments(live_pipeline.catalog)
    )
    live_pipeline.retain()
    live_pipeline.assert_swept()
    live_pipeline.send(EVENTS)
    live_pipeline.run()
    live_pipeline.assert_exact()


@pytest.fixture
def pipeline_of_segments(make_pipeline) -> LivePipeline:
    return make_pipeline(epoch={"max_rows": 15})


@pytest.mark.scenario("driver killed while it merges segments")
@pytest.mark.parametrize("point", ["before replacing segments", "after replacing segments"])
def test_a_driver_killed_while_it_merges_segments_loses_and_doubles_nothing(
    pipeline_of_segments, point, monkeypatch
):
    die_while_merging(pipeline_of_segments, point, monkeypatch)


@pytest.mark.defect("driver killed while it merges segments")
def test_segments_that_go_before_the_merged_one_is_there_are_noticed(pipeline_of_segments, monkeypatch):
    with pytest.raises(AssertionError, match="50 rows are doubled"):
        die_while_merging(
            pipeline_of_segments, "before replacing segments", monkeypatch, defect="segments first"
        )


def die_while_sweeping(live_pipeline: LivePipeline, point: str) -> None:
    """Something is past the window, something is nobody's, something is not loaded yet."""
    live_pipeline.send(EVENTS[:40])
    live_pipeline.run()
    live_pipeline.grow_older(61 * DAY)
    for name in ("r8-dead", "r9-dead"):
        live_pipeline.store.put(
            epoch_path("live", 1, 1, f"{name}.keys.arrow"), lambda path: Path(path).write_bytes(b"")
        )
    live_pipeline.send(EVENTS[40:100])
    live_pipeline.crash(point, defect="packs soon")
    live_pipeline.run()
    live_pipeline.retain()
    live_pipeline.assert_swept()
    live_pipeline.assert_exact()


@pytest.mark.scenario("driver killed while it sweeps")
@pytest.mark.parametrize("point", ["before deleting files", "after deleting a file", "after sweeping a file"])
def test_a_driver_killed_while_it_sweeps_leaves_what_the_next_sweep_finds(live_pipeline, point):
    die_while_sweeping(live_pipeline, point)


@pytest.mark.defect("driver killed while it sweeps")
def test_a_sweep_that_does_not_ask_the_catalog_is_noticed(live_pipeline, monkeypatch):
    right = retention.plan_sweep
    monkeypatch.setattr(retention, "plan_sweep", lambda files, _, **limits: right(files, set(), **limits))
    with pytest.raises(AssertionError, match="swept too early"):
        die_while_sweeping(live_pipeline, "after sweeping a file")


@pytest.mark.scenario("driver killed while it sweeps")
@pytest.mark.parametrize("point", ["before moving files", "after moving files"])
def test_a_driver_killed_while_it_packs_files_leaves_what_the_next_sweep_finds(busy_pipeline, point):
    live_pipeline = busy_pipeline
    live_pipeline.run()
    live_pipeline.crash(point, defect="packs soon")
    live_pipeline.run()
    live_pipeline.retain()
    live_pipeline.assert_swept()
    live_pipeline.send(EVENTS)
    live_pipeline.run()
    live_pipeline.assert_exact()


@pytest.mark.parametrize("point", ["parts written", "before registering", "after registering"])
def test_a_driver_killed_while_edited_letters_are_decoded_decodes_them_once(make_pipeline, point):
    live_pipeline = make_pipeline(partitions=2)
    live_pipeline.send_raw([b"{", b"[", b"]"])
    live_pipeline.send(EVENTS[:10], partition=1)
    live_pipeline.run()
    edits = [
        Edit(
            position=DeadLetterPosition(topic=live_pipeline.topic, partition=0, offset=offset),
            value=encode(EVENTS[number]),
        )
        for offset, number in enumerate((5, 50))
    ]
    matched = match_edits(
        live_pipeline.store,
        "live",
        epochs.list_dead_letter_files(live_pipeline.catalog),
        edits,
        now=live_pipeline.catalog.now(),
    )
    add_edits(live_pipeline.catalog, matched.edits)
    live_pipeline.expected[EVENTS[50]] = note_of(EVENTS[50])
    live_pipeline.crash(point, "--once")
    live_pipeline.run()
    replayed = live_pipeline.counts(EpochKind.REPLAY)
    assert (replayed.new, replayed.duplicate, replayed.dead_letter) == (1, 1, 1)
    assert not requests.open_requests(live_pipeline.catalog)
    live_pipeline.retain()
    live_pipeline.assert_swept()
    live_pipeline.assert_exact()


def test_drivers_killed_again_and_again_come_to_the_same_end(busy_pipeline):
    live_pipeline = busy_pipeline
    for point in ("after inserting", "before registering", "after making batches", "after registering"):
        live_pipeline.crash(point, "--once")
    live_pipeline.run()
    live_pipeline.assert_exact()


@pytest.mark.parametrize(
    "point", ["keys written anew", "before changing the rule", "after changing the rule"]
)
def test_a_driver_killed_while_it_changes_the_identity_rule_has_changed_all_or_nothing(make_pipeline, point):
    live_pipeline = make_pipeline(partitions=2, epoch={"max_rows": 60})
    live_pipeline.send(EVENTS)
    live_pipeline.run()
    before = (
        live_pipeline.catalog.identity(),
        epochs.list_key_files(live_pipeline.catalog),
        segments.list_segments(live_pipeline.catalog),
    )
    live_pipeline.document["identity"] = {"window": "60d", "fields": ["product_id", "project"], "buckets": 8}
    asked = identity_of(live_pipeline.pipeline)
    arguments: dict[str, object] = {"fingerprint": asked.fingerprint, "buckets": asked.buckets}
    requests.add_request(live_pipeline.catalog, RequestKind.REKEY, arguments)
    live_pipeline.send([*EVENTS[:50], make_event(1000)], partition=1)
    live_pipeline.crash(point, "--once")
    after = (
        live_pipeline.catalog.identity(),
        epochs.list_key_files(live_pipeline.catalog),
        segments.list_segments(live_pipeline.catalog),
    )
    assert (after == before) is not point.startswith("after")
    live_pipeline.run()
    assert live_pipeline.catalog.identity() == asked
    live_pipeline.assert_exact()
