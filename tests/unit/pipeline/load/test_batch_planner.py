"""The batcher never mixes, drops or repeats a part, whatever the sizes and times."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger_examples import make_file
from oncehouse.config.pipeline import BatchLimits
from oncehouse.ledger.models import Part
from oncehouse.pipeline.load.batch_planner import PARKED_LIMIT, PlannedBatch, TableFeedback, plan_batches
from oncehouse.pipeline.load.insert_rate import BatchTiming, InsertRate, decide_timing

NOW = 1_000.0
LIMITS = BatchLimits(
    sizes="fixed", min_rows=100, max_rows=1000, max_bytes=10_000, max_wait=5.0, min_interval=1.0
)
ADAPTIVE = LIMITS.model_copy(update={"sizes": "adaptive"})


def make_open_part(
    number: int, *, table: str = "a", rows: int = 10, size_bytes: int = 10, registered_at: float = NOW
) -> Part:
    return Part(
        part=f"part-{number}",
        epoch=number,
        table=table,
        key_file=f"keys-{number}",
        ordinal=0,
        rows=rows + 1,
        live_rows=rows,
        size_bytes=size_bytes,
        file=make_file(f"part-{number}"),
        registered_at=registered_at,
    )


def plan(*parts: Part, limits: BatchLimits = LIMITS, draining: bool = False, **feedback):
    known = {part.table: limits for part in parts}
    feedback_of = {part.table: TableFeedback(**feedback) for part in parts}
    return plan_batches(parts, limits=known, feedback=feedback_of, now=NOW, draining=draining)


@st.composite
def open_parts(draw) -> list[Part]:
    sizes = st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 3000),
        st.integers(0, 30_000),
        st.floats(0, NOW, allow_nan=False),
    )
    return [
        make_open_part(number, table=table, rows=rows, size_bytes=size_bytes, registered_at=at)
        for number, (table, rows, size_bytes, at) in enumerate(draw(st.lists(sizes, max_size=40)))
    ]


feedbacks = st.builds(
    TableFeedback,
    waiting=st.integers(0, 2),
    parked=st.integers(0, 4),
    seconds_since_cut=st.floats(0, 1000, allow_nan=False),
    timing=st.none()
    | st.builds(
        BatchTiming,
        least_seconds=st.floats(0, 10),
        rest_seconds=st.floats(0, 10),
        interval_seconds=st.floats(0, 100),
        most_rows=st.integers(1, 500),
    ),
)
limits = st.builds(
    BatchLimits,
    sizes=st.sampled_from(["adaptive", "fixed"]),
    min_rows=st.integers(1, 500),
    max_rows=st.integers(500, 5000),
    max_bytes=st.integers(1, 50_000),
    max_wait=st.floats(0, 100),
    min_interval=st.floats(0, 10),
)


@given(parts=open_parts(), limit=limits, feedback=feedbacks, draining=st.booleans())
def test_a_batch_holds_the_oldest_parts_of_one_table_within_its_limits(parts, limit, feedback, draining):
    tables = ("a", "b", "c")
    planned = plan_batches(
        parts,
        limits=dict.fromkeys(tables, limit),
        feedback=dict.fromkeys(tables, feedback),
        now=NOW,
        draining=draining,
    )
    assert len({batch.table for batch in planned}) == len(planned), "at most one batch a table"
    for batch in planned:
        open_here = [part for part in parts if part.table == batch.table and part.live_rows]
        assert list(batch.parts) == open_here[: len(batch.parts)]
        rows = sum(part.live_rows for part in batch.parts)
        size_bytes = sum(part.size_bytes for part in batch.parts)
        assert len(batch.parts) == 1 or (rows <= limit.max_rows and size_bytes <= limit.max_bytes)
        assert not feedback.waiting
        assert feedback.parked < PARKED_LIMIT


@given(parts=open_parts(), limit=limits, arrivals=st.integers(1, 7))
def test_every_part_with_rows_ends_in_exactly_one_batch(parts, limit, arrivals):
    """Parts arrive a few at a time, and time passes; in the end the batches are cut by draining."""
    made: list[PlannedBatch] = []
    waiting: list[Part] = []
    last_cut: dict[str, float] = {}
    now, coming = NOW, list(parts)
    while coming or any(part.live_rows for part in waiting):
        arrived, coming = coming[:arrivals], coming[arrivals:]
        waiting += [replace(part, registered_at=now) for part in arrived]
        planned = plan_batches(
            waiting,
            limits=dict.fromkeys(("a", "b", "c"), limit),
            feedback={table: TableFeedback(seconds_since_cut=now - at) for table, at in last_cut.items()},
            now=now,
            draining=not coming,
        )
        for batch in planned:
            last_cut[batch.table] = now
        taken = {part.part for batch in planned for part in batch.parts}
        waiting = [part for part in waiting if part.part not in taken]
        made += planned
        now += limit.min_interval + 0.001
    for table in ("a", "b", "c"):
        sent = [part.part for batch in made if batch.table == table for part in batch.parts]
        assert sent == [part.part for part in parts if part.table == table and part.live_rows]


def test_few_rows_wait_for_others_until_the_longest_wait_is_over():
    assert not plan(make_open_part(1, registered_at=NOW - 4.9))
    assert plan(make_open_part(1, registered_at=NOW - 5.0))


def test_a_catalog_clock_that_was_set_back_makes_nobody_wait():
    assert plan(make_open_part(1, registered_at=NOW + 3600))


def test_parts_of_different_columns_never_share_a_batch():
    old, new = make_open_part(1, rows=50), replace(make_open_part(2, rows=50), shape="with another column")
    assert [batch.parts for batch in plan(old, new)] == [(old,)]


def test_enough_rows_go_at_once():
    parts = [make_open_part(number, rows=50) for number in range(2)]
    assert [batch.parts for batch in plan(*parts)] == [tuple(parts)]


def test_a_batch_that_cannot_grow_goes_at_once():
    fits, too_much = make_open_part(1, rows=10), make_open_part(2, rows=999)
    assert [batch.parts for batch in plan(fits, too_much)] == [(fits,)]


def test_a_part_larger_than_the_limits_is_a_batch_of_its_own():
    large = make_open_part(1, rows=5000, size_bytes=99_999)
    assert [batch.parts for batch in plan(large, make_open_part(2))] == [(large,)]


def test_draining_closes_what_is_there():
    assert not plan(make_open_part(1))
    assert plan(make_open_part(1), draining=True)


def test_a_part_without_live_rows_needs_no_batch():
    assert not plan(make_open_part(1, rows=0), draining=True)


@pytest.mark.parametrize(
    "feedback", [{"waiting": 1}, {"parked": PARKED_LIMIT}, {"seconds_since_cut": 0.9}], ids=str
)
def test_nothing_is_cut_while_the_table_is_held_up(feedback):
    assert not plan(make_open_part(1, rows=500), draining=True, **feedback)


def test_a_table_with_a_few_parked_batches_goes_on():
    assert plan(make_open_part(1, rows=500), parked=PARKED_LIMIT - 1)


def test_a_table_that_is_slowed_down_gets_batches_more_seldom():
    part, slow = make_open_part(1, rows=500), decide_timing(InsertRate(steps=2), LIMITS)
    assert plan(part, seconds_since_cut=3.9)
    assert not plan(part, seconds_since_cut=3.9, timing=slow)
    assert plan(part, seconds_since_cut=4.0, timing=slow)


def test_with_adaptive_sizes_few_rows_go_at_the_end_of_the_interval_however_young_they_are():
    timing = decide_timing(InsertRate(rows_a_second=15, seen_at=0.0), ADAPTIVE)
    assert timing.interval_seconds == 3.75
    assert not plan(make_open_part(1), limits=ADAPTIVE, timing=timing, seconds_since_cut=3.7)
    assert plan(make_open_part(1), limits=ADAPTIVE, timing=timing, seconds_since_cut=3.75)


def test_with_adaptive_sizes_enough_rows_go_as_soon_as_the_table_has_rested():
    timing = decide_timing(InsertRate(insert_seconds=1.5), ADAPTIVE)
    assert not plan(make_open_part(1, rows=100), limits=ADAPTIVE, timing=timing, seconds_since_cut=1.8)
    assert plan(make_open_part(1, rows=100), limits=ADAPTIVE, timing=timing, seconds_since_cut=1.9)


def test_with_adaptive_sizes_a_full_batch_does_not_wait_for_a_rest():
    timing = decide_timing(InsertRate(insert_seconds=1.5), ADAPTIVE)
    parts = [make_open_part(1, rows=900), make_open_part(2, rows=900)]
    assert plan(*parts, limits=ADAPTIVE, timing=timing, seconds_since_cut=1.0)
    assert not plan(*parts, limits=ADAPTIVE, timing=timing, seconds_since_cut=0.9)


def test_with_adaptive_sizes_what_was_too_large_makes_smaller_batches():
    timing = decide_timing(InsertRate(most_rows=100), ADAPTIVE)
    parts = [make_open_part(number, rows=50) for number in range(4)]
    assert [batch.parts for batch in plan(*parts, limits=ADAPTIVE, timing=timing)] == [tuple(parts[:2])]


@given(
    sizes=st.lists(st.integers(1, 500), min_size=1, max_size=200),
    away=st.tuples(st.floats(0, 50), st.floats(0, 200)),
    part_seconds=st.floats(0.01, 3),
)
def test_after_an_outage_what_waited_goes_out_oldest_first_in_no_small_batch_but_the_last(
    sizes, away, part_seconds
):
    """Parts come in all the time, ClickHouse is away for a while: a batch is full, late for `max_wait`, or the last."""
    coming = [
        make_open_part(number, rows=rows, registered_at=NOW + number * part_seconds)
        for number, rows in enumerate(sizes)
    ]
    gone_from, gone_to = NOW + away[0], NOW + away[0] + away[1]
    now, last_cut, waiting, unsent = NOW, 0.0, [], None
    sent: list[tuple[float, PlannedBatch]] = []
    while coming or waiting or unsent:
        waiting += [part for part in coming if part.registered_at <= now]
        coming = [part for part in coming if part.registered_at > now]
        is_away = gone_from <= now < gone_to
        feedback = TableFeedback(waiting=1 if unsent else 0, seconds_since_cut=now - last_cut)
        planned = plan_batches(
            waiting, limits={"a": LIMITS}, feedback={"a": feedback}, now=now, draining=not coming
        )
        # As the load stage does it: no small batch is cut for a ClickHouse that does not answer.
        if planned and (not is_away or sum(part.live_rows for part in planned[0].parts) >= LIMITS.min_rows):
            unsent, last_cut = planned[0], now
            waiting = waiting[len(unsent.parts) :]
        rested = not sent or now - sent[-1][0] >= LIMITS.min_interval
        if unsent and not is_away and rested:
            sent.append((now, unsent))
            unsent = None
        now += 0.25
    assert [part.part for _, batch in sent for part in batch.parts] == [
        f"part-{n}" for n in range(len(sizes))
    ]
    starts = [at for at, _ in sent]
    assert all(later - earlier >= LIMITS.min_interval for earlier, later in pairwise(starts))
    for at, batch in sent[:-1]:
        rows = sum(part.live_rows for part in batch.parts)
        late = at - batch.parts[0].registered_at >= LIMITS.max_wait
        assert rows >= LIMITS.min_rows or late
    assert not [at for at, _ in sent if gone_from <= at < gone_to]
    backlog = [batch for at, batch in sent if batch.parts[-1].registered_at < gone_to <= at][:-1]
    assert all(sum(part.live_rows for part in batch.parts) >= LIMITS.min_rows for batch in backlog)


def test_one_table_held_up_does_not_hold_up_another():
    parts = [make_open_part(1, table="a", rows=500), make_open_part(2, table="b", rows=500)]
    planned = plan_batches(
        parts,
        limits={"a": LIMITS, "b": LIMITS},
        feedback={"a": TableFeedback(parked=PARKED_LIMIT)},
        now=NOW,
    )
    assert [batch.table for batch in planned] == ["b"]
