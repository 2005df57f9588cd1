"""Property: with late rows, back-fills, seeks, failures and deaths anywhere, every source row reaches its Fact exactly
once, and no step reads past the slowest source. Planning, offsets, coverage, jobs and the order of operations are the
real ones; tables and the store are simulated."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_etl_simulation import LEASE_MS, MAIN, OTHER, CrashError, MemoryOffsets

from oncehouse.errors import OncehouseError, PermanentError
from oncehouse.etl.lineage.topic import LatePolicy, Topic
from oncehouse.etl.scheduler.due_steps import due_steps
from oncehouse.etl.scheduler.late_rows import select_covered
from oncehouse.etl.state import backfill_transitions, coverage, topic_lease, transitions
from oncehouse.etl.state.decision import DueStep, EmptyRange, ResumeStep
from oncehouse.etl.state.models import Offset, SourceState
from oncehouse.etl.state.next_backfill import DueJob, find_open_gaps
from oncehouse.etl.state.position import START, Position, Range
from oncehouse.etl.state.topic_lease import MutexError, TopicWorker
from oncehouse.etl.state.topic_state import JobKind, OpenRange
from oncehouse.etl.steps import backfill_planner, operation_builder
from oncehouse.etl.steps.backfill_planner import JobPlanner
from oncehouse.etl.steps.operation_builder import step_operations
from oncehouse.etl.steps.operations import (
    Execute,
    Freeze,
    Insert,
    MarkCovered,
    Operation,
    WriteJobRange,
    WriteLast,
    WriteNext,
)
from oncehouse.etl.steps.transforms import Transform

TRANSFORM = Transform(name="t", select="SELECT 1", offsets_table=None, has_range=True)
LATEST = Position(time_ms=1 << 62, id=0)
COLUMNS = {"pos": "DateTime64(3)", "id": "UInt64"}


@dataclass
class EtlSimulation:
    topic: Topic
    store: MemoryOffsets = field(default_factory=MemoryOffsets)
    main: list[Position] = field(default_factory=list)
    other_ms: int | None = None
    fact: list[Position] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    frozen: dict[str, list[Position]] = field(default_factory=dict)
    processes: int = 0
    ids: int = 0

    def arrive(self, gap_ms: int, count: int) -> None:
        newest_ms = max((one.time_ms for one in self.main), default=1)
        for _ in range(count):
            self.ids += 1
            self.main.append(Position(time_ms=newest_ms + gap_ms, id=self.ids))

    def arrive_late(self, share: float, count: int) -> None:
        """Among rows that are there: at a time that one of them has."""
        for _ in range(count if self.main else 0):
            self.ids += 1
            at = sorted(self.main)[int(share * len(self.main))]
            self.main.append(Position(time_ms=at.time_ms, id=self.ids))

    def offset(self) -> Offset:
        return self.store.rows.get("Fact") or topic_lease.new_offset("Fact")

    def within(self, last: Position, next_: Position) -> list[Position]:
        return sorted(one for one in self.main if last < one <= next_)

    def bound_ms(self) -> int:
        """The clock is that of the main source, which is written to all the time."""
        newest_ms = max((one.time_ms for one in self.main), default=0)
        return min(newest_ms - round(self.topic.delay_seconds * 1000), self.other_ms or 0)

    def look(self) -> None:
        """Count what is covered, as the watch does."""
        segments = select_covered(self.topic, self.store.rows.get("Fact"))
        if segments:
            counts = {one: len(self.within(one.after, one.upto)) for one in segments}
            transitions.update_counts(self.store, "Fact", counts)

    def seek(self, share: float, ahead_ms: int) -> None:
        """A person empties the table from there on, and seeks; or leaves out what comes next."""
        row = self.offset()
        reached = row.reached
        if ahead_ms:
            wanted = Position(time_ms=reached.time_ms + ahead_ms, id=0)
        else:
            passed = [START, *self.within(START, reached)]
            wanted = passed[int(share * len(passed))]
        if self.cuts_late(wanted, LATEST):
            return
        with suppress(MutexError, PermanentError):
            transitions.seek(self.store, "Fact", wanted, lease_seconds=LEASE_MS / 1000)
            if not ahead_ms:
                self.fact = [one for one in self.fact if one <= wanted]
            self.look()

    def empty(self, share: float, count: int) -> None:
        """A person deletes some rows and lets them be built again."""
        passed = [START, *self.within(START, self.offset().reached)]
        first = int(share * len(passed))
        after, upto = passed[first], passed[min(first + count, len(passed) - 1)]
        if self.cuts_late(after, upto):
            return
        with suppress(OncehouseError):
            self.order(after, upto, is_emptied=True)
            self.fact = [one for one in self.fact if not after < one <= upto]
            self.look()

    def cuts_late(self, after: Position, upto: Position) -> bool:
        """LatePolicy rows of a range that is cut are not seen afterwards; the documentation says so."""
        cut = (
            one
            for one in self.offset().topic_state.segments
            if one.after < upto and after < one.upto and (one.after < after or upto < one.upto)
        )
        there = set(self.fact)
        return any(row not in there for one in cut for row in self.within(one.after, one.upto))

    def order(self, after: Position, upto: Position | None, *, is_emptied: bool = False) -> None:
        backfill_transitions.order_backfill(
            self.store,
            self.topic,
            after=after,
            upto=upto,
            every_seconds=0,
            maxstep_rows=3,
            is_emptied=is_emptied,
            lease_seconds=LEASE_MS / 1000,
        )

    def run_round(self, *, stop_at: int | None = None, dies: bool = True, late: bool = False) -> bool:
        """One round of a fresh process, which dies or fails at an operation; whether something was done."""
        self.processes += 1
        worker = TopicWorker(hostid=f"process{self.processes}", lease_seconds=LEASE_MS / 1000)
        snapshot = self.store.read_all()
        newest = max(self.main, default=None)
        other = None if self.other_ms is None else Position(time_ms=self.other_ms, id=1)
        sources = {
            MAIN: SourceState(table=MAIN, newest=newest),
            OTHER: SourceState(table=OTHER, newest=other),
        }
        clock_ms = newest.time_ms if newest else 0  # the main source is written to all the time
        (decision,) = due_steps(
            (self.topic,),
            snapshot.offsets,
            sources,
            snapshot.now_ms,
            lease_seconds=LEASE_MS / 1000,
            clock_ms=clock_ms,
        )
        if isinstance(decision, DueStep) and not self.find_forward(decision):
            known = {"Fact": EmptyRange(last=decision.offset.last, upper=decision.upper)}
            (decision,) = due_steps(
                (self.topic,),
                snapshot.offsets,
                sources,
                snapshot.now_ms,
                lease_seconds=LEASE_MS / 1000,
                known_empty=known,
                clock_ms=clock_ms,
            )
        if not isinstance(decision, DueStep | ResumeStep | DueJob):
            return False
        span, operations = self.lay_out(decision, worker)
        self.perform(worker, decision.offset, span, operations, stop_at=stop_at, dies=dies, late=late)
        return True

    def find_forward(self, decision: DueStep) -> Range | None:
        end = Position(time_ms=decision.upper_ms, id=1 << 63)
        return find(self, last=decision.offset.last, end=end, most=self.topic.maxstep_rows)

    def lay_out(
        self, decision: DueStep | ResumeStep | DueJob, worker: TopicWorker
    ) -> tuple[Range, tuple[Operation, ...]]:
        seen = decision.offset
        planner = JobPlanner(
            client=self, hostid=worker.hostid, size_range=lambda _topic, _transform, span: span
        )
        if isinstance(decision, DueJob):
            planned = planner.plan(decision, TRANSFORM, COLUMNS)
            return planned.span, planned.operations
        if seen.job_kind and isinstance(decision, ResumeStep):
            job = seen.topic_state.job(JobKind(seen.job_kind))
            due_job = DueJob(
                topic=self.topic,
                offset=seen,
                job_kind=JobKind(seen.job_kind),
                after=seen.last,
                upto=seen.next,
                opened=job.opened,
            )
            planned = planner.plan(due_job, TRANSFORM, COLUMNS)
            begin = WriteNext(topic="Fact", next=seen.next, state=topic_lease.INSERTING)
            return planned.span, (begin, *planned.operations[1:])
        if isinstance(decision, DueStep):
            span = self.find_forward(decision)
        else:
            rows = (seen.topic_state.opened or OpenRange(last=seen.last, next=seen.next, rows=0)).rows
            span = Range(last=seen.last, next=seen.next, rows=rows, is_cut=True)
        assert span is not None
        return span, step_operations(
            self.topic,
            TRANSFORM,
            COLUMNS,
            span,
            hostid=worker.hostid,
            is_fixed=True,
            generation=seen.generation,
        )

    def perform(  # noqa: C901 - a case an operation
        self,
        worker: TopicWorker,
        seen: Offset,
        span: Range,
        operations: tuple[Operation, ...],
        *,
        stop_at: int | None,
        dies: bool,
        late: bool,
    ) -> None:
        begun, frozen = False, None
        for number, operation in enumerate(operations):
            if number == stop_at:
                if begun and not dies:
                    transitions.fail(self.store, worker, seen, "it did not work")
                raise CrashError
            match operation:
                case WriteNext():
                    begun = True
                    transitions.begin(
                        self.store, worker, seen, next_=operation.next, state=operation.state, rows=span.rows
                    )
                case WriteJobRange():
                    begun = True
                    backfill_transitions.begin_job(
                        self.store, worker, seen, operation.job_kind, operation.opened
                    )
                case MarkCovered():
                    backfill_transitions.mark_covered(
                        self.store, worker, seen, operation.after, operation.upto
                    )
                case Freeze():
                    frozen = self.freeze(operation)
                case Insert():
                    self.insert(operation, span, frozen, late=late)
                case WriteLast():
                    transitions.commit(self.store, worker, "Fact", rows=operation.rows, state=operation.state)
                    begun = False
                case Execute():
                    self.frozen = {
                        name: rows for name, rows in self.frozen.items() if name not in operation.sql
                    }

    def freeze(self, operation: Freeze) -> list[Position]:
        name = operation.table.rpartition(".")[2]
        if name not in self.frozen:
            there = set(self.fact)
            missing = [one for one in self.within(operation.last, operation.next) if one not in there]
            self.frozen[name] = missing
        return self.frozen[name]

    def insert(self, operation: Insert, span: Range, frozen: list[Position] | None, *, late: bool) -> None:
        if late and self.within(span.last, span.next):
            self.ids += 1
            first = self.within(span.last, span.next)[0]
            self.main.append(Position(time_ms=first.time_ms, id=self.ids))
        rows = self.within(span.last, span.next)
        if frozen is not None:
            rows = [one for one in rows if one in frozen]
        assert all(row.time_ms <= self.bound_ms() for row in rows), "read past the slowest source"
        if operation.token not in self.tokens:
            self.tokens.add(operation.token)
            self.fact.extend(rows)

    def finish(self) -> None:
        """Sources catch up, nobody dies any more, leases run out, and everything that was left out is ordered."""
        self.arrive(100_000, 1)
        self.other_ms = max(one.time_ms for one in self.main)
        idle = 0
        for _ in range(3000):
            self.store.now_ms += 10 * LEASE_MS
            if self.run_round():
                idle = 0
                continue
            self.look()
            if find_open_gaps(self.offset()) and not self.offset().topic_state.job(JobKind.BACKFILL):
                self.order(START, None)
            idle += 1
            if idle == 3:
                return
        raise AssertionError("it never came to rest")

    def check(self) -> None:
        assert sorted(self.fact) == sorted(one for one in self.main if one.time_ms <= self.bound_ms())
        assert coverage.count_late(self.offset().topic_state.segments) == 0


def find(simulation: EtlSimulation, *, last: Position, end: Position, most: int) -> Range | None:
    rows = simulation.within(last, end)[:most]
    return (rows and Range(last=last, next=rows[-1], rows=len(rows), is_cut=len(rows) >= most)) or None


def find_range(simulation, _table, *, last, upper_ms, upper_id, maxstep_rows):
    return find(simulation, last=last, end=Position(time_ms=upper_ms, id=upper_id), most=maxstep_rows)


def count_range(simulation, _table, *, last, next_):
    return len(simulation.within(last, next_))


def find_end(simulation, _topic, last, next_):
    there = set(simulation.fact)
    missing = [one for one in simulation.within(last, next_) if one not in there]
    return missing[3] if len(missing) > 4 else next_


@pytest.fixture(autouse=True)
def simulated_tables(monkeypatch):
    for one in (find_range, count_range, find_end):
        monkeypatch.setattr(backfill_planner, one.__name__, one)
    monkeypatch.setattr(backfill_planner, "check_repairable", lambda *_arguments: None)


SHARE = st.floats(0, 0.99)
ACTIONS = st.one_of(
    st.tuples(st.just("arrive"), st.integers(0, 5), st.integers(1, 8)),
    st.tuples(st.just("late"), SHARE, st.integers(1, 3)),
    st.tuples(st.just("catch up"), st.integers(0, 8), st.just(0)),
    st.tuples(st.just("run"), st.sampled_from([None, 0, 1, 2, 3, 4, 5]), st.integers(0, 7)),
    st.tuples(st.just("run"), st.none(), st.just(0)),
    st.tuples(st.just("wait"), st.just(0), st.just(0)),
    st.tuples(st.just("look"), st.just(0), st.just(0)),
    st.tuples(st.just("seek"), SHARE, st.sampled_from([0, 0, 3])),
    st.tuples(st.just("empty"), SHARE, st.integers(1, 6)),
    st.tuples(st.just("order"), st.just(0), st.just(0)),
)


def play(simulation: EtlSimulation, actions: list[tuple[str, float | None, int]]) -> None:
    play_on(simulation, actions)
    simulation.finish()
    simulation.check()


def play_on(simulation: EtlSimulation, actions: list[tuple[str, float | None, int]]) -> None:  # noqa: C901 - a case an action
    for kind, first, second in actions:
        with suppress(CrashError, MutexError):
            match kind:
                case "arrive":
                    simulation.arrive(int(first), second)
                case "late":
                    simulation.arrive_late(first, second)
                case "catch up":
                    simulation.other_ms = (simulation.other_ms or 1) + int(first)
                case "run":
                    simulation.run_round(stop_at=first, dies=second % 2 == 0, late=second >= 6)
                case "wait":
                    simulation.store.now_ms += LEASE_MS
                case "look":
                    simulation.look()
                case "seek":
                    simulation.seek(first, second)
                case "empty":
                    simulation.empty(first, second)
                case "order":
                    with suppress(OncehouseError):
                        simulation.order(START, None)


def make_simulation(maxstep: int = 4, delay_ms: int = 0) -> EtlSimulation:
    topic = Topic(
        topic="Fact",
        dst="dwh.fact",
        depends_on=(MAIN, OTHER),
        maxstep_rows=maxstep,
        delay_seconds=delay_ms / 1000,
        late=LatePolicy.REPAIR,
        late_within_seconds=1e9,
    )
    return EtlSimulation(topic=topic)


@given(st.lists(ACTIONS, max_size=40), st.integers(1, 6), st.integers(0, 4))
@settings(
    max_examples=250,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_every_row_arrives_once_whatever_comes_late_is_left_out_or_built_again(actions, maxstep, delay_ms):
    play(make_simulation(maxstep, delay_ms), actions)


EIGHT_ROWS = [("arrive", 1, 2)] * 4 + [("catch up", 50, 0)]
LATE_AND_DEAD = [
    *EIGHT_ROWS,
    ("run", None, 0),
    ("run", None, 0),
    ("late", 0.3, 2),
    ("look", 0, 0),
    ("run", 3, 0),  # lends the row, writes down what is late, inserts; dies before it commits
    ("late", 0.3, 1),
    ("wait", 0, 0),
    ("run", None, 0),
]


def test_late_rows_are_built_once_when_a_process_dies_in_their_repair():
    play(make_simulation(), LATE_AND_DEAD)


def test_a_repair_whose_token_is_that_of_a_step_would_be_caught(monkeypatch):
    """The seeded defect: the table drops the late rows of a range that it has."""
    real = operation_builder.token_of
    monkeypatch.setattr(
        operation_builder,
        "token_of",
        lambda topic, last, next_, generation=0, repair=0: real(topic, last, next_),
    )
    with pytest.raises(AssertionError):
        play(make_simulation(8), LATE_AND_DEAD)


def test_counts_taken_after_the_crash_would_be_caught(monkeypatch):
    """The seeded defect: rows that came between a lost step and its second run count as rows that it had."""
    real = transitions.close_forward
    simulation = make_simulation(8)

    def count_now(topic_state, last, next_, **named):
        named["rows"] = len(simulation.within(last, next_))
        return real(replace(topic_state, opened=None), last, next_, **named)

    monkeypatch.setattr(transitions, "close_forward", count_now)
    died_before_commit = [
        *EIGHT_ROWS,
        ("run", 2, 0),
        ("late", 0.3, 2),
        ("wait", 0, 0),
        ("run", None, 0),
    ]
    with pytest.raises(AssertionError):
        play(simulation, died_before_commit)


REWOUND = [
    *EIGHT_ROWS,
    ("run", None, 0),
    ("run", None, 0),
    ("seek", 0.0, 0),
    ("run", None, 0),
]


def test_a_rewind_builds_everything_again():
    play(make_simulation(), REWOUND)


def test_a_seek_that_leaves_the_tokens_as_they_were_would_be_caught(monkeypatch):
    """The seeded defect: no generation."""
    real = operation_builder.token_of
    monkeypatch.setattr(
        operation_builder, "token_of", lambda topic, last, next_, *_more: real(topic, last, next_)
    )
    with pytest.raises(AssertionError):
        play(make_simulation(), REWOUND)


SKIPPED_ALL = [*EIGHT_ROWS, ("seek", 0, 50), ("order", 0, 0)]


def test_a_back_fill_ends_when_the_forward_runs_have_filled_its_gap():
    simulation = make_simulation(8)
    play_on(simulation, [*SKIPPED_ALL, ("seek", 0.0, 0), ("run", None, 0), ("run", None, 0)])
    simulation.arrive(60, 1)
    simulation.other_ms = 70
    assert simulation.run_round()
    assert (find_open_gaps(simulation.offset()), simulation.offset().topic_state.jobs) == ((), ())


def test_rows_left_out_after_a_rewind_need_a_new_back_fill():
    """The earlier back-fill, whose gap the forward runs have filled, neither fills them nor refuses the new one."""
    simulation = make_simulation(8)
    play_on(
        simulation,
        [
            *SKIPPED_ALL,
            ("seek", 0.0, 0),
            ("arrive", 60, 1),
            ("catch up", 20, 0),
            ("run", None, 0),
            ("run", None, 0),
            ("seek", 0.0, 0),
            ("seek", 0, 70),
            ("run", None, 0),
        ],
    )
    assert simulation.fact == []
    simulation.order(START, simulation.offset().reached)
    play_on(simulation, [("run", None, 0)] * 4)
    simulation.check()


def has_failed_repair() -> EtlSimulation:
    simulation = make_simulation(8)
    play_on(simulation, [*EIGHT_ROWS, ("run", None, 0), ("late", 0.3, 1), ("look", 0, 0)])
    backfill_transitions.fail_planned_job(
        simulation.store, simulation.offset(), JobKind.REPAIR, "its table has no such column"
    )
    assert simulation.offset().topic_state.job(JobKind.REPAIR)
    return simulation


def test_a_repair_ends_when_a_rewind_leaves_no_late_row():
    simulation = has_failed_repair()
    simulation.seek(0.0, 0)
    assert simulation.offset().topic_state.jobs == ()


def test_a_repair_ends_when_the_late_rows_have_gone_from_the_source():
    simulation = has_failed_repair()
    simulation.main.pop()
    simulation.look()
    assert simulation.offset().topic_state.jobs == ()


def test_a_back_fill_leaves_rows_of_the_newest_time_that_are_still_to_come():
    """Nobody repairs late rows here: a row that comes in order must not become one."""
    simulation = make_simulation(8)
    simulation.topic = replace(simulation.topic, late=LatePolicy.COUNT)
    skipped = [("arrive", 1, 1), ("catch up", 50, 0), ("seek", 0, 3), ("order", 0, 0)]
    play(simulation, [*skipped, ("run", None, 0), ("arrive", 0, 1), ("run", None, 0)])


@pytest.fixture
def left_by_0_1(monkeypatch) -> EtlSimulation:
    """A back-fill whose gap the forward runs had filled was left in the row."""
    with monkeypatch.context() as older:
        older.setattr("oncehouse.etl.state.topic_state.end_jobs", lambda topic_state: topic_state)
        simulation = make_simulation(8)
        play_on(simulation, [*SKIPPED_ALL, ("seek", 0.0, 0), ("arrive", 60, 1), ("catch up", 20, 0)])
        play_on(simulation, [("run", None, 0)] * 2)
    assert simulation.offset().topic_state.job(JobKind.BACKFILL)
    return simulation


def test_a_back_fill_that_0_1_left_does_not_refuse_another_one(left_by_0_1):
    reached = left_by_0_1.offset().reached
    left_by_0_1.order(START, reached, is_emptied=True)
    assert left_by_0_1.offset().topic_state.job(JobKind.BACKFILL).upto == reached


def test_a_back_fill_that_0_1_left_gets_no_new_work_by_a_seek(left_by_0_1):
    left_by_0_1.seek(0.0, 0)
    assert left_by_0_1.offset().topic_state.jobs == ()


def test_a_back_fill_that_forgets_its_open_range_would_be_caught(monkeypatch):
    """The seeded defect: after a failure its rows are cut anew."""
    actions = [
        *EIGHT_ROWS,
        ("seek", 0, 3),
        ("order", 0, 0),
        ("run", 2, 1),  # inserted, then it failed
        ("arrive", 0, 1),
        ("late", 0.0, 1),
        ("run", None, 0),
    ]
    play(make_simulation(), actions)
    monkeypatch.setattr("oncehouse.etl.state.backfill_transitions.set_job", forget_open)
    with pytest.raises(AssertionError):
        play(make_simulation(), actions)


def forget_open(topic_state, job_kind, job):
    from oncehouse.etl.state.topic_state import set_job

    return set_job(topic_state, job_kind, job and replace(job, opened=None))


def test_a_back_fill_past_the_slowest_source_would_be_caught(monkeypatch):
    """The seeded defect: it goes as far as it was ordered to."""
    actions = [*EIGHT_ROWS[:4], ("catch up", 1, 0), ("seek", 0, 50), ("order", 0, 0), *[("run", None, 0)] * 3]
    play(make_simulation(), actions)
    anywhere = Position(time_ms=1 << 60, id=1)
    monkeypatch.setattr(
        "oncehouse.etl.scheduler.topic_bound.TopicBounds.settled_of", lambda *_arguments: anywhere
    )
    with pytest.raises(AssertionError, match="slowest"):
        play(make_simulation(), actions)
