"""The pace follows the load and ClickHouse's answers: no oscillation, no starvation, back-off and recovery bounded."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from load_simulation import LoadSimulation, Server, count_turns, largest_ratio
from oncehouse.config.pipeline import BatchLimits
from oncehouse.pipeline.load.insert_rate import (
    GOOD_INSERTS,
    MOST_STEPS,
    MOST_STEPS_OF_FAILURES,
    EndedInsert,
    InsertAnswer,
    InsertRate,
    add_arrivals,
    add_insert,
    decide_timing,
)

LIMITS = BatchLimits()
# Looks come every tick, epochs as often as they take; a wait is met to within these.
SLACK_SECONDS = 0.3


def steady(rows_a_second: float):
    return lambda _now: rows_a_second


def one_of(*curves):
    return st.sampled_from(curves)


@st.composite
def loads(draw):
    """Rows a second by the second: steps, bursts, sawtooth, quiet and steady."""
    low, high = draw(st.integers(0, 3_000)), draw(st.integers(3_000, 200_000))
    period = draw(st.integers(2, 40))
    kind = draw(st.sampled_from(["steady", "step", "burst", "sawtooth", "quiet"]))
    return {
        "steady": lambda _now: high,
        "step": lambda now: low if now < 30 else high,
        "burst": lambda now: high if now % period < 1 else low,
        "sawtooth": lambda now: low + (high - low) * (now % period) / period,
        "quiet": lambda now: 2 if now % period < 0.5 else 0,
    }[kind]


def longest_allowed(limits: BatchLimits) -> float:
    """No row waits longer than this for its insert to start while ClickHouse takes every batch quickly."""
    return max(limits.max_wait, limits.min_interval) + SLACK_SECONDS


@settings(max_examples=8)
@given(load=loads(), epoch_seconds=st.sampled_from([0.5, 0.7, 1.0, 1.6]))
def test_whatever_the_load_every_row_goes_in_time_and_at_most_one_insert_a_second(load, epoch_seconds):
    simulation = LoadSimulation(load=load, seconds=60, epoch_seconds=epoch_seconds).run()
    assert simulation.left == 0
    assert all(
        later - earlier >= LIMITS.min_interval - 1e-6 for earlier, later in pairwise(simulation.starts)
    )
    assert simulation.longest_wait() <= longest_allowed(LIMITS)
    assert set(simulation.steps) == {0}


@settings(max_examples=8)
@given(rate=st.integers(10, 300_000), epoch_seconds=st.sampled_from([0.5, 0.7, 1.0, 1.6]))
def test_at_a_steady_load_sizes_are_steady(rate, epoch_seconds):
    """Neighbours differ by one epoch at most, for a batch is whole epochs, and the interval stays where it is."""
    simulation = LoadSimulation(load=steady(rate), seconds=90, epoch_seconds=epoch_seconds).run()
    sizes = simulation.sizes(since=40, until=88)
    an_epoch = rate * epoch_seconds
    assert all(abs(a - b) <= an_epoch * 1.1 + 2 for a, b in pairwise(sizes))
    seconds = [later - earlier for earlier, later in pairwise(simulation.starts)]
    assert max(seconds[20:-1]) - min(seconds[20:-1]) <= max(1.0, epoch_seconds) + 0.2
    assert max(seconds[5:-1]) <= max(LIMITS.max_wait, epoch_seconds) + SLACK_SECONDS


@pytest.mark.parametrize("rate", [10_000, 20_000, 100_000])
def test_where_the_load_allows_it_inserts_have_ten_thousand_rows_and_come_once_a_second(rate):
    simulation = LoadSimulation(load=steady(rate), seconds=120).run()
    sizes = simulation.sizes(since=30, until=118)
    assert sum(sizes) / len(sizes) >= 10_000 * 0.99
    starts = [at for at in simulation.starts if 30 <= at < 118]
    assert 0.6 <= len(starts) / 88 <= 1.0
    assert simulation.longest_wait() <= 1.0 + SLACK_SECONDS


@pytest.mark.parametrize("rate", [5, 100, 1_000])
def test_little_load_goes_quickly_in_small_inserts(rate):
    simulation = LoadSimulation(load=steady(rate), seconds=60).run()
    assert simulation.longest_wait() <= LIMITS.min_interval + SLACK_SECONDS
    assert max(simulation.sizes(since=10)) < LIMITS.min_rows


def test_a_load_that_can_just_fill_a_batch_in_time_is_waited_for():
    simulation = LoadSimulation(load=steady(5_500), seconds=60).run()
    sizes = simulation.sizes(since=30, until=58)
    assert min(sizes) >= 0.7 * LIMITS.min_rows
    assert sum(sizes) / len(sizes) >= 0.95 * LIMITS.min_rows


def test_a_lone_event_after_a_pause_goes_at_once():
    simulation = LoadSimulation(load=lambda now: 10 if 50 <= now < 50.1 else 0, seconds=60).run()
    assert [one.rows for one in simulation.sent] == [1]
    assert simulation.longest_wait() <= 0.11


@settings(max_examples=8)
@given(rate=st.integers(100, 100_000), merges=st.floats(0.15, 3.0), limit=st.integers(40, 300))
def test_growing_parts_slow_inserts_down_before_they_are_refused(rate, merges, limit):
    server = Server(merges_a_second=merges, parts_limit=limit)
    simulation = LoadSimulation(load=steady(rate), seconds=500, server=server).run()
    assert simulation.left == 0
    assert len(simulation.sent) == len(simulation.starts), "nothing was refused"
    assert count_turns([1 + step for step in simulation.steps], ignored=0.01) <= 500 / 20


@settings(max_examples=8)
@given(rate=st.integers(100, 100_000), start=st.integers(5, 40), length=st.integers(1, 100))
def test_after_refusals_the_pace_is_slower_at_once_and_in_bounded_time_as_it_was(rate, start, length):
    server = Server(refusing=(start, start + length))
    simulation = LoadSimulation(load=steady(rate), seconds=start + length + 400, server=server).run()
    assert simulation.left == 0
    assert max(simulation.steps) <= MOST_STEPS
    slow_at = round((start + length + 1) / 0.1)
    # Each step back takes so many inserts, at the interval of that step; and one more wait of a retry before it.
    recovery_seconds = GOOD_INSERTS * sum(2.0**step for step in range(1, MOST_STEPS + 1)) + 10
    assert set(simulation.steps[slow_at + round(recovery_seconds / 0.1) :]) == {0}
    assert count_turns([1 + step for step in simulation.steps], ignored=0.01) <= 1, "up once, down once"


@settings(max_examples=8)
@given(rate=st.integers(100, 100_000), start=st.integers(5, 40), length=st.integers(1, 200))
def test_after_an_outage_however_long_it_is_quick_again_soon(rate, start, length):
    simulation = LoadSimulation(
        load=steady(rate), seconds=start + length + 100, server=Server(away=(start, start + length))
    ).run()
    assert simulation.left == 0
    assert max(simulation.steps) <= MOST_STEPS_OF_FAILURES
    back_at = (
        start + length + 8 + GOOD_INSERTS * sum(2.0**step for step in range(1, MOST_STEPS_OF_FAILURES + 1))
    )
    assert set(simulation.steps[round((back_at + 5) / 0.1) :]) == {0}
    # What had waited goes first, a largest batch a second.
    caught_up_at = back_at + 10 + rate * length / (0.9 * LIMITS.max_rows)
    after = simulation.sizes(since=caught_up_at, until=start + length + 98)
    assert largest_ratio(after) <= 3 or max(after) < LIMITS.min_rows


@settings(max_examples=8)
@given(rate=st.integers(1_000, 100_000), seconds_an_insert=st.floats(0.5, 20))
def test_slow_inserts_get_more_rows_each_and_settle(rate, seconds_an_insert):
    # More than the largest batches can take would wait longer and longer, whatever their sizes.
    assume(rate * (seconds_an_insert + LIMITS.min_interval) < LIMITS.max_rows)
    server = Server(seconds_an_insert=seconds_an_insert)
    simulation = LoadSimulation(load=steady(rate), seconds=200, server=server).run()
    assert simulation.left == 0
    sizes = simulation.sizes(since=100, until=190)
    # A batch is whole epochs, of which small ones have one or two.
    an_epoch = rate * simulation.epoch_seconds
    by_an_epoch = all(abs(a - b) <= an_epoch * 1.1 + 2 for a, b in pairwise(sizes))
    assert by_an_epoch or count_turns(sizes, ignored=0.5) <= 2
    assert largest_ratio(sizes) <= 3
    longest_insert = max(one.done_at - one.at for one in simulation.sent)
    assert simulation.longest_wait() <= max(LIMITS.max_wait, 2 * longest_insert) + 1.0 + SLACK_SECONDS


def test_batches_that_were_too_large_get_smaller_and_grow_again():
    limits = BatchLimits(max_rows=400_000)
    pace = add_insert(
        InsertRate(), EndedInsert(answer=InsertAnswer.TOO_LARGE, rows=300_000, seconds=9), limits
    )
    assert decide_timing(pace, limits).most_rows == 150_000
    pace = add_insert(pace, EndedInsert(answer=InsertAnswer.TOO_LARGE, rows=10_000, seconds=9), limits)
    assert decide_timing(pace, limits).most_rows == limits.min_rows, (
        "never below the least that is worth an insert"
    )
    for _ in range(40):
        full = decide_timing(pace, limits).most_rows
        pace = add_insert(pace, EndedInsert(answer=InsertAnswer.TAKEN, rows=full, seconds=1), limits)
    assert decide_timing(pace, limits).most_rows == limits.max_rows


def test_an_insert_that_took_too_long_makes_the_next_ones_smaller():
    slow = EndedInsert(answer=InsertAnswer.TAKEN, rows=200_000, seconds=100, slow=True)
    assert decide_timing(add_insert(InsertRate(), slow, LIMITS), LIMITS).most_rows == 100_000


def test_a_few_rows_say_nothing_about_a_ceiling():
    pace = InsertRate(most_rows=50_000)
    assert (
        add_insert(pace, EndedInsert(answer=InsertAnswer.TAKEN, rows=10, seconds=0.1), LIMITS).most_rows
        == 50_000
    )


def test_between_crowded_and_relieved_nothing_changes():
    pace = InsertRate(steps=2, good=1)
    for share in (0.3, 0.4, 0.49):
        assert (
            add_insert(
                pace, EndedInsert(answer=InsertAnswer.TAKEN, rows=1, seconds=0, parts_share=share), LIMITS
            ).steps
            == 2
        )
    assert (
        add_insert(
            pace, EndedInsert(answer=InsertAnswer.TAKEN, rows=1, seconds=0, parts_share=0.5), LIMITS
        ).steps
        == 3
    )


def test_the_interval_has_no_step_in_it_whatever_the_load():
    intervals = []
    rate = 1.0
    while rate < 1e6:
        intervals.append(decide_timing(InsertRate(rows_a_second=rate, seen_at=0.0), LIMITS).interval_seconds)
        rate *= 1.01
    assert all(0.97 <= b / a <= 1.03 for a, b in pairwise(intervals))
    assert max(intervals) <= LIMITS.max_wait
    assert intervals[0] == intervals[-1] == LIMITS.min_interval


def test_the_load_is_measured_whatever_the_portions():
    for portion_seconds in (0.5, 1.0, 2.0):
        pace = add_arrivals(InsertRate(), 0, 0.0)
        for number in range(1, round(120 / portion_seconds)):
            pace = add_arrivals(pace, round(1_000 * portion_seconds), number * portion_seconds)
        assert pace.rows_a_second == pytest.approx(1_000, rel=0.15)


def test_fixed_sizes_wait_as_long_whatever_the_load():
    fixed = BatchLimits(sizes="fixed", max_wait=3.0)
    for rate in (10, 1_000, 100_000):
        timing = decide_timing(
            InsertRate(rows_a_second=rate, seen_at=0.0, insert_seconds=50, most_rows=5), fixed
        )
        assert (timing.least_seconds, timing.interval_seconds, timing.most_rows) == (1.0, 3.0, fixed.max_rows)


# Controllers with a defect: each must break one of the promises above.


def forgets_hysteresis(pace: InsertRate, seen: EndedInsert, limits: BatchLimits) -> InsertRate:
    """Faster again after every single insert that went well."""
    after = add_insert(pace, seen, limits)
    if seen.answer is InsertAnswer.TAKEN and seen.parts_share < 0.5:
        return replace(after, steps=max(0, pace.steps - 1), good=0)
    return after


def forgets_the_floor(pace: InsertRate, limits: BatchLimits):
    """No wait at all, so that every epoch is an insert of its own."""
    return replace(decide_timing(pace, limits), least_seconds=0.0, rest_seconds=0.0, interval_seconds=0.0)


def never_recovers(pace: InsertRate, seen: EndedInsert, limits: BatchLimits) -> InsertRate:
    after = add_insert(pace, seen, limits)
    return replace(after, steps=max(pace.steps, after.steps))


def never_backs_off(pace: InsertRate, seen: EndedInsert, limits: BatchLimits) -> InsertRate:
    return replace(add_insert(pace, seen, limits), steps=0)


def waits_for_full_batches(pace: InsertRate, limits: BatchLimits):
    """Starves little load."""
    timing = decide_timing(pace, limits)
    return replace(
        timing, interval_seconds=max(timing.interval_seconds, limits.min_rows / max(pace.rows_a_second, 1))
    )


def test_a_controller_without_hysteresis_is_noticed():
    crowded = Server(merges_a_second=0.3, parts_limit=60)
    turns = [
        count_turns(
            [
                1 + step
                for step in LoadSimulation(load=steady(1_000), seconds=500, server=crowded, **how).run().steps
            ],
            ignored=0.01,
        )
        for how in ({}, {"add_insert": forgets_hysteresis})
    ]
    assert turns[0] <= 500 / 20 < turns[1]


def test_a_controller_without_a_floor_is_noticed():
    simulation = LoadSimulation(
        load=steady(1_000), seconds=60, decide_timing=forgets_the_floor, limits=BatchLimits(min_interval=0)
    )
    sound = LoadSimulation(load=steady(10_000), seconds=60).run()
    sizes = simulation.run().sizes(since=20)
    assert largest_ratio(sound.sizes(since=20, until=58)) <= 2.2
    assert len(simulation.starts) / 60 > 1.0
    assert max(sizes) < 1_000


def test_a_controller_that_never_recovers_is_noticed():
    server = Server(refusing=(10, 40))
    assert LoadSimulation(load=steady(5_000), seconds=400, server=server).run().steps[-1] == 0
    assert (
        LoadSimulation(load=steady(5_000), seconds=400, server=server, add_insert=never_recovers)
        .run()
        .steps[-1]
        > 0
    )


def test_a_controller_that_never_backs_off_is_noticed():
    server = Server(merges_a_second=0.4, parts_limit=60)
    defective = LoadSimulation(
        load=steady(5_000), seconds=600, server=server, add_insert=never_backs_off
    ).run()
    assert len(defective.starts) > len(defective.sent)


def test_a_controller_that_starves_little_load_is_noticed():
    starving = LoadSimulation(
        load=steady(50), seconds=60, decide_timing=waits_for_full_batches, patience_seconds=60
    )
    assert starving.run().left
