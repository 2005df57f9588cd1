"""`oncehouse run`: the pipeline in a thread of its own, its progress on the screen, and signals that end it.

The main thread only waits and takes signals: the first lets what has begun finish, the second ends at once,
which is safe too, because only what is registered exists. So does the end of the time that a pipeline may take
to stop. Spark would take over SIGINT if it were started on the main thread.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, Self, TypeVar

import typer

from oncehouse.cli.arguments import DEFAULT_FILE, AsJson, File, Logs
from oncehouse.cli.output import show_error, show_json
from oncehouse.cli.pipeline.run_metrics import serve_metrics
from oncehouse.cli.progress_view import ProgressView
from oncehouse.common import structured_logging
from oncehouse.common.json_documents import Answer, Inlined
from oncehouse.common.tracing_export import export_spans
from oncehouse.config.file_loader import load_pipeline
from oncehouse.ledger.models import Stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from oncehouse.pipeline.progress import Progress
    from oncehouse.pipeline.stages.progress_reporter import RunResult

Result = TypeVar("Result")

INTERRUPTED_EXIT_CODE = 130
UNMET_EXIT_CODE = 1

_SIGNAL_CHECK_SECONDS = 0.5


def run(
    file: File = DEFAULT_FILE,
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Bring what is there now to ClickHouse, then end.")
    ] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="End with exit 4 when another process runs the pipeline.")
    ] = False,
    only: Annotated[
        list[Stage] | None,
        typer.Option("--only", help="Run only this stage; other processes run the rest. May be repeated."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="HOST:PORT",
            help="Serve the metrics of the pipeline at /metrics of this address.",
        ),
    ] = None,
    as_json: AsJson = False,
    log_format: Logs = None,  # noqa: ARG001 - its callback acts
) -> None:
    """Run the pipeline until it is stopped."""
    from oncehouse.pipeline.run import run_pipeline

    pipeline = load_pipeline(file)
    structured_logging.add_process_fields(pipeline=pipeline.pipeline)
    try:
        with (
            ProgressView(pipeline=pipeline.pipeline, as_json=as_json) as view,
            export_spans(view.say),
            serve_metrics(file, pipeline.pipeline, metrics, report=view) as report,
            Stop(view.say, within_seconds=pipeline.stop_within) as stop,
        ):
            result = in_thread(
                lambda: run_pipeline(
                    pipeline,
                    once=once,
                    stop=stop.requested,
                    progress=report,
                    say=view.say,
                    wait=not no_wait,
                    only=only or (),
                ),
                gives_up=stop.is_overdue,
            )
    except KeyboardInterrupt:
        # Python would wait for inserts under way before it ends; the second signal asked not to.
        os._exit(INTERRUPTED_EXIT_CODE)
    except OverdueError:
        stop.end_at_once()
    finish(result, as_json=as_json)
    if stop.interrupted:
        raise typer.Exit(INTERRUPTED_EXIT_CODE)
    if once and (result.parked or result.refused):
        raise typer.Exit(UNMET_EXIT_CODE)


class OverdueError(Exception):
    """What had begun did not finish within the time that it may take to stop."""


class Stop:
    """SIGINT and SIGTERM as one request to end; a second one is not waited for."""

    def __init__(self, say: Callable[[str], None], *, within_seconds: float = float("inf")) -> None:
        self.requested = threading.Event()
        self.interrupted = False
        self._say = say
        self._within_seconds = within_seconds
        self._ends_at = float("inf")
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self.requested.is_set():
            raise KeyboardInterrupt
        self.interrupted = number == signal.SIGINT
        self._ends_at = time.monotonic() + self._within_seconds
        self._say("stopping: what has begun is finished first; once more ends at once")
        self.requested.set()

    def is_overdue(self) -> bool:
        return time.monotonic() > self._ends_at

    def end_at_once(self) -> NoReturn:
        show_error(
            f"what had begun did not finish within {self._within_seconds:g} s (stop_within); ended at once",
            hint="nothing is lost or doubled: the next run does it again",
        )
        sys.stderr.flush()
        os._exit(INTERRUPTED_EXIT_CODE if self.interrupted else 0)


def in_thread(work: Callable[[], Result], *, gives_up: Callable[[], bool] = lambda: False) -> Result:
    """Run `work` in another thread than the main one, which stays free for signals; raises what it raises.

    Raises OverdueError, and leaves the work to end with the process, when `gives_up` says so.
    """
    future: Future[Result] = Future()

    def guarded() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - carried over to the thread that waits, whatever it is
            future.set_exception(error)

    # A daemon, so that a second signal can end the process without waiting for it.
    threading.Thread(target=guarded, name="oncehouse-run", daemon=True).start()
    # In steps, because a signal that comes just before a wait begins is only handled when the wait ends.
    while not wait([future], timeout=_SIGNAL_CHECK_SECONDS).done:
        if gives_up():
            raise OverdueError
    return future.result()


@dataclass(frozen=True, kw_only=True)
class RunEnd(Answer, of=("run", "import")):
    event: Literal["end"] = "end"
    progress: Inlined[Progress]
    parked: int
    refused: list[int]
    """Numbers of the requests that could not be performed."""


def finish(result: RunResult, *, as_json: bool) -> None:
    if as_json:
        refused = [request.request for request in result.refused]
        show_json(RunEnd(progress=result.progress, parked=result.parked, refused=refused))
    if result.parked:
        show_error(
            f"{result.parked} batches are parked: ClickHouse refused them for good",
            hint="`oncehouse batches list --status PARKED` shows why, `oncehouse batches retry` tries one again",
        )
    for request in result.refused:
        show_error(f"request {request.request} ({request.kind}) was {request.result}")
