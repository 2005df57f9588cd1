from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from ledger_examples import (
    TABLE,
    TOPIC,
    make_batch,
    make_dead_letters,
    make_file,
    make_part,
    make_registration,
    make_segment,
    take_lease,
)
from oncehouse.errors import FencedError, PermanentError
from oncehouse.ledger.catalog import packs, retention, rollup
from oncehouse.ledger.catalog.batches import (
    create_batches,
    finish_attempt,
    list_parts,
    open_parts,
    start_attempt,
)
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.epochs import (
    list_all_dead_letter_files,
    list_epochs,
    list_key_files,
    list_ranges,
    next_epoch,
    total_counts,
)
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.catalog.segments import list_segments, replace_segments
from oncehouse.ledger.models import (
    AttemptOutcome,
    BatchStatus,
    Counts,
    DuplicateFile,
    EpochKind,
    OffsetRange,
    Stage,
)
from oncehouse.ledger.stats.ledger_state import list_duplicates, read_state
from oncehouse.ledger.stats.summary import sum_epochs
from oncehouse.monitoring.overview import read_overview


@pytest.fixture
def tokens(catalog) -> dict[Stage, int]:
    """Three epochs of ten events, one of them a duplicate, each with a segment."""
    held = {stage: take_lease(catalog, stage) for stage in Stage}
    for epoch in (1, 2, 3):
        register(catalog, held[Stage.INGEST], make_epoch(epoch))
    return held


def make_epoch(epoch: int):
    return make_registration(
        epoch,
        (epoch - 1) * 10,
        epoch * 10,
        counts=Counts(read=10, new=9, duplicate=1),
        ranges=(
            OffsetRange(
                topic=TOPIC, partition=0, start=(epoch - 1) * 10, end=epoch * 10, leader_epoch=epoch + 4
            ),
        ),
        parts=(make_part(f"part-{epoch}", epoch=epoch, live_rows=9),),
        duplicate_files=(DuplicateFile(rows=1, file=make_file(f"duplicates/{epoch}")),),
        segments=(make_segment(f"segment-{epoch}"),),
    )


def load(catalog, tokens, *, epochs: set[int]) -> list[str]:
    token = tokens[Stage.LOAD]
    made = [make_batch(part) for part in open_parts(catalog) if part.epoch in epochs]
    create_batches(catalog, token, made)
    for batch in made:
        attempt = start_attempt(catalog, token, batch.batch_id)
        finish_attempt(
            catalog, token, attempt, status=BatchStatus.IN_CLICKHOUSE, outcome=AttemptOutcome.INSERTED
        )
    return [batch.batch_id for batch in made]


def soon(catalog) -> float:
    """A moment after everything that was registered so far."""
    return catalog.now() + 1


def files_of(epoch: int) -> set[str]:
    return {f"{kind}/{epoch}" for kind in ("keys", "raw", "duplicates")} | {f"parts/part-{epoch}"}


def test_only_segments_past_the_window_leave_the_index(catalog, tokens):
    aged = [
        replace(make_segment("gone"), first_seen_from=10.0, first_seen_to=19.0),
        replace(make_segment("reaches in"), first_seen_from=10.0, first_seen_to=20.0),
    ]
    replace_segments(catalog, tokens[Stage.INGEST], old=["segment-1", "segment-2", "segment-3"], new=aged)
    assert retention.expire_segments(catalog, tokens[Stage.RETENTION], before=20.0) == 1
    assert [segment.segment for segment in list_segments(catalog)] == ["reaches in"]


def test_the_file_of_a_segment_outlives_the_epochs_that_may_read_it(catalog, tokens):
    ingest, token = tokens[Stage.INGEST], tokens[Stage.RETENTION]
    replace_segments(catalog, ingest, old=["segment-1"], new=[make_segment("merged")])
    assert retention.drop_replaced_segments(catalog, token) == ()
    register(catalog, ingest, replace(make_epoch(4), started_at=soon(catalog)))
    assert retention.drop_replaced_segments(catalog, token) == ("segments/segment-1",)
    assert "segments/segment-1" not in retention.registered_paths(catalog)


