from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import func, select

from ledger_examples import (
    TABLE,
    TOPIC,
    TOPIC_ID,
    make_batch,
    make_dead_letters,
    make_part,
    make_registration,
    make_segment,
    register_epochs,
    take_lease,
)
from oncehouse.errors import ConfigurationError, DataLossError, OffsetGapError, PermanentError
from oncehouse.ledger.catalog import schema
from oncehouse.ledger.catalog.batches import (
    create_batches,
    find_batch,
    finish_attempt,
    list_parts,
    open_parts,
    retry_parked,
    start_attempt,
)
from oncehouse.ledger.catalog.epochs import (
    list_all_dead_letter_files,
    list_dead_letter_files,
    list_duplicate_files,
    list_epochs,
    list_key_files,
    list_ranges,
    next_epoch,
    read_positions,
    read_topic_ids,
    total_counts,
)
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.catalog.requests import add_request, finish_request, list_requests, open_requests
from oncehouse.ledger.catalog.segments import list_segments, replace_segments
from oncehouse.ledger.models import (
    AttemptOutcome,
    BatchStatus,
    Counts,
    DuplicateFile,
    EpochKind,
    LedgerBatch,
    OffsetRange,
    Registration,
    RequestKind,
    Stage,
)


def rows_of(catalog) -> dict[str, int]:
    """How many rows each table holds, leases and pipelines aside."""
    aside = {schema.leases.name, schema.pipelines.name, schema.ledger_version.name}
    with catalog.read() as connection:
        return {
            name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for name, table in schema.metadata.tables.items()
            if name not in aside
        }


def span(start: int, end: int, *, partition: int = 0) -> OffsetRange:
    return OffsetRange(topic=TOPIC, partition=partition, start=start, end=end)


def test_a_registered_epoch_can_be_read_back_whole(catalog):
    token = take_lease(catalog)
    duplicates = DuplicateFile(rows=2, file=replace(make_segment("d").file, path="duplicates/1"))
    asked = make_registration(
        counts=Counts(read=10, new=6, duplicate=2, dead_letter=1, skipped=1, conflicts=1),
        parts=(make_part("part-1", rows=8, live_rows=6),),
        duplicate_files=(duplicates,),
        dead_letter_files=(make_dead_letters("letters-1"),),
        segments=(make_segment("segment-1"),),
    )
    register(catalog, token, asked)
    (epoch,) = list_epochs(catalog)
    assert (epoch.epoch, epoch.kind, epoch.token, epoch.counts) == (1, EpochKind.KAFKA, token, asked.counts)
    assert list_ranges(catalog) == ((1, span(0, 10)),)
    assert read_positions(catalog) == {(TOPIC, 0): 10}
    assert read_topic_ids(catalog) == {TOPIC: TOPIC_ID}
    assert [key_file for _, _, key_file in list_key_files(catalog)] == list(asked.key_files)
    (part,) = list_parts(catalog, table=TABLE)
    assert replace(part, registered_at=0.0) == asked.parts[0]
    assert open_parts(catalog) == (part,)
    assert list_duplicate_files(catalog) == {1: (duplicates.file,)}
    (letters,) = list_dead_letter_files(catalog)
    assert replace(letters, registered_at=0.0) == asked.dead_letter_files[0]
    assert part.registered_at == letters.registered_at == epoch.registered_at
    # What an epoch sees is first seen when it is registered, on the catalog's clock.
    (segment,) = list_segments(catalog)
    assert segment.first_seen_from == segment.first_seen_to == epoch.registered_at


def test_epochs_follow_each_other_and_add_up(catalog):
    register_epochs(catalog, 3)
    assert next_epoch(catalog) == 4
    assert [row.epoch for row in list_epochs(catalog, limit=2)] == [3, 2]
    assert total_counts(catalog) == Counts(read=30, new=30)
    assert total_counts(catalog, kind=EpochKind.REPLAY) == Counts()
    assert read_positions(catalog) == {(TOPIC, 0): 30}


@pytest.mark.parametrize(("start", "end"), [(11, 20), (9, 20), (0, 10), (10, 9)])
def test_a_range_that_does_not_start_where_the_ledger_ends_is_refused(catalog, start, end):
    token = register_epochs(catalog)
    before = rows_of(catalog)
    asked = make_registration(2, counts=Counts(), ranges=(span(start, end),))
    with pytest.raises(OffsetGapError, match=f"{TOPIC} partition 0"):
        register(catalog, token, asked)
    assert rows_of(catalog) == before
    assert read_positions(catalog) == {(TOPIC, 0): 10}


@pytest.mark.parametrize("epoch", [1, 3])
def test_an_epoch_out_of_turn_is_refused(catalog, epoch):
    token = register_epochs(catalog)
    before = rows_of(catalog)
    with pytest.raises(OffsetGapError, match="the ledger ends with 1"):
        register(catalog, token, make_registration(epoch, 10, 20))
    assert rows_of(catalog) == before


