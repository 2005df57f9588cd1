"""How a way through a model's keys looks: a bar on a terminal, plain lines without one, or lines of JSON."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from oncehouse.cli.output import open_console, show_json, visible
from oncehouse.common.json_documents import Answer, Inlined

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from oncehouse.sync.backfill.progress import KeyProgress

INTERVAL_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class KeysDone(Answer, of=("sync backfill", "sync verify", "sync replay")):
    event: Literal["progress"] = "progress"
    progress: Inlined[KeyProgress]


def format_progress(progress: KeyProgress, keys_a_second: float | None) -> str:
    """One line that reads well in a log."""
    share = f" ({min(1.0, progress.keys / progress.estimate):.0%})" if progress.estimate else ""
    left = max(0, progress.estimate - progress.keys)
    pace = f", {keys_a_second:,.0f}/s, {left / keys_a_second:,.0f} s left" if keys_a_second else ""
    return f"{progress.sync}: {progress.doing}: {progress.keys:,} of about {progress.estimate:,} keys{share}{pace}"


class KeyProgressView(AbstractContextManager["KeyProgressView"]):
    """Give it to `backfill` and `verify` as their `report`. Lines keep an interval by `clock`, on standard error."""

    def __init__(self, *, as_json: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._as_json = as_json
        self._clock = clock
        self._reported_at: float | None = None
        self._begun: tuple[str, int, float] | None = None
        self._bars: dict[str, TaskID] = {}
        self._live = None if as_json or not sys.stderr.isatty() else _open_bars()

    def __call__(self, progress: KeyProgress) -> None:
        if self._live is not None:
            self._draw(self._live, progress)
            return
        now = self._clock()
        if self._begun is None or self._begun[0] != progress.sync:
            self._begun = (progress.sync, progress.keys, now)
        if self._reported_at is None or now - self._reported_at >= INTERVAL_SECONDS:
            self._reported_at = now
            self._write(progress, now)

    def _write(self, progress: KeyProgress, now: float) -> None:
        if self._as_json:
            show_json(KeysDone(progress=progress))
            return
        _sync, keys, begun_at = self._begun or ("", 0, now)
        pace = (progress.keys - keys) / (now - begun_at) if now > begun_at else None
        open_console(sys.stderr).print(Text(visible(format_progress(progress, pace))))

    def _draw(self, bars: Progress, progress: KeyProgress) -> None:
        description = visible(f"{progress.sync}: {progress.doing}")
        if progress.sync not in self._bars:
            self._bars[progress.sync] = bars.add_task(description, total=progress.estimate or None)
        bars.update(
            self._bars[progress.sync],
            description=description,
            completed=progress.keys,
            total=progress.estimate or None,
        )

    def say(self, message: str) -> None:
        """A message above the bar."""
        console = self._live.console if self._live is not None else open_console(sys.stderr)
        console.print(Text(visible(message)))

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()


def _open_bars() -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
