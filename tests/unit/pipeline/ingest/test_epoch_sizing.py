"""How many records an epoch may hold follows their bytes and the time they take, seldom and never to and fro."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oncehouse.config.pipeline import Epoch
from oncehouse.ledger.models import OffsetRange
from oncehouse.pipeline.ingest.epoch_sizing import (
    FIRST_RECORDS,
    LEAST_RECORDS,
    EpochSize,
    SettledEpoch,
    adjust_size,
    cut_ranges,
    first_size,
    full_bound,
)

LIMITS = Epoch()


def follow(
    size: EpochSize,
    *,
    epochs: int,
    record_bytes: float,
    records_a_second: float,
    fixed_seconds: float = 0.6,
    waiting: float = float("inf"),
    limits: Epoch = LIMITS,
) -> list[EpochSize]:
    """Epochs over a backlog, each as large as it may be."""
    seen = [size]
    for _ in range(epochs):
        records = int(min(seen[-1].most_records, waiting))
        told = SettledEpoch(
            records=records,
            size_bytes=int(records * record_bytes),
            seconds=fixed_seconds + records / records_a_second,
        )
        seen.append(adjust_size(seen[-1], told, limits))
    return seen


def test_the_first_epoch_is_small_and_the_next_ones_grow_to_what_was_asked():
    sizes = follow(first_size(LIMITS, 213), epochs=10, record_bytes=213, records_a_second=200_000)
    assert sizes[0].most_records == FIRST_RECORDS <= LIMITS.max_rows / 50
    assert sizes[3].most_records == sizes[-1].most_records == LIMITS.max_rows


def test_epochs_that_grow_take_no_longer_than_was_asked():
    for speed in (500, 5_000, 20_000, 100_000, 1_000_000):
        sizes = follow(first_size(LIMITS), epochs=12, record_bytes=200, records_a_second=speed)
        # The first one is small whatever the speed; the others follow it.
        assert all(size.most_records / speed <= 1.6 * LIMITS.max_seconds for size in sizes[1:]), speed


def test_a_pipeline_that_is_killed_every_minute_settles_something_each_time():
    """A Spark that takes 20 s to start, events that take a millisecond each."""
    left, lives = 150_000, 0
    while left > 0:
        lives, alive, size = lives + 1, 40.0, first_size(LIMITS, 200)
        while left > 0:
            seen = SettledEpoch(
                records=min(left, size.most_records),
                size_bytes=200 * min(left, size.most_records),
                seconds=0.6 + min(left, size.most_records) / 1_000,
            )
            if seen.seconds > alive:
                break
            left, alive = left - seen.records, alive - seen.seconds
            size = adjust_size(size, seen, LIMITS)
        assert lives < 10, f"{left} records are left after {lives} starts"


def test_a_limit_below_the_size_of_a_first_epoch_holds_for_it_too():
    assert first_size(Epoch(max_rows=30)).most_records == 30


def test_large_records_are_bounded_by_their_bytes_from_the_first_epoch_on():
    first = first_size(LIMITS, 1 << 17)
    assert first.most_records == (LIMITS.max_bytes >> 17) // 16
    sizes = follow(first, epochs=4, record_bytes=1 << 17, records_a_second=1e6)
    assert sizes[1].most_records == sizes[-1].most_records == LIMITS.max_bytes >> 17


def test_records_that_turn_out_to_be_large_make_smaller_epochs_at_once():
    full = EpochSize(most_records=LIMITS.max_rows)
    sizes = follow(full, epochs=3, record_bytes=100_000, records_a_second=1e9)
    assert sizes[1].most_records == sizes[-1].most_records == LIMITS.max_bytes // 100_000


def test_an_epoch_that_took_too_long_makes_the_next_as_long_as_was_asked():
    full = EpochSize(most_records=LIMITS.max_rows, record_bytes=200)
    sizes = follow(full, epochs=6, record_bytes=200, records_a_second=1_000)
    assert 15 <= sizes[1].most_records / 1_000 <= 1.25 * LIMITS.max_seconds


def test_a_machine_that_is_fast_again_gets_large_epochs_again():
    full = EpochSize(most_records=LIMITS.max_rows, record_bytes=200)
    slow = follow(full, epochs=5, record_bytes=200, records_a_second=1_000)[-1]
    assert (
        follow(slow, epochs=8, record_bytes=200, records_a_second=300_000)[-1].most_records == LIMITS.max_rows
    )


def test_small_epochs_say_nothing_about_how_large_one_may_be():
    sizes = follow(first_size(LIMITS), epochs=20, record_bytes=200, records_a_second=300_000, waiting=50)
    assert {size.most_records for size in sizes} == {FIRST_RECORDS}
    held = EpochSize(most_records=20_000, record_bytes=200)
    assert follow(held, epochs=20, record_bytes=200, records_a_second=300_000, waiting=50)[-1] == held


def test_an_epoch_without_records_changes_nothing():
    size = EpochSize(most_records=500, record_bytes=10)
    assert adjust_size(size, SettledEpoch(records=0, size_bytes=0, seconds=1), LIMITS) == size


@given(
    record_bytes=st.floats(1, 2e6),
    records_a_second=st.floats(10, 1e6),
    first=st.floats(0, 2e6),
    noise=st.lists(st.floats(0.8, 1.25), min_size=30, max_size=30),
)
def test_at_a_steady_speed_the_bound_settles_and_stays_within_what_was_asked(
    record_bytes, records_a_second, first, noise
):
    size, changed = first_size(LIMITS, first), []
    for number, factor in enumerate(noise):
        records = size.most_records
        told = SettledEpoch(
            records=records,
            size_bytes=int(records * record_bytes * factor),
            seconds=0.6 + records / (records_a_second * factor),
        )
        before, size = size, adjust_size(size, told, LIMITS)
        assert LEAST_RECORDS <= size.most_records <= LIMITS.max_rows
        if size.most_records != before.most_records:
            changed.append(number)
    # Doubled at most fourteen times from the least to the most. A first look may have been so far off that it is
    # mended late; after that the noise moves nothing.
    assert len([number for number in changed if number > 20]) <= 1
    assert size.most_records == LEAST_RECORDS or size.most_records * record_bytes <= 2 * LIMITS.max_bytes


def test_larger_records_lower_the_bound_after_the_first_epoch_that_has_them():
    small = EpochSize(most_records=LIMITS.max_rows, record_bytes=200)
    seen = SettledEpoch(records=LIMITS.max_rows, size_bytes=int(LIMITS.max_rows * 20_000), seconds=5)
    assert adjust_size(small, seen, LIMITS).most_records <= LIMITS.max_bytes / 20_000


def span(partition: int, start: int, end: int) -> OffsetRange:
    return OffsetRange(topic="events", partition=partition, start=start, end=end)


def test_a_micro_batch_is_cut_into_epochs_to_which_each_partition_gives_its_share():
    taken, rest = cut_ranges((span(0, 100, 1_100), span(1, 0, 100), span(2, 7, 7)), 110)
    assert taken == (span(0, 100, 200), span(1, 0, 10), span(2, 7, 7))
    assert rest == (span(0, 200, 1_100), span(1, 10, 100), span(2, 7, 7))


def test_partitions_that_are_all_taken_leave_no_rest():
    waiting = tuple(span(number, 5, 6) for number in range(200))
    assert cut_ranges(waiting, 100) == (waiting, ())


def test_what_is_little_more_than_an_epoch_is_one():
    whole = (span(0, 0, 600), span(1, 0, 625))
    assert cut_ranges(whole, 1_000) == (whole, ())
    assert cut_ranges(whole, 900)[1]


@given(
    lengths=st.lists(st.integers(0, 10_000), min_size=1, max_size=20),
    most_records=st.integers(LEAST_RECORDS, 5_000),
)
def test_the_epochs_of_a_micro_batch_join_and_are_hardly_larger_than_they_may_be(lengths, most_records):
    waiting = tuple(span(number, number, number + length) for number, length in enumerate(lengths))
    reached = {found.partition: found.start for found in waiting}
    while waiting:
        taken, waiting = cut_ranges(waiting, most_records)
        assert sum(found.end - found.start for found in taken) <= 1.25 * most_records + len(lengths)
        for found in taken:
            assert found.start == reached[found.partition]
            reached[found.partition] = found.end
    assert reached == {number: number + length for number, length in enumerate(lengths)}


def test_the_full_bound_follows_the_size_of_records_alone():
    assert full_bound(LIMITS, 0) == full_bound(LIMITS, 213) == LIMITS.max_rows
    assert full_bound(LIMITS, 1 << 20) == LIMITS.max_bytes >> 20