def test_a_new_partition_starts_anywhere_and_an_empty_range_moves_nothing(catalog):
    token = register_epochs(catalog)
    asked = make_registration(2, 10, 15, ranges=(span(10, 10), span(500, 505, partition=1)))
    register(catalog, token, asked)
    assert read_positions(catalog) == {(TOPIC, 0): 10, (TOPIC, 1): 505}
    assert list_ranges(catalog) == ((1, span(0, 10)), (2, span(500, 505, partition=1)))


@pytest.mark.parametrize("partition", [0, 1])
def test_a_topic_made_anew_stops_the_pipeline_whichever_partition_shows_it(catalog, partition):
    token = register_epochs(catalog)
    before = rows_of(catalog)
    asked = make_registration(
        2, 10, 20, ranges=(span(10, 20, partition=partition),), topic_ids={TOPIC: "topic-2"}
    )
    with pytest.raises(DataLossError, match=r"topic-1.*topic-2"):
        register(catalog, token, asked)
    assert rows_of(catalog) == before


def test_counts_that_do_not_add_up_are_refused(catalog):
    token = take_lease(catalog)
    with pytest.raises(PermanentError, match="do not add up"):
        register(catalog, token, make_registration(counts=Counts(read=10, new=9)))
    assert list_epochs(catalog) == ()


def test_nothing_stays_of_an_epoch_that_fails_half_way(catalog):
    token = register_epochs(catalog)
    before = rows_of(catalog)
    # The part's name is taken, which shows only after epoch, ranges and key files have been written.
    asked = make_registration(
        2, 10, 20, parts=(make_part("part-1", epoch=2),), segments=(make_segment("segment-2"),)
    )
    with pytest.raises(PermanentError):
        register(catalog, token, asked)
    assert rows_of(catalog) == before
    assert read_positions(catalog) == {(TOPIC, 0): 10}


def test_segments_are_replaced_together(catalog):
    token = take_lease(catalog)
    register(catalog, token, make_registration(segments=(make_segment("a"), make_segment("b"))))
    replace_segments(catalog, token, old=["a", "b"], new=[make_segment("c")])
    assert list_segments(catalog) == (make_segment("c"),)


def test_a_merge_of_a_segment_that_has_gone_changes_nothing(catalog):
    token = take_lease(catalog)
    register(catalog, token, make_registration(segments=(make_segment("a"), make_segment("b"))))
    replace_segments(catalog, token, old=["b"], new=[])
    with pytest.raises(PermanentError, match="segment b"):
        replace_segments(catalog, token, old=["a", "b"], new=[make_segment("c")])
    assert [segment.segment for segment in list_segments(catalog)] == ["a"]


def test_a_request_is_done_in_the_transaction_that_makes_its_effect(catalog):
    token = register_epochs(catalog)
    number = add_request(catalog, RequestKind.REPLAY_DEAD_LETTERS, {"reason": "not_json"})
    assert [(request.request, request.arguments) for request in open_requests(catalog)] == [
        (number, {"reason": "not_json"})
    ]
    asked = make_registration(2, 10, 20, kind=EpochKind.REPLAY, ranges=(), request=number)
    with pytest.raises(PermanentError):
        register(catalog, token, replace(asked, counts=Counts(read=1)))
    assert len(open_requests(catalog)) == 1
    register(catalog, token, asked)
    assert open_requests(catalog) == ()
    (request,) = list_requests(catalog)
    assert request.done_at is not None
    assert request.result == "read 10, new 10, duplicate 0, dead letters 0, skipped 0"


def test_a_rebuilt_index_and_its_request_change_together(catalog):
    token = take_lease(catalog)
    register(catalog, token, make_registration(segments=(make_segment("a"),)))
    number = add_request(catalog, RequestKind.REBUILD_INDEX, {})
    with pytest.raises(PermanentError):
        replace_segments(catalog, token, old=["gone"], new=[make_segment("b")], request=(number, "10 keys"))
    assert len(open_requests(catalog)) == 1
    replace_segments(catalog, token, old=["a"], new=[make_segment("b")], request=(number, "10 keys"))
    assert list_requests(catalog)[0].result == "10 keys"


def test_a_request_is_performed_once(catalog):
    token = take_lease(catalog)
    number = add_request(catalog, RequestKind.REPLAY_DEAD_LETTERS, {})
    finish_request(catalog, token, number, "nothing to replay")
    before = rows_of(catalog)
    with pytest.raises(PermanentError, match=f"request {number}"):
        register(catalog, token, make_registration(kind=EpochKind.REPLAY, ranges=(), request=number))
    assert rows_of(catalog) == before
    assert list_requests(catalog)[0].result == "nothing to replay"


