"""Performs one topic's step: carries out its operations in their order, and writes the topic's row.

Holds: what `plan_decision` returns is what `perform` does; a range whose insert may have begun is never changed;
whatever fails leaves the range open and the topic free, with a state that says why. Laying a step out is for
`steps/step_planner.py`, changing tables for `steps/table_executor.py`, when to run for the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from oncehouse.clickhouse.client import Client
from oncehouse.clickhouse.replica_sync import read_in_step
from oncehouse.common import failpoints
from oncehouse.etl.quality.expectations import (
    ExpectationError,
    ExpectationOutcome,
    ExpectationResult,
    evaluate,
    explain_stop,
)
from oncehouse.etl.state import topic_lease, transitions
from oncehouse.etl.state.backfill_transitions import begin_job
from oncehouse.etl.state.decision import DueStep, ResumeStep
from oncehouse.etl.state.models import Offset
from oncehouse.etl.state.next_backfill import DueJob
from oncehouse.etl.state.position import Range
from oncehouse.etl.state.topic_lease import INSERTING, TopicWorker
from oncehouse.etl.state.transitions import OffsetStore
from oncehouse.etl.steps.late_row_repair import drop_old_records, record_late_rows
from oncehouse.etl.steps.operation_builder import (
    BLOCK_ROWS,
    before_operations,
)
from oncehouse.etl.steps.operations import (
    Begin,
    Exchange,
    Expect,
    FixRange,
    Freeze,
    RangeSize,
    ReplacePartitions,
    WriteJobRange,
    WriteLast,
    WriteNext,
)
from oncehouse.etl.steps.range_presence import count_blocks
from oncehouse.etl.steps.range_sizing import RangeSizing
from oncehouse.etl.steps.stale_queries import end_inserts
from oncehouse.etl.steps.step_planner import StepPlanner, TopicStep
from oncehouse.etl.steps.table_executor import TableExecutor
from oncehouse.etl.steps.transform_cache import TransformCache


@dataclass(frozen=True, kw_only=True)
class StepDone:
    topic: str
    span: Range
    job_kind: str = field(default="", metadata={"output": "lane"})
    """`backfill` or `repair`, of a step of such a job."""
    warnings: tuple[str, ...] = ()
    """Expectations that did not hold, of those that only warn."""

    @property
    def rows(self) -> int:
        """Rows of the main source that it took."""
        return self.span.rows


Hold = Callable[[str], AbstractContextManager[AbstractContextManager[object]]]
"""Keeps a topic's lease alive inside; yields the lock under which its row may be changed."""


RecordChecks = Callable[[str, Range, tuple[ExpectationResult, ...]], None]
"""Writes down what became of a topic's expectations."""


def discard_checks(_topic: str, _span: Range, _verdicts: tuple[ExpectationResult, ...]) -> None:
    pass


@contextmanager
def hold_without_heartbeat(_topic: str) -> Iterator[AbstractContextManager[object]]:
    yield nullcontext()