def test_what_is_not_loaded_is_never_dropped(catalog, tokens):
    load(catalog, tokens, epochs={1})
    dropped = retention.drop_key_files(catalog, tokens[Stage.RETENTION], before=soon(catalog))
    assert set(dropped) == files_of(1)
    assert [key_file.key_file for _, _, key_file in list_key_files(catalog)] == ["keys-2", "keys-3"]
    assert [part.part for part in list_parts(catalog)] == ["part-2", "part-3"]
    assert set(list_duplicates(catalog)) == {2, 3}


def test_what_is_inside_the_window_is_never_dropped(catalog, tokens):
    load(catalog, tokens, epochs={1, 2, 3})
    assert retention.drop_key_files(catalog, tokens[Stage.RETENTION], before=1.0) == ()
    assert len(list_key_files(catalog)) == 3


def test_letters_that_nobody_tried_again_stay_for_ever(catalog, tokens):
    ingest, token = tokens[Stage.INGEST], tokens[Stage.RETENTION]
    letters = (make_dead_letters("tried", epoch=4), make_dead_letters("open", epoch=4))
    register(catalog, ingest, replace(make_epoch(4), dead_letter_files=letters))
    again = make_registration(5, 0, 1, kind=EpochKind.REPLAY, ranges=(), tried_dead_letter_files=("tried",))
    register(catalog, ingest, again)
    assert retention.drop_tried_dead_letters(catalog, token, before=soon(catalog)) == ("letters/tried",)
    assert [found.dead_letter_file for found in list_all_dead_letter_files(catalog)] == ["open"]


def test_epochs_are_added_up_when_their_files_have_gone(catalog, tokens):
    token = tokens[Stage.RETENTION]
    load(catalog, tokens, epochs={1, 2})
    before, totals = soon(catalog), total_counts(catalog)
    assert rollup.roll_up_epochs(catalog, token, before=before) == 0
    retention.drop_key_files(catalog, token, before=before)
    assert rollup.roll_up_epochs(catalog, token, before=before) == 2
    assert [row.epoch for row in list_epochs(catalog)] == [3]
    assert total_counts(catalog) == totals
    assert [(found.epochs, found.counts) for found in sum_epochs(catalog)] == [(3, totals)]
    assert list_ranges(catalog) == (
        (rollup.ROLLED_UP, OffsetRange(topic=TOPIC, partition=0, start=0, end=20)),
        (3, OffsetRange(topic=TOPIC, partition=0, start=20, end=30)),
    )
    # Joined ranges have the leader epoch of their end.
    assert [span.leader_epoch for _, span in list_ranges(catalog)] == [6, 7]


def test_the_last_epoch_stays_so_that_numbers_go_on(catalog, tokens):
    token = tokens[Stage.RETENTION]
    load(catalog, tokens, epochs={1, 2, 3})
    retention.drop_key_files(catalog, token, before=soon(catalog))
    rollup.roll_up_epochs(catalog, token, before=soon(catalog))
    assert next_epoch(catalog) == 4
    register(catalog, tokens[Stage.INGEST], make_epoch(4))
    # A second round adds to the same hour and joins the ranges again.
    rollup.roll_up_epochs(catalog, token, before=soon(catalog))
    assert total_counts(catalog) == Counts(read=40, new=36, duplicate=4)
    ends = [(span.start, span.end) for _, span in list_ranges(catalog)]
    assert ends[0][0] == 0
    assert ends[-1][1] == 40
    assert all(before[1] == after[0] for before, after in pairwise(ends))


def test_batches_are_added_up_when_their_parts_have_gone(catalog, tokens):
    token = tokens[Stage.RETENTION]
    load(catalog, tokens, epochs={1, 2})
    assert rollup.roll_up_batches(catalog, token, before=soon(catalog)) == 0
    retention.drop_key_files(catalog, token, before=soon(catalog))
    assert rollup.roll_up_batches(catalog, token, before=1.0) == 0
    assert rollup.roll_up_batches(catalog, token, before=soon(catalog)) == 2
    assert rollup.rolled_up_rows(catalog) == {TABLE: 18}
    assert read_state(catalog).batches == ()
    assert read_overview(catalog).rows_in_clickhouse == {TABLE: 18}
    load(catalog, tokens, epochs={3})
    assert read_overview(catalog).rows_in_clickhouse == {TABLE: 27}
    retention.drop_key_files(catalog, token, before=soon(catalog))
    rollup.roll_up_batches(catalog, token, before=soon(catalog))
    assert rollup.rolled_up_rows(catalog) == {TABLE: 27}


