"""Performs one topic's step: carries out its operations in their order.

Holds: what `plan_decision` returns is what `perform` does; a range whose insert may have begun is never changed;
whatever fails leaves the range open and the topic free, with a state that says why. Laying a step out is for
`step_planner.py`, when to run for the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from oncehouse import crash
from oncehouse.clickhouse.client import Client, failure_of
from oncehouse.errors import OncehouseError, PermanentError
from oncehouse.etl import mutex, offsets, swaps
from oncehouse.etl.destinations import (
    Presence,
    explain_overflow,
    find_presence,
)
from oncehouse.etl.expectations import (
    ExpectationError,
    Outcome,
    Verdict,
    explain_stop,
    judge,
)
from oncehouse.etl.lanes import begin_side, mark_covered
from oncehouse.etl.mutex import INSERTING, Worker
from oncehouse.etl.offsets import OffsetStore
from oncehouse.etl.operations import (
    Begin,
    Exchange,
    Execute,
    Expect,
    Fit,
    FixRange,
    Freeze,
    Insert,
    MarkCovered,
    Operation,
    ReplacePartitions,
    WriteLast,
    WriteNext,
    WriteSide,
)
from oncehouse.etl.planning import Due, Resume
from oncehouse.etl.preparing import Preparation
from oncehouse.etl.records import Offset, Template
from oncehouse.etl.repairs import count_built, drop_left, freeze
from oncehouse.etl.sides import Side
from oncehouse.etl.sizing import Sizing
from oncehouse.etl.sources import Range
from oncehouse.etl.statements import (
    BLOCK_ROWS,
    before_operations,
)
from oncehouse.etl.step_planner import Step, StepPlanner
from oncehouse.etl.takeovers import end_inserts, make_query_id

_TOO_MANY_PARTS = 252


@dataclass(frozen=True, kw_only=True)
class Done:
    topic: str
    span: Range
    lane: str = ""
    warnings: tuple[str, ...] = ()
    """Expectations that did not hold, of those that only warn."""

    @property
    def rows(self) -> int:
        """Rows of the main source that it took."""
        return self.span.rows


Hold = Callable[[str], AbstractContextManager[AbstractContextManager[object]]]
"""Keeps a topic's lease alive inside; yields the lock under which its row may be changed."""


Note = Callable[[str, Range, tuple[Verdict, ...]], None]
"""Writes down what became of a topic's expectations."""


def note_nowhere(_topic: str, _span: Range, _verdicts: tuple[Verdict, ...]) -> None:
    pass


@contextmanager
def hold_without_heartbeat(_topic: str) -> Iterator[AbstractContextManager[object]]:
    yield nullcontext()


