"""The scheduler: rounds that look at everything in a few queries and run what is due in parallel.

A round costs one query for the offsets and one for every few hundred sources, however many topics there are. One
topic's failure is written into its state and leaves the others alone; it rests longer with each failure.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from oncehouse.clickhouse.client import Client
from oncehouse.errors import OncehouseError, TransientError
from oncehouse.etl.lineage.topic import Topic
from oncehouse.etl.quality.check_log import write_checks
from oncehouse.etl.scheduler.due_steps import due_steps
from oncehouse.etl.scheduler.heartbeat import TopicHeartbeat
from oncehouse.etl.scheduler.late_rows import LateRowWatch
from oncehouse.etl.scheduler.lookahead import Lookahead
from oncehouse.etl.scheduler.step_runner import StepDone, StepRunner, discard_checks
from oncehouse.etl.scheduler.topic_bound import find_decisive_tables, find_declared
from oncehouse.etl.settings import AHEAD_SECONDS, LATE_EVERY_SECONDS
from oncehouse.etl.state.backfill_transitions import fail_planned_job
from oncehouse.etl.state.decision import Decision, DueStep, EmptyRange, ResumeStep
from oncehouse.etl.state.next_backfill import DueJob
from oncehouse.etl.state.position import Position
from oncehouse.etl.state.topic_lease import MutexError, TopicWorker
from oncehouse.etl.state.transitions import OffsetSnapshot, OffsetStore
from oncehouse.etl.steps.source_ranges import (
    Sources,
    exclude_future,
    find_range,
    list_source_tables,
    read_sources,
)
from oncehouse.etl.steps.step_planner import TopicStep


@dataclass(frozen=True, kw_only=True)
class NothingToDo:
    """Its source has no rows in reach."""

    topic: str


@dataclass(frozen=True, kw_only=True)
class StepFailed:
    topic: str
    why: str


@dataclass(frozen=True, kw_only=True)
class TopicBusy:
    """Another process was quicker."""

    topic: str
    why: str


StepOutcome = StepDone | NothingToDo | StepFailed | TopicBusy


@dataclass(frozen=True, kw_only=True)
class SchedulerRound:
    decisions: tuple[Decision, ...]
    outcomes: tuple[StepOutcome, ...]

    @property
    def did_something(self) -> bool:
        return any(isinstance(outcome, StepDone) for outcome in self.outcomes)


class Scheduler:
    """Runs topics against one ClickHouse. `close` it, or use it in a `with`."""

    def __init__(
        self,
        client: Client,
        store: OffsetStore,
        topics: Sequence[Topic],
        *,
        folder: Path,
        worker: TopicWorker | None = None,
        parallel: int = 4,
        database: str | None = None,
        late_every_seconds: float = LATE_EVERY_SECONDS,
        ahead_seconds: float = AHEAD_SECONDS,
    ) -> None:
        """`database` is the scheduler's own, where results of expectations are kept; None: they are not.

        `ahead_seconds`: rows of a source that are further in the future are left alone until their time has come.
        """
        self._lineage = tuple(topics)
        self.topics = tuple(topic for topic in topics if not topic.is_source)
        self.worker = worker or TopicWorker(hostid=unique_hostid())
        self._client = client
        self._store = store
        self._heartbeat = TopicHeartbeat(store, self.worker)
        note = discard_checks if database is None else partial(write_checks, client, database)
        waited_for = frozenset(table for topic in self.topics for table in topic.depends_on[1:])
        built = Counter(topic.dst for topic in self.topics)
        self._runner = StepRunner(
            client,
            store,
            self.worker,
            folder,
            hold=self._heartbeat.hold,
            note=note,
            waited_for=waited_for,
            shared=frozenset(table for table, topics in built.items() if topics > 1),
        )
        self._ahead = Lookahead(self._runner.planner.find_next)
        self._pool = ThreadPoolExecutor(max_workers=parallel, thread_name_prefix="oncehouse-etl")
        self._empty: dict[str, EmptyRange] = {}
        """Ranges in which nothing was found, so that they are not asked for again until they change."""
        # Apart, so that backfill jobs never take the places of forward steps.
        self._backfill_pool = ThreadPoolExecutor(
            max_workers=max(1, parallel // 2), thread_name_prefix="oncehouse-etl-side"
        )
        self._backfills: dict[str, Future[StepOutcome]] = {}
        """Topics whose back-fill or repair is under way in this process."""
        self._has_declarations = True
        """Whether sources may be declared to have come further than their rows, by the latest look."""
        self._late = LateRowWatch(client, store, self.topics)
        self._late_every_seconds = late_every_seconds
        self._ahead_ms = round(ahead_seconds * 1000)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Waits for the steps under way."""
        self._pool.shutdown()
        self._backfill_pool.shutdown()
        self._heartbeat.stop()

    def decide(self) -> tuple[Decision, ...]:
        """What every topic would do now."""
        return self._decide(uses_lookahead=False)

    def _decide(self, *, uses_lookahead: bool) -> tuple[Decision, ...]:
        if uses_lookahead:
            self._ahead.ask(self._pool)
        snapshot, sources, declared = self._read()
        clock_ms = snapshot.now_ms if sources.clock_ms is None else sources.clock_ms
        return due_steps(
            self.topics,
            snapshot.offsets,
            exclude_future(
                self._client,
                sources.states,
                clock_ms + self._ahead_ms,
                in_step=find_decisive_tables(self.topics, declared),
            ),
            snapshot.now_ms,
            hostid=self.worker.hostid,
            lease_seconds=self.worker.lease_seconds,
            known_empty=self._empty,
            clock_ms=clock_ms,
            declared=declared,
        )

    def _read(self) -> tuple[OffsetSnapshot, Sources, dict[str, Position]]:
        tables = list_source_tables(self.topics)
        if self._has_declarations:
            # One after the other: what is declared to be in a table must be among the rows that are seen.
            snapshot = self._store.read_all()
            declared = find_declared(self._lineage, snapshot.offsets)
            in_step = find_decisive_tables(self.topics, declared)
            sources = read_sources(self._client, tables, in_step=in_step)
            self._has_declarations = bool(declared)
            return snapshot, sources, declared
        # Concurrently: sources that are seen a moment older than the offsets only make a step shorter.
        sources_read = self._pool.submit(read_sources, self._client, tables)
        snapshot = self._store.read_all()
        sources = sources_read.result()
        self._has_declarations = bool(find_declared(self._lineage, snapshot.offsets))
        return snapshot, sources, {}

    def plan(self, topic: str | None = None) -> tuple[TopicStep | StepFailed, ...]:
        """The steps that a round would perform now, of all topics or of one; nothing is written.

        A topic that cannot be planned stands in its place with the reason, as it would fail in a round.
        """
        planned = (
            self._plan(decision)
            for decision in self.decide()
            if isinstance(decision, DueStep | ResumeStep | DueJob) and topic in {None, decision.topic.topic}
        )
        return tuple(one for one in planned if one is not None)

    def _plan(self, decision: DueStep | ResumeStep | DueJob) -> TopicStep | StepFailed | None:
        try:
            return self._runner.plan_decision(decision)
        except OncehouseError as error:
            return StepFailed(topic=decision.topic.topic, why=str(error))

    def run_round(self, *, waits_for_backfills: bool = True) -> SchedulerRound:
        """One step of every topic that is due, in parallel; waits for all of them.

        Back-fills and repairs may take longer than the round: then a later one reports their outcome.
        """
        decisions = self._decide(uses_lookahead=True)
        free = [one for one in decisions if one.topic.topic not in self._backfills]
        for one in free:
            if isinstance(one, DueJob):
                self._backfills[one.topic.topic] = self._backfill_pool.submit(self._run, one)
        done = tuple(
            self._pool.map(self._run, (one for one in free if isinstance(one, DueStep | ResumeStep)))
        )
        return SchedulerRound(
            decisions=decisions, outcomes=(*done, *self._collect_backfills(waits=waits_for_backfills))
        )

    def _collect_backfills(self, *, waits: bool) -> tuple[StepOutcome, ...]:
        ended = [name for name, due_job in self._backfills.items() if waits or due_job.done()]
        return tuple(self._backfills.pop(name).result() for name in ended)

    def find_late_rows(self, *, at_once: bool = False) -> bool:
        """Count what came late, if it is time to; whether something new was found out."""
        if not at_once and not self._late.take_turn(self._late_every_seconds):
            return False
        return self._late.record() > 0

    def run_until_idle(self, *, most_rounds: int = 10_000) -> tuple[SchedulerRound, ...]:
        """Rounds until one does nothing: for catching up, tests and one-shot jobs."""
        rounds: list[SchedulerRound] = []
        while len(rounds) < most_rounds:
            rounds.append(self.run_round())
            if not rounds[-1].did_something and not self.find_late_rows(at_once=True):
                break
        return tuple(rounds)

    def run(
        self,
        stop: threading.Event,
        *,
        idle_seconds: float = 1.0,
        report: Callable[[SchedulerRound | OncehouseError], None] = lambda _round: None,
    ) -> None:
        """Rounds until `stop` is set; at once again while there is more to do."""
        last_search = -math.inf
        while not stop.is_set():
            try:
                done = self.run_round(waits_for_backfills=False)
                if time.monotonic() - last_search >= self._late_every_seconds:
                    last_search = time.monotonic()
                    self.find_late_rows()
            except TransientError as error:  # ClickHouse or the store is away: nothing to do until it is back
                report(error)
                stop.wait(idle_seconds)
                continue
            report(done)
            if not done.did_something:
                stop.wait(idle_seconds)

    def _run(self, decision: DueStep | ResumeStep | DueJob) -> StepOutcome:
        name = decision.topic.topic
        try:
            found = self._ahead.take(decision) if isinstance(decision, DueStep) else None
            step = self._runner.plan_decision(decision, found)
        except MutexError as error:
            return TopicBusy(topic=name, why=str(error))
        except OncehouseError as error:
            return self._fail(decision, error)
        if step is None:
            if isinstance(decision, DueStep):
                self._empty[name] = self._describe_empty(decision)
            return NothingToDo(topic=name)
        try:
            done = self._runner.perform(step)
        except MutexError as error:
            return TopicBusy(topic=name, why=str(error))
        except OncehouseError as error:
            return StepFailed(topic=name, why=str(error))
        if isinstance(decision, DueStep):
            self._ahead.note(decision, done.span)
        return done

    def _describe_empty(self, due: DueStep) -> EmptyRange:
        last, upper = due.offset.last, due.upper
        if not due.is_delayed:
            return EmptyRange(last=last, upper=upper)
        found = find_range(
            self._client,
            due.topic.depends_on[0],
            last=last,
            # Rows from the future say nothing of when others come.
            upper_ms=upper.time_ms + round(due.topic.delay_seconds * 1000),
            maxstep_rows=1,
        )
        return EmptyRange(last=last, upper=upper, first=found.next if found else None)

    def _fail(self, decision: DueStep | ResumeStep | DueJob, error: OncehouseError) -> StepOutcome:
        try:
            if isinstance(decision, DueJob):
                fail_planned_job(
                    self._store, decision.offset, decision.job_kind, str(error).partition("\n")[0]
                )
            else:
                self._runner.give_up(decision.offset, error)
        except MutexError as taken:
            return TopicBusy(topic=decision.topic.topic, why=str(taken))
        except TransientError:
            pass  # the store is away too; the next round finds the topic as it was
        return StepFailed(topic=decision.topic.topic, why=str(error))


def unique_hostid() -> str:
    """Host, process and a random part: a process that starts again is another one."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