def test_rows_past_the_window_are_added_up_over_pipelines_that_share_a_table(catalog, catalog_url, tokens):
    load(catalog, tokens, epochs={1})
    other = Catalog(catalog_url, "other", retry_seconds=())
    theirs = {stage: take_lease(other, stage) for stage in Stage}
    register(other, theirs[Stage.INGEST], make_epoch(1))
    load(other, theirs, epochs={1})
    for view, held in ((catalog, tokens), (other, theirs)):
        retention.drop_key_files(view, held[Stage.RETENTION], before=soon(view))
        rollup.roll_up_batches(view, held[Stage.RETENTION], before=soon(view))
    assert rollup.rolled_up_rows(catalog) == rollup.rolled_up_rows(other) == {TABLE: 9}
    assert rollup.rolled_up_rows_of_all(catalog) == {TABLE: 18}
    other.close()


def test_a_kind_of_which_all_epochs_are_past_the_window_is_still_counted(catalog):
    ingest, token = take_lease(catalog), take_lease(catalog, Stage.RETENTION)
    replay = make_registration(1, 0, 1, kind=EpochKind.REPLAY, ranges=(), key_files=(), parts=())
    register(catalog, ingest, replay)
    register(catalog, ingest, make_epoch(2))
    rollup.roll_up_epochs(catalog, token, before=soon(catalog))
    totals = {found.kind: (found.epochs, found.last_epoch) for found in sum_epochs(catalog)}
    assert totals == {EpochKind.KAFKA: (1, 2), EpochKind.REPLAY: (1, None)}


def test_packed_files_have_new_places_and_the_old_ones_become_garbage(catalog, tokens):
    load(catalog, tokens, epochs={1, 2})
    pack = make_file("shop/packs/1-a")
    bundles = packs.list_bundles(catalog)
    moves = [
        packs.Move(old=bundle.key_files[0].raw, new=replace(pack, row=at * 10))
        for at, bundle in enumerate(bundles)
    ]
    packs.move_files(catalog, tokens[Stage.RETENTION], moves)
    raw = [key_file.raw for _, _, key_file in list_key_files(catalog)]
    assert [(file.path, file.row, file.rows) for file in raw[:2]] == [(pack.path, 0, 10), (pack.path, 10, 10)]
    assert packs.kept_garbage(catalog) == {"raw/1", "raw/2"}
    assert packs.old_garbage(catalog, before=1.0) == ()
    assert packs.old_garbage(catalog, before=soon(catalog)) == ("raw/1", "raw/2")
    packs.forget_garbage(catalog, tokens[Stage.RETENTION], ["raw/1"])
    assert packs.kept_garbage(catalog) == {"raw/2"}
    # What is packed once is not packed again.
    assert packs.list_bundles(catalog) == ()


def test_a_pack_of_files_that_have_gone_changes_nothing(catalog, tokens):
    load(catalog, tokens, epochs={1})
    (bundle,) = packs.list_bundles(catalog)
    moves = [
        packs.Move(old=bundle.key_files[0].raw, new=make_file("shop/packs/1-a")),
        packs.Move(old=make_file("raw/gone"), new=make_file("shop/packs/1-b")),
    ]
    with pytest.raises(PermanentError, match="raw/gone"):
        packs.move_files(catalog, tokens[Stage.RETENTION], moves)
    assert packs.kept_garbage(catalog) == set()
    assert list_key_files(catalog)[0][2].raw.path == "raw/1"


def test_retention_that_lost_its_lease_drops_nothing(catalog, tokens):
    load(catalog, tokens, epochs={1, 2, 3})
    take_lease(catalog, Stage.RETENTION)
    with pytest.raises(FencedError):
        retention.drop_key_files(catalog, tokens[Stage.RETENTION], before=soon(catalog))
    assert len(list_key_files(catalog)) == 3