class StepRunner:
    def __init__(
        self,
        client: Client,
        store: OffsetStore,
        worker: TopicWorker,
        folder: Path,
        *,
        hold: Hold = hold_without_heartbeat,
        block_rows: int = BLOCK_ROWS,
        note: RecordChecks = discard_checks,
        waited_for: frozenset[str] | None = None,
        shared: frozenset[str] = frozenset(),
    ) -> None:
        """`waited_for` are the tables whose time bounds other topics' steps; None: any may. `shared` are those that
        several topics build."""
        self._client = client
        self._store = store
        self._worker = worker
        self._hold = hold
        self._note = note
        self._sizing = RangeSizing(client, block_rows)
        self._work = TableExecutor(client=client, store=store, worker=worker, sizing=self._sizing)
        self._planner = StepPlanner(
            client=client,
            store=store,
            hostid=worker.hostid,
            preparation=TransformCache(client, folder, store.view_table),
            sizing=self._sizing,
            waited_for=waited_for,
            shared=shared,
        )

    @property
    def planner(self) -> StepPlanner:
        return self._planner

    def plan_decision(
        self, decision: DueStep | ResumeStep | DueJob, found: Range | None = None
    ) -> TopicStep | None:
        """The step's operations; None when its source has no rows in reach. Reads, and writes nothing."""
        return self._planner.plan_decision(decision, found)

    def perform(self, step: TopicStep) -> StepDone:  # noqa: C901 - a branch an operation
        """Raises MutexError when another process has the topic; whatever else fails is written into its state."""
        begun: Offset | None = None
        done = step
        warnings: tuple[str, ...] = ()
        with self._hold(step.topic.topic) as lock:
            try:
                for number in range(len(step.operations)):
                    operation = done.operations[number]
                    if isinstance(operation, WriteNext | WriteJobRange):
                        begun = self._begin(step, operation, lock)
                    elif isinstance(operation, Freeze):
                        done = self._freeze(done, operation)
                    elif isinstance(operation, RangeSize):
                        done = self._size_range(done, lock)
                    elif isinstance(operation, Expect):
                        warnings = self._check_expectations(operation, done)
                    elif isinstance(operation, FixRange):
                        begun = self._fix_range(operation, done, lock)
                    elif isinstance(operation, WriteLast):
                        self._write_last(operation, begun, lock)
                        begun = None
                    else:
                        placed = self._work.carry_out(operation, done)
                        if placed is not None and not _job_kind_of(step):
                            done = _with_rows(done, placed)
            except topic_lease.MutexError:
                raise
            except Exception as error:
                if begun is not None:
                    self._give_up(step, error, lock)
                raise
        return StepDone(
            topic=step.topic.topic,
            span=done.span,
            job_kind=_job_kind_of(step),
            warnings=warnings,
        )

    def give_up(self, seen: Offset, error: Exception) -> None:
        """Write down why a step could not even be planned."""
        transitions.fail(self._store, self._worker, seen, _first_line(error))

    def _give_up(self, step: TopicStep, error: Exception, lock: AbstractContextManager[object]) -> None:
        with lock:
            transitions.fail(self._store, self._worker, step.seen, _first_line(error))

    def _begin(self, step: TopicStep, operation: Begin, lock: AbstractContextManager[object]) -> Offset:
        block_count = count_blocks(self._client, step.topic, step.prepared.destination.facts)
        failpoints.reach("etl-before-next")
        begun = self._write_next(step, operation, lock, block_count)
        failpoints.reach("etl-after-next")
        if step.before is not None:
            end_inserts(self._client, step.topic)
        return begun

    def _write_next(
        self,
        step: TopicStep,
        operation: Begin,
        lock: AbstractContextManager[object],
        block_count: str | None,
    ) -> Offset:
        with lock:
            if isinstance(operation, WriteJobRange):
                return begin_job(
                    self._store,
                    self._worker,
                    step.seen,
                    operation.job_kind,
                    operation.opened,
                    block_count=block_count,
                )
            return transitions.begin(
                self._store,
                self._worker,
                step.seen,
                next_=operation.next,
                state=operation.state,
                rows=step.span.rows,
                block_count=block_count,
            )

    def _write_last(
        self, operation: WriteLast, begun: Offset | None, lock: AbstractContextManager[object]
    ) -> None:
        with lock:
            transitions.commit(
                self._store,
                self._worker,
                operation.topic,
                rows=operation.rows,
                state=operation.state,
                begun=begun,
                is_whole=operation.is_whole,
                splits_time=operation.splits_time,
            )
        failpoints.reach("etl-after-last")

    def _freeze(self, step: TopicStep, operation: Freeze) -> TopicStep:
        """From then on it is known how many rows the repair is about."""
        drop_old_records(self._client, step.topic, operation.number)
        rows = record_late_rows(self._client, step.topic, operation)
        return replace(_with_rows(step, rows), span=replace(step.span, rows=rows))

    def _size_range(self, step: TopicStep, lock: AbstractContextManager[object]) -> TopicStep:
        """Narrow the range until its output fits; what stands before it runs again for the narrower one."""
        while (
            rows := self._sizing.count_output(step.topic, step.prepared.transform, step.span)
        ) > self._sizing.block_rows:
            span = self._sizing.halve(step.topic, step.span, rows)
            with lock:
                transitions.narrow(
                    self._store,
                    self._worker,
                    step.topic.topic,
                    next_=span.next,
                    state=topic_lease.SIZING,
                    rows=span.rows,
                )
            step = self._planner.assemble(step.topic, step.seen, span, step.prepared, is_fixed=False)
            for operation in before_operations(step.topic, step.prepared.transform, span):
                self._work.carry_out(operation, step)
        return step

    def _fix_range(
        self, operation: FixRange, step: TopicStep, lock: AbstractContextManager[object]
    ) -> Offset:
        block_count = count_blocks(self._client, step.topic, step.prepared.destination.facts)
        with lock:
            return transitions.narrow(
                self._store,
                self._worker,
                operation.topic,
                next_=operation.next,
                state=INSERTING,
                rows=operation.rows,
                block_count=block_count,
            )

    def _check_expectations(self, operation: Expect, step: TopicStep) -> tuple[str, ...]:
        """What did not hold and only warns; raises when something did not hold that stops."""
        (row,) = read_in_step(
            self._client,
            step.topic.depends_on,
            lambda reader: reader.query(operation.sql, operation.parameters),
        )
        verdicts = evaluate(operation.expectations, row)
        self._note(operation.topic, step.span, verdicts)
        stopped = [verdict for verdict in verdicts if verdict.outcome == ExpectationOutcome.STOPPED]
        if stopped:
            swap = next(
                (one for one in step.operations if isinstance(one, Exchange | ReplacePartitions)), None
            )
            staging = swap.staging if swap else ""
            why = explain_stop(step.topic, step.span, stopped, job_kind=_job_kind_of(step), staging=staging)
            raise ExpectationError(why)
        return tuple(str(verdict) for verdict in verdicts if verdict.outcome == ExpectationOutcome.WARNED)


def _with_rows(step: TopicStep, rows: int) -> TopicStep:
    """With the number of rows that is written down at its end."""
    operations = (replace(one, rows=rows) if isinstance(one, WriteLast) else one for one in step.operations)
    return replace(step, operations=tuple(operations))


def _job_kind_of(step: TopicStep) -> str:
    return next(
        (str(one.job_kind) for one in step.operations if isinstance(one, WriteJobRange)), step.seen.job_kind
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
