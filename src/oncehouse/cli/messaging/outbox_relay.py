"""`oncehouse outbox relay`: the relay in a thread of its own, a line of progress, and signals that end it."""

from __future__ import annotations

import os
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, Self

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from oncehouse.cli.arguments import DEFAULT_MESSAGING_FILE, AsJson, Logs, MessagingFile
from oncehouse.cli.output import plain, print_note, say, show_error, show_json, visible
from oncehouse.cli.pipeline.run import INTERRUPTED_EXIT_CODE, UNMET_EXIT_CODE, Stop, in_thread
from oncehouse.common import structured_logging
from oncehouse.common.json_documents import Answer, Inlined

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncehouse.messaging.outbox.relay.progress import RelayProgress
    from oncehouse.messaging.outbox.relay.relay import Relay
    from oncehouse.messaging.settings import MessagingSettings

LINE_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class RelayLine(Answer, of=("outbox relay",)):
    event: Literal["progress", "end"]
    table: str
    progress: Inlined[RelayProgress]


def relay(
    file: MessagingFile = DEFAULT_MESSAGING_FILE,
    *,
    once: Annotated[bool, typer.Option("--once", help="Send what waits now, then end.")] = False,
    as_json: AsJson = False,
    log_format: Logs = None,  # noqa: ARG001 - its callback acts
) -> None:
    """Send committed messages of the outbox to Kafka until stopped. Several processes may run at once."""
    from oncehouse.messaging.settings import load_messaging

    settings = load_messaging(file)
    work = open_relay(settings)
    try:
        with RelayView(table=settings.outbox.table, as_json=as_json) as view, Stop(view.say) as stop:
            done = in_thread(lambda: work.run(stop=stop.requested, once=once, progress=view))
            view.end(done)
    except KeyboardInterrupt:
        os._exit(INTERRUPTED_EXIT_CODE)  # the second signal asked not to wait for what is under way
    if done.parked:
        show_error(
            f"{done.parked} messages were parked: Kafka will not take them as they are, or they wait behind such a one",
            hint="`oncehouse outbox status` shows why, `oncehouse outbox retry` lets them go again",
        )
    if stop.interrupted:
        raise typer.Exit(INTERRUPTED_EXIT_CODE)
    if once and done.parked:
        raise typer.Exit(UNMET_EXIT_CODE)


def open_relay(settings: MessagingSettings) -> Relay:
    from oncehouse.messaging.outbox.relay.relay import Relay

    kafka = settings.require_kafka()
    return Relay(
        database=settings.require_database(),
        bootstrap_servers=kafka.bootstrap_servers,
        options=kafka.options,
        table=settings.outbox.table,
        settings=settings.outbox.relay,
    )


def format_progress(progress: RelayProgress) -> str:
    line = (
        f"sent {progress.sent:,} ({progress.rows_per_second:,.0f}/s), parked {progress.parked:,}, "
        f"buckets {progress.buckets}, relays {progress.relays}"
    )
    if progress.failures:
        line += f", failures {progress.failures:,}, the last: {progress.last_error}"
    return line


class RelayView(AbstractContextManager["RelayView"]):
    """A live line on a terminal, a line now and then without one, or a line of JSON each."""

    def __init__(self, *, table: str, as_json: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._table = table
        self._as_json = as_json
        self._clock = clock
        self._reported_at = float("-inf")
        self._live: Live | None = None
        if not as_json and not structured_logging.is_started() and sys.stdout.isatty():
            self._live = Live(Text(f"{table}: starting"), console=Console(), refresh_per_second=4)

    def __call__(self, progress: RelayProgress) -> None:
        if self._live is not None:
            self._live.update(Text(visible(f"{self._table}: {format_progress(progress)}")))
        elif self._clock() - self._reported_at >= LINE_SECONDS:
            self._reported_at = self._clock()
            self._write("progress", progress)

    def end(self, progress: RelayProgress) -> None:
        if self._live is not None:
            self._live.update(Text(visible(f"{self._table}: {format_progress(progress)}")), refresh=True)
        else:
            self._write("end", progress)

    def say(self, message: str) -> None:
        """Next to the numbers; on standard error, so that it never mixes with JSON."""
        if self._live is None:
            print_note(message)
            return
        self._live.console.print(Text(visible(message)))

    def _write(self, event: Literal["progress", "end"], progress: RelayProgress) -> None:
        if self._as_json:
            show_json(RelayLine(event=event, table=self._table, progress=progress))
        elif structured_logging.is_started():
            print_note(event, table=self._table, **plain(progress))
        else:
            say(f"{self._table}: {format_progress(progress)}")

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
