"""kill -9 of the driver at every step of the road: after the next start everything is there once.

The process dies in a Python of its own; the restart runs here, on the shared Spark session.
"""

from __future__ import annotations

import signal

import pytest

from oncehouse.ledger import epochs, expiry, leases, requests, segments
from oncehouse.ledger.edits import add_edits
from oncehouse.ledger.records import BatchStatus, EpochKind, RequestKind, Stage
from oncehouse.pipeline import deciding
from oncehouse.pipeline.adopting import identity_of
from oncehouse.pipeline.edits import match_edits
from oncehouse.pipeline.letter_lines import Edit, LetterPosition
from road import Road, encode, make_event, note_of, wait_until

EVENTS = [make_event(number) for number in range(150)]
short = pytest.mark.short
loads = pytest.mark.scenario("driver killed while it loads")


@pytest.fixture
def busy_road(make_road) -> Road:
    """Something is settled already, and more is waiting, duplicates of both among it."""
    road = make_road(partitions=2, epoch={"max_rows": 60})
    road.send(EVENTS[:40])
    road.run()
    road.send([*EVENTS[20:100], *EVENTS[60:80]])
    road.send([*EVENTS[80:], *EVENTS[:10]], partition=1)
    return road


def ledger_files(road: Road) -> set[str]:
    return {path for path in road.store.walk("road/") if path.endswith((".arrow", ".parquet"))}


@pytest.mark.parametrize(
    "point",
    [
        "parts written",
        "parts written:2",
        pytest.param("before registering", marks=short),
        "before registering:3",
        "after registering",
        "after registering:3",
        pytest.param("before making batches", marks=loads),
        pytest.param("after making batches", marks=loads),
        pytest.param("before inserting", marks=loads),
        pytest.param("before inserting:2", marks=loads),
        pytest.param("after inserting", marks=loads),
        pytest.param("after inserting:2", marks=loads),
    ],
)
def test_a_driver_killed_at_any_step_loses_and_doubles_nothing(busy_road, point):
    road = busy_road
    road.crash(point, "--once")
    road.run()
    road.assert_exact()
    assert not road.batches(statuses=[BatchStatus.IN_PROCESS, BatchStatus.RETRY, BatchStatus.PARKED])
    # What the dead process wrote and did not register is swept, and nothing else.
    road.retain()
    assert ledger_files(road) == expiry.registered_paths(road.catalog)
    road.send(EVENTS)
    road.run()
    road.assert_exact()


def test_a_driver_killed_while_segments_are_replaced_loses_and_doubles_nothing(make_road, monkeypatch):
    road = make_road(epoch={"max_rows": 15})
    road.send(EVENTS)
    with monkeypatch.context() as idle:
        idle.setattr(deciding, "compact", lambda *_: 0)  # so that there is something left to merge
        road.run()
    road.crash("before replacing segments")
    road.send([*EVENTS[:50], make_event(999)])
    road.run()
    road.compact()
    assert any(segment.segment.startswith("merged-") for segment in segments.list_segments(road.catalog))
    road.retain()
    assert ledger_files(road) == expiry.registered_paths(road.catalog)
    road.send(EVENTS)
    road.run()
    road.assert_exact()


@pytest.mark.parametrize("point", ["parts written", "before registering", "after registering"])
def test_a_driver_killed_while_edited_letters_are_decoded_decodes_them_once(make_road, point):
    road = make_road(partitions=2)
    road.send_raw([b"{", b"[", b"]"])
    road.send(EVENTS[:10], partition=1)
    road.run()
    edits = [
        Edit(
            position=LetterPosition(topic=road.topic, partition=0, offset=offset),
            value=encode(EVENTS[number]),
        )
        for offset, number in enumerate((5, 50))
    ]
    matched = match_edits(
        road.store, "road", epochs.list_dead_letter_files(road.catalog), edits, now=road.catalog.now()
    )
    add_edits(road.catalog, matched.edits)
    road.expected[EVENTS[50]] = note_of(EVENTS[50])
    road.crash(point, "--once")
    road.run()
    replayed = road.counts(EpochKind.REPLAY)
    assert (replayed.new, replayed.duplicate, replayed.dead_letter) == (1, 1, 1)
    assert not requests.open_requests(road.catalog)
    road.retain()
    assert ledger_files(road) == expiry.registered_paths(road.catalog)
    road.assert_exact()


