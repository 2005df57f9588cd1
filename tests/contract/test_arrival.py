"""What the ledger says has not arrived, on both databases."""

from __future__ import annotations

from dataclasses import replace

from ledger_examples import make_dead_letters, make_part, make_registration, take_lease
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.models import DeadLetterFile, DeadLetterKind, EpochKind
from oncehouse.ledger.stats.table_progress import read_arrival
from oncehouse.pipeline.stages.source_progress import SourceSnapshot, SourceSnapshots


def waiting(name: str, *, epoch: int) -> DeadLetterFile:
    return replace(make_dead_letters(name, epoch=epoch), kind=DeadLetterKind.WAITING)


def test_records_that_were_tried_and_wait_on_are_as_old_as_those_that_were_not(catalog):
    """Two versions in one file; one of them becomes known after Kafka was read again."""
    token = take_lease(catalog)
    first = make_registration(1, 0, 10, parts=(), dead_letter_files=(waiting("both", epoch=1),))
    register(catalog, token, first)
    readings = SourceSnapshots()
    readings.add(SourceSnapshot(clock_ms=100, ends={("orders", 0): 10}))
    readings.settle(read_arrival(catalog))
    assert read_arrival(catalog).waiting == 1

    again = make_registration(2, 0, 1, kind=EpochKind.WAITING, ranges=(), key_files=(), parts=())
    rest = replace(again, dead_letter_files=(waiting("rest", epoch=2),), tried_dead_letter_files=("both",))
    register(catalog, token, rest)
    known = read_arrival(catalog)
    assert known.waiting == 0
    readings.settle(known)
    assert readings.reached_ms(known, "shop.orders", waits_count=True) is None

    done = make_registration(3, 0, 1, kind=EpochKind.WAITING, ranges=(), key_files=(), parts=())
    register(catalog, token, replace(done, tried_dead_letter_files=("rest",)))
    known = read_arrival(catalog)
    assert readings.reached_ms(known, "shop.orders", waits_count=True) == 100


def test_rows_are_missing_from_the_epoch_that_read_them_and_those_of_older_records_from_the_start(catalog):
    token = take_lease(catalog)
    register(catalog, token, make_registration(1, 0, 10, parts=()))
    assert read_arrival(catalog).missing == {}
    register(catalog, token, make_registration(2, 10, 20))
    assert read_arrival(catalog).missing == {"shop.orders": 2}
    again = make_registration(3, 0, 1, kind=EpochKind.WAITING, ranges=(), key_files=())
    late = replace(make_part("late", epoch=3), key_file="keys-2")
    register(catalog, token, replace(again, parts=(late,)))
    assert read_arrival(catalog).missing == {"shop.orders": 0}