class Runner:
    def __init__(
        self,
        client: Client,
        store: OffsetStore,
        worker: Worker,
        folder: Path,
        *,
        hold: Hold = hold_without_heartbeat,
        block_rows: int = BLOCK_ROWS,
        note: Note = note_nowhere,
        waited_for: frozenset[str] | None = None,
    ) -> None:
        """`waited_for` are the tables whose time bounds other topics' steps; None: any may."""
        self._client = client
        self._store = store
        self._worker = worker
        self._hold = hold
        self._note = note
        self._sizing = Sizing(client, block_rows)
        self._planner = StepPlanner(
            client=client,
            store=store,
            hostid=worker.hostid,
            preparation=Preparation(client, folder, store.view_table),
            sizing=self._sizing,
            waited_for=waited_for,
        )

    @property
    def planner(self) -> StepPlanner:
        return self._planner

    def plan_decision(self, decision: Due | Resume | Side, found: Range | None = None) -> Step | None:
        """The step's operations; None when its source has no rows in reach. Reads, and writes nothing."""
        return self._planner.plan_decision(decision, found)

    def perform(self, step: Step) -> Done:  # noqa: C901 - a branch an operation
        """Raises MutexError when another process has the topic; whatever else fails is written into its state."""
        begun: Offset | None = None
        done = step
        warnings: tuple[str, ...] = ()
        with self._hold(step.topic.topic) as lock:
            try:
                for number in range(len(step.operations)):
                    operation = done.operations[number]
                    if isinstance(operation, WriteNext | WriteSide):
                        begun = self._begin(step, operation, lock)
                    elif isinstance(operation, Freeze):
                        done = self._freeze(done, operation)
                    elif isinstance(operation, Fit):
                        done = self._fit_range(done, lock)
                    elif isinstance(operation, Expect):
                        warnings = self._look(operation, done)
                    elif isinstance(operation, FixRange):
                        begun = self._fix_range(operation, lock)
                    elif isinstance(operation, WriteLast):
                        self._write_last(operation, begun, lock)
                        begun = None
                    else:
                        self._carry_out(operation, done)
            except mutex.MutexError:
                raise
            except Exception as error:
                if begun is not None:
                    self._give_up(step, error, lock)
                raise
        return Done(
            topic=step.topic.topic,
            span=done.span,
            lane=_lane_of(step),
            warnings=warnings,
        )

    def give_up(self, seen: Offset, error: Exception) -> None:
        """Write down why a step could not even be planned."""
        offsets.fail(self._store, self._worker, seen, _first_line(error))

    def _give_up(self, step: Step, error: Exception, lock: AbstractContextManager[object]) -> None:
        with lock:
            offsets.fail(self._store, self._worker, step.seen, _first_line(error))

    def _begin(self, step: Step, operation: Begin, lock: AbstractContextManager[object]) -> Offset:
        crash.reach("etl-before-next")
        begun = self._write_next(step, operation, lock)
        crash.reach("etl-after-next")
        if step.before is not None:
            end_inserts(self._client, step.topic)
        return begun

    def _write_next(self, step: Step, operation: Begin, lock: AbstractContextManager[object]) -> Offset:
        with lock:
            if isinstance(operation, WriteSide):
                return begin_side(self._store, self._worker, step.seen, operation.lane, operation.opened)
            return offsets.begin(
                self._store,
                self._worker,
                step.seen,
                next_=operation.next,
                state=operation.state,
                rows=step.span.rows,
            )

    def _write_last(
        self, operation: WriteLast, begun: Offset | None, lock: AbstractContextManager[object]
    ) -> None:
        with lock:
            offsets.commit(
                self._store,
                self._worker,
                operation.topic,
                rows=operation.rows,
                state=operation.state,
                begun=begun,
                is_whole=operation.is_whole,
                splits_time=operation.splits_time,
            )
        crash.reach("etl-after-last")

    def _freeze(self, step: Step, operation: Freeze) -> Step:
        """From then on it is known how many rows the repair is about."""
        drop_left(self._client, step.topic, operation.number)
        rows = freeze(self._client, step.topic, operation)
        operations = tuple(
            replace(one, rows=rows) if isinstance(one, WriteLast) else one for one in step.operations
        )
        return replace(step, span=replace(step.span, rows=rows), operations=operations)

    def _fit_range(self, step: Step, lock: AbstractContextManager[object]) -> Step:
        """Narrow the range until its output fits; what stands before it runs again for the narrower one."""
        while (
            rows := self._sizing.count_output(step.prepared.transform, step.span)
        ) > self._sizing.block_rows:
            span = self._sizing.halve(step.topic, step.span, rows)
            with lock:
                offsets.narrow(
                    self._store,
                    self._worker,
                    step.topic.topic,
                    next_=span.next,
                    state=mutex.SIZING,
                    rows=span.rows,
                )
            step = self._planner.assemble(step.topic, step.seen, span, step.prepared, is_fixed=False)
            for operation in before_operations(step.topic, step.prepared.transform, span):
                self._carry_out(operation, step)
        return step

    def _fix_range(self, operation: FixRange, lock: AbstractContextManager[object]) -> Offset:
        with lock:
            return offsets.narrow(
                self._store,
                self._worker,
                operation.topic,
                next_=operation.next,
                state=INSERTING,
                rows=operation.rows,
            )

    def _look(self, operation: Expect, step: Step) -> tuple[str, ...]:
        """What did not hold and only warns; raises when something did not hold that stops."""
        (row,) = self._client.query(operation.sql, operation.parameters)
        verdicts = judge(operation.expectations, row)
        self._note(operation.topic, step.span, verdicts)
        stopped = [verdict for verdict in verdicts if verdict.outcome == Outcome.STOPPED]
        if stopped:
            raise ExpectationError(explain_stop(step.topic, step.span, stopped, lane=_lane_of(step)))
        return tuple(str(verdict) for verdict in verdicts if verdict.outcome == Outcome.WARNED)

    def _carry_out(self, operation: Operation, step: Step) -> None:
        match operation:
            case Insert():
                self._insert(operation, step)
            case Execute():
                self._client.command(operation.sql, operation.parameters)
            case Exchange():
                self._check_mine(step)
                swaps.exchange(self._client, operation)
            case ReplacePartitions():
                self._check_mine(step)
                swaps.replace_partitions(self._client, operation)
            case MarkCovered():
                mark_covered(self._store, self._worker, step.seen, operation.after, operation.upto)
            case WriteNext() | WriteSide() | Freeze() | Fit() | Expect() | FixRange() | WriteLast():
                raise AssertionError(f"{operation} changes no tables")

    def _check_mine(self, step: Step) -> None:
        """A host that slept must not put in place what another one is building by now."""
        row = self._store.read_all().offsets.get(step.topic.topic)
        mutex.check_held(row or mutex.blank(step.topic.topic), self._worker)

    def _insert(self, operation: Insert, step: Step) -> None:
        if step.topic.template == Template.STEP and step.before is not None:
            frozen = next((one for one in step.operations if isinstance(one, Freeze)), None)
            presence = find_presence(
                self._client,
                step.topic,
                step.before,
                now_ms=self._store.read_all().now_ms,
                count_expected=lambda: self._sizing.count_output(step.prepared.transform, step.span, frozen),
                count_found=partial(count_built, self._client, step.topic, frozen) if frozen else None,
            )
            if presence is Presence.THERE:
                return
        if step.prepared.transform.guard_table is None:
            # The insert itself cannot look whether the topic is still this host's.
            offsets.beat(self._store, self._worker, step.topic.topic)
        settings = {**operation.settings, "query_id": make_query_id(step.topic)}
        try:
            self._client.command(operation.sql, operation.parameters, settings)
        except OncehouseError as error:
            if failure_of(error).code == _TOO_MANY_PARTS and "partitions for single INSERT" in str(error):
                raise PermanentError(explain_overflow(step.topic, step.prepared.narrowest)) from error
            raise
        crash.reach("etl-after-insert")


def _lane_of(step: Step) -> str:
    return next((str(one.lane) for one in step.operations if isinstance(one, WriteSide)), step.seen.lane)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
