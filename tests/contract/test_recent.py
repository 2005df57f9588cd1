"""Pages and recent history of a ledger, newest first, on both catalogs."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from ledger_examples import make_batch, make_registration, register_epochs, take_lease
from oncehouse.errors import ConfigurationError
from oncehouse.ledger.catalog import schema
from oncehouse.ledger.catalog.batches import create_batches, finish_attempt, open_parts, start_attempt
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.models import AttemptOutcome, BatchStatus, EpochKind, Stage
from oncehouse.ledger.stats.recent import list_recent_epochs, list_recent_loads
from oncehouse.monitoring.batches import list_batch_page
from oncehouse.monitoring.pipelines import (
    list_epoch_page,
    measure_pace,
    read_epoch,
    read_index_ages,
)


@pytest.fixture
def batches(catalog) -> list[str]:
    """Ids of seven batches in the order in which they were made; the first two share a number, as adopted ones do."""
    register_epochs(catalog, 7)
    token = take_lease(catalog, Stage.LOAD)
    made = [make_batch(part) for part in open_parts(catalog)]
    create_batches(catalog, token, made)
    ids = [batch.batch_id for batch in made]
    first = sorted(ids[:2])
    catalog.change(
        lambda connection: connection.execute(
            update(schema.batches).where(schema.batches.c.batch_id.in_(first)).values(sequence=0)
        )
    )
    for batch_id in ids[-2:]:
        attempt = start_attempt(catalog, token, batch_id)
        finish_attempt(
            catalog, token, attempt, status=BatchStatus.IN_CLICKHOUSE, outcome=AttemptOutcome.INSERTED
        )
    return [*first, *ids[2:]]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 50])
def test_pages_of_batches_join_without_gaps(catalog, batches, limit):
    found, after = [], None
    while True:
        page = list_batch_page(catalog, after=after, limit=limit)
        assert len(page.batches) <= limit
        found += [view.batch.batch_id for view in page.batches]
        if (after := page.older) is None:
            break
    assert found == batches[::-1]


def test_batches_are_chosen_by_status_and_table(catalog, batches):
    loaded = list_batch_page(catalog, status=BatchStatus.IN_CLICKHOUSE)
    assert [view.batch.batch_id for view in loaded.batches] == batches[:-3:-1]
    assert list_batch_page(catalog, table="elsewhere").batches == ()


def test_a_page_behind_a_batch_that_is_gone_is_refused(catalog, batches):
    with pytest.raises(ConfigurationError, match="no batch gone"):
        list_batch_page(catalog, after="gone")


def test_pages_of_epochs_join_without_gaps(catalog):
    register_epochs(catalog, 5)
    first = list_epoch_page(catalog, limit=3)
    assert [row.epoch for row in first.epochs] == [5, 4, 3]
    last = list_epoch_page(catalog, before=first.older, limit=3)
    assert ([row.epoch for row in last.epochs], last.older) == ([2, 1], None)


def test_an_epoch_is_told_with_what_it_settled_and_wrote(catalog, batches):
    (newest,) = list_epoch_page(catalog, limit=1).epochs
    found = read_epoch(catalog, newest.epoch)
    assert found.epoch == newest
    assert {part.epoch for part in found.parts} == {newest.epoch}
    assert [part.batch_id for part in found.parts] == batches[-1:]
    assert sum(span.end - span.start for span in found.ranges) > 0
    assert all(span not in found.ranges for span in read_epoch(catalog, newest.epoch - 1).ranges)
    with pytest.raises(ConfigurationError, match=r"has no epoch 8 \(any more\)"):
        read_epoch(catalog, newest.epoch + 1)


def test_what_was_settled_and_loaded_lately_is_listed_with_how_long_it_took(catalog, batches):
    now = catalog.now()
    assert [row.read for row in list_recent_epochs(catalog, since=now - 60)] == [10] * 7
    assert list_recent_epochs(catalog, since=now + 60) == ()
    loads = list_recent_loads(catalog, since=now - 60)
    assert [load.rows for load in loads] == [10, 10]
    assert all(load.seconds is not None and 0 <= load.seconds < 60 for load in loads)


def test_the_pace_counts_what_came_from_outside_and_nothing_twice(catalog):
    token = register_epochs(catalog, 2)
    again = make_registration(3, 0, 4, kind=EpochKind.REPLAY, ranges=(), topic_ids={})
    register(catalog, token, again)
    now = catalog.now()
    pace = measure_pace(list_recent_epochs(catalog, since=0), (), now + 30)
    assert (pace.read_per_second, pace.loaded_per_second) == (20 / 60, 0)
    assert (pace.read_curve[-1], sum(pace.read_curve), len(pace.read_curve)) == (20, 20, 60)
    later = measure_pace(list_recent_epochs(catalog, since=0), (), now + 90)
    assert (later.read_per_second, later.read_curve[-2], sum(later.read_curve)) == (0, 20, 20)
    assert sum(measure_pace(list_recent_epochs(catalog, since=0), (), now + 7200).read_curve) == 0


def test_the_index_is_told_by_age(catalog):
    from ledger_examples import make_segment

    token = take_lease(catalog)
    register(catalog, token, make_registration(1, segments=(make_segment("a"), make_segment("b"))))
    catalog.change(
        lambda connection: connection.execute(
            update(schema.segments)
            .where(schema.segments.c.segment == "a")
            .values(first_seen_to=catalog.clock - 8 * 86400.0)
        )
    )
    ages = read_index_ages(catalog)
    assert [(age.age, age.segments, age.keys) for age in ages] == [
        ("under an hour", 1, 10),
        ("under 30 days", 1, 10),
    ]