def test_a_driver_killed_before_files_are_deleted_leaves_what_the_sweep_finds(busy_road):
    road = busy_road
    road.run()
    road.crash("before deleting files")
    road.run()
    road.retain()
    assert ledger_files(road) == expiry.registered_paths(road.catalog)
    road.assert_exact()


def test_drivers_killed_again_and_again_come_to_the_same_end(busy_road):
    road = busy_road
    for point in ("after inserting", "before registering", "after making batches", "after registering"):
        road.crash(point, "--once")
    road.run()
    road.assert_exact()


def test_a_frozen_driver_is_fenced_when_it_wakes_up(make_road):
    road = make_road(epoch={"max_rows": 30}, lease=2.0)
    road.send(EVENTS[:60])
    frozen = road.spawn()
    try:
        wait_until(lambda: road.rows() or frozen.poll() is not None, "the first driver at work")
        frozen.send_signal(signal.SIGSTOP)
        road.send(EVENTS[30:])
        # The lease of a process that is alive, if not well, has to run out first.
        wait_until(
            lambda: all(lease.expires_at < road.catalog.now() for lease in leases.list_leases(road.catalog)),
            "the leases to run out",
        )
        road.run()
        road.assert_exact()
        before = (epochs.list_epochs(road.catalog), road.batches())
        frozen.send_signal(signal.SIGCONT)
        code = frozen.wait(timeout=120)
    finally:
        frozen.kill()
        frozen.wait()
    assert code == 4, (road.folder / "process.log").read_text()[-2000:]
    assert (epochs.list_epochs(road.catalog), road.batches()) == before
    road.assert_exact()


def test_of_two_drivers_one_works_and_one_leaves_with_a_message(make_road):
    road = make_road()
    road.send(EVENTS[:60])
    first = road.spawn()
    try:
        wait_until(lambda: road.rows() or first.poll() is not None, "the first driver at work")
        second = road.spawn("--no-wait")
        assert second.wait(timeout=120) == 4
        road.send(EVENTS[60:])
        wait_until(lambda: len(road.rows()) >= len(EVENTS), "the first driver to go on")
        first.send_signal(signal.SIGTERM)
        assert first.wait(timeout=90) == 0
    finally:
        first.kill()
        first.wait()
    assert Stage.INGEST in (road.folder / "process.log").read_text()
    road.assert_exact()


def test_a_python_worker_killed_in_the_middle_is_replaced(make_road, kill_workers):
    road = make_road(epoch={"max_rows": 30})
    road.send(EVENTS)
    with road.start() as running:
        running.wait_for_rows(1)
        assert kill_workers(), "there must be workers to kill"
        running.wait_for_rows(len(EVENTS))
    road.assert_exact()


def test_a_broker_killed_and_started_again_loses_nothing(make_road, stack):
    road = make_road(epoch={"max_rows": 60})
    road.send(EVENTS[:60])
    with road.start() as running:
        running.wait_for_rows(60)
        stack.kill("kafka")
        stack.start("kafka")
        road.send(EVENTS[30:])
        running.wait_for_rows(len(EVENTS))
    road.assert_exact()


@pytest.mark.parametrize(
    "point", ["keys written anew", "before changing the rule", "after changing the rule"]
)
def test_a_driver_killed_while_it_changes_the_identity_rule_has_changed_all_or_nothing(make_road, point):
    road = make_road(partitions=2, epoch={"max_rows": 60})
    road.send(EVENTS)
    road.run()
    before = (
        road.catalog.identity(),
        epochs.list_key_files(road.catalog),
        segments.list_segments(road.catalog),
    )
    road.document["identity"] = {"window": "60d", "fields": ["product_id", "project"], "buckets": 8}
    asked = identity_of(road.pipeline)
    arguments: dict[str, object] = {"fingerprint": asked.fingerprint, "buckets": asked.buckets}
    requests.add_request(road.catalog, RequestKind.REKEY, arguments)
    road.send([*EVENTS[:50], make_event(1000)], partition=1)
    road.crash(point, "--once")
    after = (
        road.catalog.identity(),
        epochs.list_key_files(road.catalog),
        segments.list_segments(road.catalog),
    )
    assert (after == before) is not point.startswith("after")
    road.run()
    assert road.catalog.identity() == asked
    road.assert_exact()
