"""Retention and the key index: what is past the window goes, and the index can be made anew.

Time is not waited for: what the catalog wrote down is made older instead.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from live_pipeline import LivePipeline, make_event, note_of
from oncehouse.errors import CorruptFileError
from oncehouse.ledger.catalog import batches, retention, segments
from oncehouse.ledger.models import BatchStatus, RequestKind, Stage
from oncehouse.ledger.storage import key_index
from oncehouse.pipeline.ingest.part_files import epoch_path

DAY = 86400.0
EVENTS = [make_event(number) for number in range(40)]


def _write_nothing(path: str) -> None:
    Path(path).write_bytes(b"")


def index_ids(live_pipeline: LivePipeline) -> set[tuple[int, int]]:
    found: set[tuple[int, int]] = set()
    for segment in segments.list_segments(live_pipeline.catalog):
        keys = key_index.open_keys(live_pipeline.store.local(segment.file))
        found |= set(zip(keys.hi.tolist(), keys.lo.tolist(), strict=True))
    return found


@pytest.mark.scenario("duplicates at the window's edge")
def test_an_event_is_a_duplicate_inside_the_window_and_new_after_it(make_pipeline):
    live_pipeline = make_pipeline()
    live_pipeline.send(EVENTS)
    live_pipeline.run()
    live_pipeline.grow_older(59 * DAY)
    live_pipeline.retain()
    live_pipeline.send(EVENTS[:10])
    live_pipeline.run()
    assert live_pipeline.counts().duplicate == 10
    live_pipeline.assert_exact()

    live_pipeline.grow_older(2 * DAY)
    assert live_pipeline.retain().segments == 1
    live_pipeline.send(EVENTS[:10])
    live_pipeline.run()
    assert (live_pipeline.counts().new, live_pipeline.counts().duplicate) == (50, 10), (
        "the window counts from the first sight"
    )
    assert sorted(live_pipeline.rows()) == sorted(
        (event, note_of(event)) for event in [*EVENTS, *EVENTS[:10]]
    )
    assert not live_pipeline.findings()


def reach_the_edge(live_pipeline: LivePipeline) -> None:
    """Some ids have left the window, others are within it by a day; the latter come again."""
    live_pipeline.send(EVENTS[:20])
    live_pipeline.run()
    live_pipeline.grow_older(2 * DAY)
    live_pipeline.send(EVENTS[20:])
    live_pipeline.run()
    live_pipeline.grow_older(59 * DAY)
    live_pipeline.retain()
    live_pipeline.send(EVENTS[20:])
    live_pipeline.run()


@pytest.mark.long
@pytest.mark.scenario("duplicates at the window's edge")
def test_an_id_is_known_to_the_edge_of_the_window_though_older_ones_are_forgotten(make_pipeline):
    live_pipeline = make_pipeline()
    reach_the_edge(live_pipeline)
    assert live_pipeline.counts().duplicate == 20
    assert len(segments.list_segments(live_pipeline.catalog)) == 1, "what is past the window has gone"
    live_pipeline.assert_exact()


@pytest.mark.long
@pytest.mark.defect("duplicates at the window's edge")
def test_a_window_that_ends_a_segment_too_early_is_noticed(make_pipeline, monkeypatch):
    expire = retention.expire_segments

    def too_early(catalog, token, *, before):
        return expire(catalog, token, before=before + 2 * DAY)

    monkeypatch.setattr(retention, "expire_segments", too_early)
    live_pipeline = make_pipeline()
    reach_the_edge(live_pipeline)
    with pytest.raises(AssertionError, match="20 rows are doubled"):
        live_pipeline.assert_exact()


def test_all_files_of_what_is_past_the_window_go_when_it_is_loaded(make_pipeline):
    live_pipeline = make_pipeline()
    live_pipeline.send([*EVENTS, *EVENTS[:5]])
    live_pipeline.run()
    old = live_pipeline.ledger_files()
    live_pipeline.grow_older(61 * DAY)
    live_pipeline.retain()
    live_pipeline.send([make_event(500)])
    live_pipeline.run()
    live_pipeline.retain()
    assert not old & live_pipeline.ledger_files(), "segments, key files, parts, raw bytes and duplicates"
    assert live_pipeline.ledger_files() == retention.registered_paths(live_pipeline.catalog)
    live_pipeline.assert_exact()


def test_what_is_not_loaded_outlives_the_window(make_pipeline):
    live_pipeline = make_pipeline()
    live_pipeline.client.command(
        f"ALTER TABLE {live_pipeline.table} ADD CONSTRAINT none CHECK product_id > 1000"
    )
    live_pipeline.send(EVENTS)
    live_pipeline.run()
    live_pipeline.grow_older(61 * DAY)
    parts = {part.file.path for part in batches.list_parts(live_pipeline.catalog)}
    live_pipeline.retain()
    assert parts <= live_pipeline.ledger_files()
    live_pipeline.client.command(f"ALTER TABLE {live_pipeline.table} DROP CONSTRAINT none")
    for batch in live_pipeline.batches(statuses=[BatchStatus.PARKED]):
        batches.retry_parked(live_pipeline.catalog, batch.batch_id)
    live_pipeline.run()
    live_pipeline.assert_exact()


def test_files_that_nothing_names_are_swept_and_those_being_written_are_not(make_pipeline):
    live_pipeline = make_pipeline()
    live_pipeline.send(EVENTS)
    live_pipeline.run()
    orphan = live_pipeline.store.put(epoch_path("live", 1, 1, "r9-dead.keys.arrow"), _write_nothing)
    with live_pipeline.leases() as (_, tokens):
        coming = epoch_path("live", 2, tokens[Stage.INGEST] + 1, "r1-live.keys.arrow")
    being_written = live_pipeline.store.put(coming, _write_nothing)
    assert live_pipeline.retain().orphans == 1
    assert orphan.path not in live_pipeline.ledger_files()
    assert being_written.path in live_pipeline.ledger_files()
    live_pipeline.assert_exact()


@pytest.mark.long
def test_a_lost_segment_stops_the_pipeline_by_name_and_a_rebuilt_index_gives_the_same_answers(make_pipeline):
    live_pipeline = make_pipeline(epoch={"max_rows": 20})
    live_pipeline.send([*EVENTS, *EVENTS[:15]])
    live_pipeline.run()
    before = index_ids(live_pipeline)
    assert len(before) == len(EVENTS)
    lost = segments.list_segments(live_pipeline.catalog)
    for segment in lost:
        live_pipeline.store.delete(segment.file.path)
    live_pipeline.send(EVENTS)
    with pytest.raises(CorruptFileError) as raised:
        live_pipeline.run()
    assert any(segment.file.path in str(raised.value) for segment in lost)

    result = live_pipeline.request(RequestKind.REBUILD_INDEX)
    assert "40 keys" in result
    assert index_ids(live_pipeline) == before
    assert live_pipeline.counts().duplicate == 15 + len(EVENTS)
    live_pipeline.assert_exact()


@pytest.mark.long
def test_a_rebuilt_index_of_a_busy_ledger_holds_the_same_ids(make_pipeline):
    live_pipeline = make_pipeline(partitions=2, epoch={"max_rows": 25})
    for turn in range(2):
        live_pipeline.send([*EVENTS[turn * 10 :], *EVENTS[:10]], partition=turn)
        live_pipeline.run()
    before = index_ids(live_pipeline)
    live_pipeline.request(RequestKind.REBUILD_INDEX)
    assert index_ids(live_pipeline) == before
    live_pipeline.retain()
    live_pipeline.send([*EVENTS, make_event(777)])
    live_pipeline.run()
    assert index_ids(live_pipeline) > before
    assert len(index_ids(live_pipeline)) == len(before) + 1
    live_pipeline.assert_exact()
