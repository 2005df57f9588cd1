"""`oncehouse etl plan` and `oncehouse etl run`: the same steps, printed or performed."""

from __future__ import annotations

import logging
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from oncehouse.cli.arguments import AsJson, Logs
from oncehouse.cli.etl.options import DEFAULT_SETTINGS, Etl, SettingsFile, find_topic, open_etl, read_offsets
from oncehouse.cli.output import plain, print_note, say, show_error, show_json, show_table
from oncehouse.cli.pager import paged
from oncehouse.cli.pipeline.run import INTERRUPTED_EXIT_CODE, Stop
from oncehouse.common import structured_logging
from oncehouse.common.json_documents import Answer, Inlined
from oncehouse.etl.status_text import format_position, without_name

if TYPE_CHECKING:
    from oncehouse.errors import OncehouseError
    from oncehouse.etl.scheduler.scheduler import Scheduler, SchedulerRound, StepFailed
    from oncehouse.etl.scheduler.step_runner import StepDone
    from oncehouse.etl.state.position import Position
    from oncehouse.etl.steps.step_planner import TopicStep

FAILED_EXIT_CODE = 1

OneTopic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic.")]


@dataclass(frozen=True, kw_only=True)
class PlannedOperation:
    operation: str
    text: str


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    topic: str
    dst: str
    last: Position
    next: Position
    rows: int | None
    operations: list[PlannedOperation]


@dataclass(frozen=True, kw_only=True)
class PlannedSteps(Answer, of=("etl plan",)):
    steps: list[PlannedStep]
    failed: list[StepFailed]


@dataclass(frozen=True, kw_only=True)
class ServerAway(Answer, of=("etl run",)):
    event: Literal["away"] = "away"
    why: str


@dataclass(frozen=True, kw_only=True)
class StepDoneEvent(Answer, of=("etl run",)):
    event: Literal["step"] = "step"
    done: Inlined[StepDone]


@dataclass(frozen=True, kw_only=True)
class StepFailedEvent(Answer, of=("etl run",)):
    event: Literal["failed"] = "failed"
    failed: Inlined[StepFailed]


@dataclass(frozen=True, kw_only=True)
class StepsEnd(Answer, of=("etl run",)):
    event: Literal["end"] = "end"
    steps: dict[str, int]
    """How many, by topic."""
    rows: dict[str, int]
    failed: dict[str, str]
    """Topics whose latest step failed, and why."""


@paged()
def plan(file: SettingsFile = DEFAULT_SETTINGS, *, topic: OneTopic = None, as_json: AsJson = False) -> None:
    """Print the steps that `run` would start now, with their SQL; exit 1 if a topic cannot be planned."""
    from oncehouse.etl.scheduler.scheduler import StepFailed

    with open_etl(file) as etl:
        if topic is not None:
            find_topic(etl, topic)
        read_offsets(etl)
        with open_scheduler(etl) as scheduler:
            planned = scheduler.plan(topic)
    failed = [one for one in planned if isinstance(one, StepFailed)]
    if as_json:
        steps = [_describe_step(one) for one in planned if not isinstance(one, StepFailed)]
        show_json(PlannedSteps(steps=steps, failed=failed))
    else:
        _show_plan(planned)
    if failed:
        raise typer.Exit(FAILED_EXIT_CODE)


def _show_plan(planned: tuple[TopicStep | StepFailed, ...]) -> None:
    from oncehouse.etl.scheduler.scheduler import StepFailed

    for one in planned:
        if isinstance(one, StepFailed):
            say(f"-- {one.topic} cannot be planned:")
            say("   " + without_name(one.topic, one.why).strip().replace("\n", "\n   ") + "\n")
        else:
            _show_step(one)
    if not planned:
        say("nothing is due; `oncehouse etl status` says why")


def open_scheduler(etl: Etl) -> Scheduler:
    from oncehouse.etl.scheduler.scheduler import Scheduler, unique_hostid
    from oncehouse.etl.state.topic_lease import TopicWorker

    worker = TopicWorker(hostid=unique_hostid(), lease_seconds=etl.settings.lease)
    return Scheduler(
        etl.client,
        etl.store,
        etl.lineage,
        folder=etl.folder,
        worker=worker,
        parallel=etl.settings.parallel,
        database=etl.settings.database,
        late_every_seconds=etl.settings.late_every,
        ahead_seconds=etl.settings.ahead,
    )


