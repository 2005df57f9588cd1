"""How a running pipeline looks: a live view on a terminal, plain lines without one, or a line of JSON each.

Rendering is pure. The view shows the newest `Progress` it was given, from whatever thread it comes, and the
last one always, so that the end of a run is never left out.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from oncehouse.cli.output import open_console, plain, print_note, say, show_json, visible
from oncehouse.common import structured_logging
from oncehouse.common.json_documents import Answer, Inlined
from oncehouse.pipeline.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

PLAIN_INTERVAL_SECONDS = 5.0
STILL_INTERVAL_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class RunProgress(Answer, of=("run", "import")):
    event: Literal["progress"] = "progress"
    progress: Inlined[Progress]


def format_lag(lag: int | None) -> str:
    return "?" if lag is None else f"{lag:,}"


def format_remainder(progress: Progress) -> tuple[str, str]:
    """What is left: of an import how much is done, of a stream how far it lags behind."""
    if progress.done_share is not None:
        return "done", f"{progress.done_share:.0%}"
    return "lag", format_lag(progress.lag)


def format_rare_counts(progress: Progress) -> str:
    """Counts that most pipelines never have; printed where there are any, so that the counts add up to `read`."""
    skipped = f"skipped {progress.skipped:,}, " if progress.skipped else ""
    return f"{skipped}waiting for a schema {progress.waiting:,}, " if progress.waiting else skipped


def plain_line(progress: Progress) -> str:
    """One line that reads well in a log."""
    return (
        f"read {progress.read:,} ({progress.events_per_second:,.0f}/s), new {progress.new:,}, "
        f"duplicate {progress.duplicate:,}, dead letters {progress.rejected:,}, {format_rare_counts(progress)}"
        f"batches waiting {progress.batches_waiting:,}, in ClickHouse {progress.rows_in_clickhouse:,}, "
        f"{' '.join(format_remainder(progress))}"
    )


def write_line(progress: Progress) -> None:
    say(plain_line(progress))


def log_line(progress: Progress) -> None:
    """The numbers as fields; those that are not known are left out."""
    values = {name: value for name, value in plain(progress).items() if value is not None}
    print_note("progress", **values)


def write_json(progress: Progress) -> None:
    show_json(RunProgress(progress=progress))


def render(progress: Progress, *, pipeline: str) -> Table:
    """The live view: what came in on the left, where it is on the right."""
    table = Table(box=None, pad_edge=False, show_header=False, title=Text(pipeline), title_justify="left")
    for style in ("dim", "", "dim", ""):
        table.add_column(
            style=style, justify="right" if not style else "left", min_width=12 if not style else 0
        )
    alarm = "red" if progress.rejected else ""
    table.add_row("read", f"{progress.read:,}", "events/s", f"{progress.events_per_second:,.0f}")
    table.add_row("new", f"{progress.new:,}", "rows in ClickHouse", f"{progress.rows_in_clickhouse:,}")
    table.add_row("duplicate", f"{progress.duplicate:,}", "batches waiting", f"{progress.batches_waiting:,}")
    table.add_row("dead letters", Text(f"{progress.rejected:,}", style=alarm), *format_remainder(progress))
    if progress.skipped:
        table.add_row("skipped", f"{progress.skipped:,}")
    if progress.waiting:
        table.add_row("waiting for a schema", f"{progress.waiting:,}")
    return table


@dataclass(kw_only=True)
class LineInterval:
    """Which values are worth a line: what has changed, soon; what stands still, seldom."""

    last: Progress | None = None
    at: float = 0.0

    def is_due(self, progress: Progress, now: float) -> bool:
        still = self.last is not None and replace(progress, events_per_second=0.0) == self.last
        interval_seconds = STILL_INTERVAL_SECONDS if still else PLAIN_INTERVAL_SECONDS
        if self.last is not None and now - self.at < interval_seconds:
            return False
        self.last, self.at = replace(progress, events_per_second=0.0), now
        return True


class ProgressView(AbstractContextManager["ProgressView"]):
    """Give it to `run_pipeline` as its `progress`. Lines, also of JSON, keep an interval by `clock`."""

    def __init__(
        self, *, pipeline: str, as_json: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pipeline = pipeline
        logging_ = structured_logging.is_started()
        self._write = write_json if as_json else log_line if logging_ else write_line
        self._clock = clock
        self._line_interval = LineInterval()
        self._lock = threading.Lock()
        self._held: Progress | None = None
        self._live = None if as_json or logging_ or not sys.stdout.isatty() else self._open_live()

    def _open_live(self) -> Live:
        # Until the first numbers come Spark is being started, or another process is waited for.
        beginning = render(Progress(), pipeline=f"{self._pipeline}: starting")
        return Live(beginning, console=Console(), refresh_per_second=4)

    def __call__(self, progress: Progress) -> None:
        if self._live is not None:
            self._live.update(render(progress, pipeline=self._pipeline))
            return
        with self._lock:
            self._held = progress
            if self._line_interval.is_due(progress, self._clock()):
                self._flush()

    def say(self, message: str) -> None:
        """A message next to the numbers; on standard error, so that it never mixes with JSON."""
        if structured_logging.is_started():
            print_note(message, logging.WARNING)
            return
        console = self._live.console if self._live is not None else open_console(sys.stderr)
        console.print(Text(visible(message)))

    def _flush(self) -> None:
        if self._held is not None:
            self._write(self._held)
        self._held = None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start(refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        with self._lock:
            self._flush()
