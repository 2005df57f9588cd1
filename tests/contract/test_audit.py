from __future__ import annotations

from ledger_examples import (
    TABLE,
    TOPIC,
    make_batch,
    make_dead_letters,
    make_registration,
    make_segment,
    register_epochs,
    take_lease,
)
from oncehouse.ledger.catalog.batches import create_batches, finish_attempt, open_parts, start_attempt
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.models import AttemptOutcome, BatchStatus, Counts, DuplicateFile, Stage
from oncehouse.ledger.stats.ledger_state import find_known_batches, read_state
from oncehouse.monitoring.overview import read_overview


def fill(catalog) -> str:
    token = take_lease(catalog)
    register(
        catalog,
        token,
        make_registration(
            counts=Counts(read=12, new=10, duplicate=1, dead_letter=1),
            dead_letter_files=(make_dead_letters("letters"),),
            duplicate_files=(DuplicateFile(rows=1, file=make_segment("duplicates").file),),
            segments=(make_segment("segment"),),
        ),
    )
    register(catalog, token, make_registration(2, 10, 20))
    load = take_lease(catalog, Stage.LOAD)
    batch = make_batch(open_parts(catalog)[0])
    create_batches(catalog, load, [batch])
    attempt = start_attempt(catalog, load, batch.batch_id)
    finish_attempt(catalog, load, attempt, status=BatchStatus.IN_CLICKHOUSE, outcome=AttemptOutcome.INSERTED)
    return batch.batch_id


def test_the_whole_ledger_is_read_at_once(catalog):
    batch_id = fill(catalog)
    state = read_state(catalog)
    assert [row.epoch for row in state.epochs] == [1, 2]
    assert [epoch for epoch, _ in state.ranges] == [1, 2]
    assert state.positions == {(TOPIC, 0): 20}
    assert [found.key_file.key_file for found in state.key_files] == ["keys-1", "keys-2"]
    assert [part.batch_id for part in state.parts] == [batch_id, None]
    assert {epoch: [file.rows for file in files] for epoch, files in state.duplicates.items()} == {1: [1]}
    assert [letters.dead_letter_file for letters in state.dead_letter_files] == ["letters"]
    assert [segment.segment for segment in state.segments] == ["segment"]
    assert [batch.batch_id for batch in state.batches] == [batch_id]


def test_the_overview_is_the_same_on_every_database(catalog):
    fill(catalog)
    overview = read_overview(catalog, end_offsets={(TOPIC, 0): 21})
    (totals,) = overview.epochs
    assert totals.counts == Counts(read=22, new=20, duplicate=1, dead_letter=1)
    assert (overview.lag, overview.rows_in_clickhouse) == (1, {TABLE: 10})
    assert [(found.table, found.parts, found.rows) for found in overview.open_parts] == [(TABLE, 1, 10)]
    assert (overview.key_index.segments, overview.key_index.keys) == (1, 10)
    assert 0 <= overview.oldest_waiting_seconds <= overview.now


def test_batches_of_every_pipeline_are_known(catalog, catalog_url):
    mine = fill(catalog)
    other = Catalog(catalog_url, "other", retry_seconds=())
    register_epochs(other)
    theirs = make_batch(*open_parts(other))
    create_batches(other, take_lease(other, Stage.LOAD), [theirs])
    other.close()
    unknown = [f"unknown-{number}" for number in range(1200)]
    assert find_known_batches(catalog, [mine, theirs.batch_id, *unknown]) == {mine, theirs.batch_id}