def _describe_step(step: TopicStep) -> PlannedStep:
    from oncehouse.etl.steps.explain import explain, operation_name

    operations = [
        PlannedOperation(operation=operation_name(operation), text=explain(operation))
        for operation in step.operations
    ]
    return PlannedStep(
        topic=step.topic.topic,
        dst=step.topic.dst,
        last=step.span.last,
        next=step.span.next,
        rows=step.span.rows,
        operations=operations,
    )


def _show_step(step: TopicStep) -> None:
    from oncehouse.etl.steps.explain import explain

    span = f"after {_format_position(step.span.last)} up to {_format_position(step.span.next)}"
    rows = f", {step.span.rows:,} rows of {step.topic.depends_on[0]}" if step.span.rows else ""
    say(f"-- {step.topic.topic} → {step.topic.dst}: {span}{rows}")
    for number, operation in enumerate(step.operations, start=1):
        say(f"{number}. " + explain(operation).strip().replace("\n", "\n   "))
    say("")


def _format_position(position: Position) -> str:
    return format_position(position) if position.time_ms else "the start"


def run(
    file: SettingsFile = DEFAULT_SETTINGS,
    *,
    once: Annotated[bool, typer.Option("--once", help="Run steps until none is due, then end.")] = False,
    as_json: AsJson = False,
    log_format: Logs = None,  # noqa: ARG001 - its callback acts
) -> None:
    """Run the steps that are due until stopped. Several processes may run at once: each topic has one."""
    from oncehouse.cli.etl.app import sync_lineage

    report = Report(as_json=as_json)
    with open_etl(file) as etl:
        read_offsets(etl)
        sync_lineage(etl)
        try:
            with Stop(print_note) as stop, open_scheduler(etl) as scheduler:
                if once:
                    _run_once(scheduler, stop, report)
                else:
                    scheduler.run(stop.requested, report=report.take)
        except KeyboardInterrupt:
            # Python would wait for inserts under way before it ends; the second signal asked not to.
            os._exit(INTERRUPTED_EXIT_CODE)
    report.finish()
    if stop.interrupted:
        raise typer.Exit(INTERRUPTED_EXIT_CODE)
    if once and report.failed:
        raise typer.Exit(FAILED_EXIT_CODE)


def _run_once(scheduler: Scheduler, stop: Stop, report: Report) -> None:
    while not stop.requested.is_set():
        done = scheduler.run_round()
        report.take(done)
        if not done.did_something and not scheduler.find_late_rows(at_once=True):
            return


def _describe_outcome(done: StepDone) -> str:
    step = f"{done.topic}: {done.rows:,} rows" + (f" ({done.job_kind})" if done.job_kind else "")
    return "\n".join([step, *(f"{done.topic}: warning: {one}" for one in done.warnings)])


@dataclass(kw_only=True)
class Report:
    """What a run has done: a line for each step and failure, and a table at its end."""

    as_json: bool
    steps: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    """Topics whose latest step failed, and why."""

    def take(self, done: SchedulerRound | OncehouseError) -> None:
        from oncehouse.errors import OncehouseError
        from oncehouse.etl.scheduler.scheduler import StepFailed
        from oncehouse.etl.scheduler.step_runner import StepDone

        if isinstance(done, OncehouseError):
            self._line(ServerAway(why=str(done)), f"waiting: {done}")
            return
        for outcome in done.outcomes:
            if isinstance(outcome, StepDone):
                self.steps[outcome.topic] += 1
                self.rows[outcome.topic] += outcome.rows
                self.failed.pop(outcome.topic, None)
                self._line(StepDoneEvent(done=outcome), _describe_outcome(outcome))
            elif isinstance(outcome, StepFailed):
                self.failed[outcome.topic] = outcome.why
                self._line(
                    StepFailedEvent(failed=outcome),
                    f"{outcome.topic}: {without_name(outcome.topic, outcome.why)}",
                )

    def _line(self, event: ServerAway | StepDoneEvent | StepFailedEvent, text: str) -> None:
        if self.as_json:
            show_json(event)
        elif structured_logging.is_started():
            level = logging.INFO if isinstance(event, StepDoneEvent) else logging.WARNING
            print_note(text, level, **plain(event))
        else:
            say(text)

    def finish(self) -> None:
        if self.as_json:
            show_json(StepsEnd(steps=self.steps, rows=self.rows, failed=self.failed))
            return
        if self.steps or not self.failed:
            show_table(
                ["topic", "steps", "rows of the main source"],
                [(topic, count, self.rows[topic]) for topic, count in self.steps.items()],
                empty="nothing was due",
            )
        if self.failed:
            show_error(
                f"the latest step of {', '.join(self.failed)} failed",
                hint="`oncehouse etl status` shows why and when it is tried again",
            )