def test_dead_letters_are_tried_again_once(catalog):
    token = take_lease(catalog)
    register(
        catalog,
        token,
        make_registration(dead_letter_files=(make_dead_letters("l1"), make_dead_letters("l2"))),
    )
    again = make_registration(
        2, 0, 1, kind=EpochKind.REPLAY, ranges=(), dead_letter_files=(make_dead_letters("l3", epoch=2),)
    )
    register(catalog, token, replace(again, tried_dead_letter_files=("l1",)))
    assert [letters.dead_letter_file for letters in list_dead_letter_files(catalog)] == ["l2", "l3"]
    assert len(list_all_dead_letter_files(catalog)) == 3
    before = rows_of(catalog)
    with pytest.raises(PermanentError, match="l1"):
        register(
            catalog,
            token,
            make_registration(3, 1, 2, kind=EpochKind.REPLAY, ranges=(), tried_dead_letter_files=("l1",)),
        )
    assert rows_of(catalog) == before


def park(catalog, load: int, batch_id: str) -> None:
    settle_attempt(catalog, load, batch_id, BatchStatus.PARKED, AttemptOutcome.UNKNOWN)


def settle_attempt(catalog, load: int, batch_id: str, status: BatchStatus, outcome: AttemptOutcome) -> None:
    attempt = start_attempt(catalog, load, batch_id)
    finish_attempt(catalog, load, attempt, status=status, outcome=outcome)


def load_retried(catalog, load: int, batch_id: str) -> None:
    retry_parked(catalog, batch_id)
    settle_attempt(catalog, load, batch_id, BatchStatus.IN_CLICKHOUSE, AttemptOutcome.INSERTED)


def park_again(catalog, load: int, batch_id: str) -> None:
    """The retry's answer was lost, so its rows may be there."""
    retry_parked(catalog, batch_id)
    settle_attempt(catalog, load, batch_id, BatchStatus.PARKED, AttemptOutcome.UNKNOWN)


def begin_retry(catalog, load: int, batch_id: str) -> None:
    retry_parked(catalog, batch_id)
    start_attempt(catalog, load, batch_id)


@pytest.mark.parametrize(
    "meanwhile",
    [lambda catalog, _, batch_id: retry_parked(catalog, batch_id), begin_retry, load_retried, park_again],
    ids=["asked to be retried", "on its way", "loaded", "parked again"],
)
def test_a_parked_batch_that_was_retried_meanwhile_is_not_replaced_and_nothing_is_registered(
    catalog, meanwhile
):
    """It was retried after its rows were counted, and they may be in the table by now."""
    token = register_epochs(catalog, 1)
    load = take_lease(catalog, Stage.LOAD)
    created = make_batch(*open_parts(catalog))
    create_batches(catalog, load, [created])
    park(catalog, load, created.batch_id)
    counted = find_batch(catalog, created.batch_id)
    refill = make_refill(counted)
    meanwhile(catalog, load, created.batch_id)
    before = find_batch(catalog, created.batch_id)
    with pytest.raises(PermanentError, match="has changed"):
        register(catalog, token, refill)
    assert next_epoch(catalog) == 2
    assert find_batch(catalog, created.batch_id) == before


def test_a_parked_batch_that_has_not_changed_is_replaced(catalog):
    token = register_epochs(catalog, 1)
    load = take_lease(catalog, Stage.LOAD)
    created = make_batch(*open_parts(catalog))
    create_batches(catalog, load, [created])
    park(catalog, load, created.batch_id)
    register(catalog, token, make_refill(find_batch(catalog, created.batch_id)))
    assert find_batch(catalog, created.batch_id).status is BatchStatus.REPLACED
    with pytest.raises(ConfigurationError, match="REPLACED"):
        retry_parked(catalog, created.batch_id)


def make_refill(*replaced: LedgerBatch) -> Registration:
    return make_registration(
        2,
        kind=EpochKind.REFILL,
        counts=Counts(),
        ranges=(),
        key_files=(),
        topic_ids={},
        parts=(replace(make_part("again", epoch=2), key_file="keys-1"),),
        replaced_batches=replaced,
    )


def test_a_batch_that_waits_is_not_replaced(catalog):
    token = register_epochs(catalog, 1)
    load = take_lease(catalog, Stage.LOAD)
    created = make_batch(*open_parts(catalog))
    create_batches(catalog, load, [created])
    with pytest.raises(PermanentError, match="has changed"):
        register(catalog, token, make_refill(find_batch(catalog, created.batch_id)))
    assert next_epoch(catalog) == 2


def test_a_part_may_not_name_a_key_file_that_has_gone(catalog):
    token = register_epochs(catalog, 1)
    gone = replace(make_part("again", epoch=2), key_file="keys-of-old")
    refill = make_registration(
        2, kind=EpochKind.REFILL, counts=Counts(), ranges=(), key_files=(), topic_ids={}, parts=(gone,)
    )
    with pytest.raises(PermanentError, match="keys-of-old has left the window"):
        register(catalog, token, refill)
    assert next_epoch(catalog) == 2
