"""Covered ranges and gaps: exact whatever is joined, cut or written down."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.etl.lineage.topic import LatePolicy, Template, Topic
from oncehouse.etl.state.coverage import (
    MOST_SEGMENTS,
    CoveredRange,
    count_late,
    cover,
    find_gaps,
    uncover,
    update_counts,
)
from oncehouse.etl.state.models import Offset
from oncehouse.etl.state.next_backfill import next_job
from oncehouse.etl.state.position import MAX_ID, START, Position, before
from oncehouse.etl.state.topic_state import (
    EMPTY,
    JobKind,
    OpenRange,
    TopicJob,
    TopicState,
    close_forward,
    decode_topic_state,
    encode_topic_state,
    set_job,
)


def at(time_ms: int) -> Position:
    return Position(time_ms=time_ms, id=7)


def ranges(most: int = 200) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(0, most), st.integers(1, 30)).map(lambda pair: (pair[0], sum(pair)))


CHANGES = st.lists(st.tuples(st.booleans(), ranges()), max_size=60)


def points(gaps) -> set[int]:
    return {time for after, upto in gaps for time in range(after.time_ms + 1, upto.time_ms + 1)}


@given(CHANGES)
def test_gaps_are_what_no_range_has_covered_however_many_there_were(changes):
    segments, covered = (), set()
    for is_added, (first, last) in changes:
        if is_added:
            segments = cover(segments, CoveredRange(after=at(first), upto=at(last), rows=last - first))
            covered |= set(range(first + 1, last + 1))
        else:
            segments = uncover(segments, at(first), at(last))
            covered -= set(range(first + 1, last + 1))
    assert points(find_gaps(segments, at(0), at(300))) == set(range(1, 301)) - covered
    ordered = [(one.after, one.upto) for one in segments]
    assert ordered == sorted(ordered)
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(ordered))


@given(st.lists(st.integers(1, 10_000_000), min_size=MOST_SEGMENTS, max_size=150))
def test_many_steps_are_joined_without_losing_a_row_and_recent_ones_stay_fine(lengths_ms):
    segments, end = (), 0
    for length_ms in lengths_ms:
        added = CoveredRange(after=at(end), upto=at(end + length_ms), rows=3)
        segments, end = cover(segments, added), end + length_ms
    assert len(segments) == MOST_SEGMENTS
    assert sum(one.rows for one in segments) == 3 * len(lengths_ms)
    assert find_gaps(segments, at(0), at(end)) == ()
    assert segments[-1].upto == at(end)


def test_of_a_thousand_even_steps_the_latest_is_known_by_itself():
    segments = ()
    for number in range(1000):
        segments = cover(segments, CoveredRange(after=at(number), upto=at(number + 1), rows=1))
    assert segments[-1].rows <= 2
    assert segments[0].rows > 50


@pytest.mark.parametrize(
    ("known", "count", "expected"),
    [((10, 0), 10, (10, 0)), ((10, 0), 13, (10, 3)), ((10, 3), 12, (10, 2)), ((10, 3), 8, (8, 0))],
)
def test_a_range_has_late_rows_when_it_holds_more_than_it_had(known, count, expected):
    segment = CoveredRange(after=at(0), upto=at(9), rows=known[0], late=known[1])
    (noted,) = update_counts((segment,), {segment: count})
    assert (noted.rows, noted.late) == expected


def test_a_range_whose_rows_are_not_known_takes_the_first_count_as_its_own():
    cut = uncover((CoveredRange(after=at(0), upto=at(9), rows=5),), at(4), at(9))
    (noted,) = update_counts(cut, {cut[0]: 8})
    assert (noted.rows, noted.late, count_late((noted,))) == (8, 0, 0)


def test_a_count_of_a_range_that_has_changed_meanwhile_is_not_taken():
    segment = CoveredRange(after=at(0), upto=at(9), rows=5)
    now = replace(segment, rows=6)
    assert update_counts((now,), {segment: 8}) == (now,)


POSITIONS = st.builds(Position, time_ms=st.integers(0, 1 << 42), id=st.integers(0, MAX_ID))
NUMBERS = st.integers(0, 1 << 60)
OPENED = st.none() | st.builds(
    OpenRange,
    last=POSITIONS,
    next=POSITIONS,
    rows=NUMBERS,
    since_ms=NUMBERS,
    generation=NUMBERS,
    number=NUMBERS,
    steps_since=NUMBERS,
    block_count=st.none() | st.text(),
)
JOBS = st.none() | st.builds(
    TopicJob,
    after=POSITIONS,
    upto=POSITIONS,
    every_seconds=st.floats(0, 1e9),
    maxstep_rows=st.none() | NUMBERS,
    rows=NUMBERS,
    ran_ms=NUMBERS,
    opened=OPENED,
    failed=NUMBERS,
    why=st.text(),
)
SEGMENTS = st.lists(
    st.builds(CoveredRange, after=POSITIONS, upto=POSITIONS, rows=st.none() | NUMBERS, late=NUMBERS),
    max_size=5,
)


@given(SEGMENTS, OPENED, JOBS, JOBS, NUMBERS, st.booleans(), POSITIONS)
def test_a_book_is_read_as_it_was_written(segments, opened, backfill, repair, number, flag, forced_upto):
    topic_state = TopicState(
        segments=tuple(segments),
        forward_ms=number,
        opened=opened,
        repairs=number,
        repaired=number,
        acknowledged=number,
        is_pause_asked=flag,
        forced_upto=forced_upto,
    )
    topic_state = set_job(set_job(topic_state, JobKind.BACKFILL, backfill), JobKind.REPAIR, repair)
    assert decode_topic_state(encode_topic_state(topic_state)) == topic_state


def test_hosts_of_the_version_before_read_a_book_with_block_counts_and_write_one_without():
    opened = OpenRange(last=START, next=at(50), rows=6, block_count="u 7")
    plain = json.loads(encode_topic_state(TopicState(opened=opened)))
    assert "block_count" not in plain["opened"]
    del plain["block_counts"]
    known = decode_topic_state(json.dumps(plain)).opened
    assert known == replace(opened, block_count=None), "what is not known is not taken for remembered"


def test_a_book_without_anything_costs_nothing():
    assert (encode_topic_state(EMPTY), decode_topic_state("")) == ("", EMPTY)


def test_a_lane_that_failed_rests_and_a_repair_comes_before_a_back_fill():
    topic = Topic(topic="Fact", dst="dwh.fact", depends_on=("stage.main",), late=LatePolicy.REPAIR)
    late = CoveredRange(after=at(50), upto=at(90), rows=5, late=1)
    job = TopicJob(after=START, upto=at(90), failed=2, why="no", ran_ms=1000)
    topic_state = set_job(TopicState(segments=(late,)), JobKind.BACKFILL, replace(job, failed=0))
    offset = Offset(topic="Fact", last=at(90), next=at(90), topic_state=topic_state)

    def job_kind(topic_state: TopicState, now_ms: int = 2000) -> JobKind | None:
        due_job = next_job(topic, replace(offset, topic_state=topic_state), at(90), now_ms)
        return due_job and due_job.job_kind

    assert job_kind(topic_state) is JobKind.REPAIR
    resting = set_job(topic_state, JobKind.REPAIR, job)
    assert job_kind(resting) is JobKind.BACKFILL
    assert job_kind(set_job(resting, JobKind.BACKFILL, job)) is None
    assert job_kind(set_job(resting, JobKind.BACKFILL, job), now_ms=5000) is JobKind.REPAIR


DAYS = Topic(
    topic="Fact", dst="dwh.fact", depends_on=("stage.main",), template=Template.RANGE, late=LatePolicy.REPAIR
)


def segment(after: int, upto: int, *, late: int = 0) -> CoveredRange:
    return CoveredRange(after=at(after) if after else START, upto=at(upto), rows=5, late=late)


@pytest.mark.parametrize(
    ("covered", "settled", "filled"),
    [
        ((), 40, (0, 40)),  # after a seek into the future: rows that come after 40 are left for later
        (((0, 40),), 60, (40, 60)),
        (((0, 40),), 40, None),
        (((20, 99),), 50, (0, 99)),  # partitions of the gap may have rows of the covered range
        (((20, 99),), 99, (0, 99)),
        (((20, 50),), 70, (0, 70)),
        (((20, 30), (60, 99)), 50, None),  # the source was set back behind a gap
    ],
)
def test_a_back_fill_of_a_range_ends_where_rows_may_still_come(covered, settled, filled):
    segments = tuple(segment(*one) for one in covered)
    topic_state = set_job(TopicState(segments=segments), JobKind.BACKFILL, TopicJob(after=START, upto=at(99)))
    due_job = next_job(
        DAYS, Offset(topic="Fact", last=at(99), next=at(99), topic_state=topic_state), at(settled), 1
    )
    expected = None if filled is None else (START if not filled[0] else at(filled[0]), at(filled[1]))
    assert (due_job and (due_job.after, due_job.upto)) == expected


def test_the_growing_gap_of_a_range_is_filled_no_more_often_than_its_forward_runs_go_on():
    topic = replace(DAYS, repeat_seconds=60)
    topic_state = set_job(TopicState(), JobKind.BACKFILL, TopicJob(after=START, upto=at(99), ran_ms=1000))
    offset = Offset(topic="Fact", last=at(99), next=at(99), topic_state=topic_state)
    assert next_job(topic, offset, at(40), 60_999) is None
    assert next_job(topic, offset, at(40), 61_000) is not None


def test_a_repair_of_a_range_covers_nothing_that_was_not_covered():
    topic_state = TopicState(segments=(segment(0, 20, late=1), segment(20, 50)))
    due_job = next_job(
        DAYS, Offset(topic="Fact", last=at(99), next=at(99), topic_state=topic_state), at(60), 1
    )
    assert due_job is not None
    assert (due_job.job_kind, due_job.after, due_job.upto) == (JobKind.REPAIR, START, at(50))


def test_a_whole_rebuild_ends_a_failed_repair_and_leaves_a_range_that_was_begun():
    late = CoveredRange(after=START, upto=at(50), rows=5, late=1)
    failed = TopicJob(after=START, upto=at(50), failed=2, why="no")
    begun = replace(failed, opened=OpenRange(last=START, next=at(50), rows=6))
    for job, left in ((failed, None), (begun, begun)):
        topic_state = set_job(TopicState(segments=(late,)), JobKind.REPAIR, job)
        built = close_forward(topic_state, at(50), at(90), rows=9, now_ms=1, is_whole=True)
        assert count_late(built.segments) == 0
        kept = built.job(JobKind.REPAIR)
        assert (kept and replace(kept, opened=job.opened)) == left


def test_before_a_time_is_before_all_of_its_ids():
    assert before(1000) < Position(time_ms=1000, id=0)
    assert before(1000) >= Position(time_ms=999, id=MAX_ID)
    assert before(0) == START
