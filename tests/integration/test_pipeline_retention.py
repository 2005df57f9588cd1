"""Retention and the key index: what is past the window goes, and the index can be made anew.

Time is not waited for: what the catalog wrote down is made older instead.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from oncehouse.errors import CorruptFileError
from oncehouse.ledger.catalog import batches, retention, segments
from oncehouse.ledger.models import BatchStatus, RequestKind, Stage
from oncehouse.ledger.storage import key_index
from oncehouse.pipeline.ingest.part_files import epoch_path
from road import Road, make_event, note_of

DAY = 86400.0
EVENTS = [make_event(number) for number in range(40)]


def _write_nothing(path: str) -> None:
    Path(path).write_bytes(b"")


def index_ids(road: Road) -> set[tuple[int, int]]:
    found: set[tuple[int, int]] = set()
    for segment in segments.list_segments(road.catalog):
        keys = key_index.open_keys(road.store.local(segment.file))
        found |= set(zip(keys.hi.tolist(), keys.lo.tolist(), strict=True))
    return found


@pytest.mark.scenario("duplicates at the window's edge")
def test_an_event_is_a_duplicate_inside_the_window_and_new_after_it(make_road):
    road = make_road()
    road.send(EVENTS)
    road.run()
    road.grow_older(59 * DAY)
    road.retain()
    road.send(EVENTS[:10])
    road.run()
    assert road.counts().duplicate == 10
    road.assert_exact()

    road.grow_older(2 * DAY)
    assert road.retain().segments == 1
    road.send(EVENTS[:10])
    road.run()
    assert (road.counts().new, road.counts().duplicate) == (50, 10), "the window counts from the first sight"
    assert sorted(road.rows()) == sorted((event, note_of(event)) for event in [*EVENTS, *EVENTS[:10]])
    assert not road.findings()


def reach_the_edge(road: Road) -> None:
    """Some ids have left the window, others are within it by a day; the latter come again."""
    road.send(EVENTS[:20])
    road.run()
    road.grow_older(2 * DAY)
    road.send(EVENTS[20:])
    road.run()
    road.grow_older(59 * DAY)
    road.retain()
    road.send(EVENTS[20:])
    road.run()


@pytest.mark.long
@pytest.mark.scenario("duplicates at the window's edge")
def test_an_id_is_known_to_the_edge_of_the_window_though_older_ones_are_forgotten(make_road):
    road = make_road()
    reach_the_edge(road)
    assert road.counts().duplicate == 20
    assert len(segments.list_segments(road.catalog)) == 1, "what is past the window has gone"
    road.assert_exact()


@pytest.mark.long
@pytest.mark.defect("duplicates at the window's edge")
def test_a_window_that_ends_a_segment_too_early_is_noticed(make_road, monkeypatch):
    expire = retention.expire_segments

    def too_early(catalog, token, *, before):
        return expire(catalog, token, before=before + 2 * DAY)

    monkeypatch.setattr(retention, "expire_segments", too_early)
    road = make_road()
    reach_the_edge(road)
    with pytest.raises(AssertionError, match="20 rows are doubled"):
        road.assert_exact()


def test_all_files_of_what_is_past_the_window_go_when_it_is_loaded(make_road):
    road = make_road()
    road.send([*EVENTS, *EVENTS[:5]])
    road.run()
    old = road.ledger_files()
    road.grow_older(61 * DAY)
    road.retain()
    road.send([make_event(500)])
    road.run()
    road.retain()
    assert not old & road.ledger_files(), "segments, key files, parts, raw bytes and duplicates"
    assert road.ledger_files() == retention.registered_paths(road.catalog)
    road.assert_exact()


def test_what_is_not_loaded_outlives_the_window(make_road):
    road = make_road()
    road.client.command(f"ALTER TABLE {road.table} ADD CONSTRAINT none CHECK product_id > 1000")
    road.send(EVENTS)
    road.run()
    road.grow_older(61 * DAY)
    parts = {part.file.path for part in batches.list_parts(road.catalog)}
    road.retain()
    assert parts <= road.ledger_files()
    road.client.command(f"ALTER TABLE {road.table} DROP CONSTRAINT none")
    for batch in road.batches(statuses=[BatchStatus.PARKED]):
        batches.retry_parked(road.catalog, batch.batch_id)
    road.run()
    road.assert_exact()


def test_files_that_nothing_names_are_swept_and_those_being_written_are_not(make_road):
    road = make_road()
    road.send(EVENTS)
    road.run()
    orphan = road.store.put(epoch_path("road", 1, 1, "r9-dead.keys.arrow"), _write_nothing)
    with road.leases() as (_, tokens):
        coming = epoch_path("road", 2, tokens[Stage.INGEST] + 1, "r1-live.keys.arrow")
    being_written = road.store.put(coming, _write_nothing)
    assert road.retain().orphans == 1
    assert orphan.path not in road.ledger_files()
    assert being_written.path in road.ledger_files()
    road.assert_exact()


@pytest.mark.long
def test_a_lost_segment_stops_the_pipeline_by_name_and_a_rebuilt_index_gives_the_same_answers(make_road):
    road = make_road(epoch={"max_rows": 20})
    road.send([*EVENTS, *EVENTS[:15]])
    road.run()
    before = index_ids(road)
    assert len(before) == len(EVENTS)
    lost = segments.list_segments(road.catalog)
    for segment in lost:
        road.store.delete(segment.file.path)
    road.send(EVENTS)
    with pytest.raises(CorruptFileError) as raised:
        road.run()
    assert any(segment.file.path in str(raised.value) for segment in lost)

    result = road.request(RequestKind.REBUILD_INDEX)
    assert "40 keys" in result
    assert index_ids(road) == before
    assert road.counts().duplicate == 15 + len(EVENTS)
    road.assert_exact()


@pytest.mark.long
def test_a_rebuilt_index_of_a_busy_ledger_holds_the_same_ids(make_road):
    road = make_road(partitions=2, epoch={"max_rows": 25})
    for turn in range(2):
        road.send([*EVENTS[turn * 10 :], *EVENTS[:10]], partition=turn)
        road.run()
    before = index_ids(road)
    road.request(RequestKind.REBUILD_INDEX)
    assert index_ids(road) == before
    road.retain()
    road.send([*EVENTS, make_event(777)])
    road.run()
    assert index_ids(road) > before
    assert len(index_ids(road)) == len(before) + 1
    road.assert_exact()
