"""Workers of a stored inbox: attempts run in threads, or as tasks of an event loop, over one dispatcher.

Both loops are the same: a turn of the dispatcher, begin the messages it returns, wait until an attempt ends or the next
turn is due. After a stop no attempt begins, running ones may end within the drain time, and the buckets are released.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from oncehouse.errors import TransientError
from oncehouse.messaging.inbox.dispatcher import Dispatcher, Turn, WorkCounts
from oncehouse.messaging.inbox.handler_call import HandlerCaller
from oncehouse.messaging.inbox.types import MessageOutcome, PendingMessage

_UNAVAILABLE_SECONDS = 1.0


class InboxWorker:
    """Handles the messages of one stored inbox. Several workers, in any number of processes, share it."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        attempts: HandlerCaller,
        *,
        concurrency: int,
        drain_seconds: float,
        report: Callable[[TransientError], None] | None = None,
        dispose: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`dispose` closes resources of the event loop of one `run_async`."""
        self._dispatcher = dispatcher
        self._attempts = attempts
        self._concurrency = concurrency
        self._drain_seconds = drain_seconds
        self._report = report or (lambda _error: None)
        self._dispose = dispose
        self._stop = threading.Event()
        self._wake: Callable[[], object] = lambda: None

    @property
    def counts(self) -> WorkCounts:
        return self._dispatcher.counts

    def stop(self) -> None:
        """Begin no further attempt; `run` returns once running ones have ended. Callable from any thread."""
        self._stop.set()
        self._wake()

    def run(self, *, once: bool = False) -> None:
        """Work until `stop`; with `once` until nothing is due."""
        if inspect.iscoroutinefunction(self._attempts.handler):
            asyncio.run(self.run_async(once=once))
            return
        ended: queue.SimpleQueue[MessageOutcome | None] = queue.SimpleQueue()
        todo: queue.SimpleQueue[PendingMessage | None] = queue.SimpleQueue()
        self._wake = lambda: ended.put(None)
        self._start_threads(todo, ended)
        outcomes: list[MessageOutcome] = []
        try:
            while not self._stop.is_set():
                taken, outcomes = outcomes, []
                turn = self._turn(taken)
                for row in turn.begin:
                    todo.put(row)
                if once and turn.idle:
                    break
                outcomes = _collect(ended, turn.wait_seconds)
        finally:
            until = time.monotonic() + self._drain_seconds
            while not self._drained(outcomes) and time.monotonic() < until:
                outcomes = _collect(ended, 0.1)
            for _ in range(self._concurrency):
                todo.put(None)
            self._leave()

    def _start_threads(
        self, todo: queue.SimpleQueue[PendingMessage | None], ended: queue.SimpleQueue[MessageOutcome | None]
    ) -> None:
        def serve() -> None:
            while (row := todo.get()) is not None:
                ended.put(self._attempts.run(row))

        for number in range(self._concurrency):
            # Daemons: a handler that never returns must not keep the process from ending.
            threading.Thread(target=serve, name=f"oncehouse-inbox-{number}", daemon=True).start()

    async def run_async(self, *, once: bool = False) -> None:
        """As `run`, for async handlers, in the running event loop."""
        ended: asyncio.Queue[MessageOutcome | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        self._wake = lambda: loop.call_soon_threadsafe(ended.put_nowait, None)
        tasks: set[asyncio.Task[None]] = set()

        async def attempt(row: PendingMessage) -> None:
            ended.put_nowait(await self._attempts.run_async(row))

        outcomes: list[MessageOutcome] = []
        try:
            while not self._stop.is_set():
                taken, outcomes = outcomes, []
                turn = await asyncio.to_thread(self._turn, taken)
                for row in turn.begin:
                    task = loop.create_task(attempt(row))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                if once and turn.idle:
                    break
                outcomes = await _collect_async(ended, turn.wait_seconds)
        finally:
            until = time.monotonic() + self._drain_seconds
            while not await asyncio.to_thread(self._drained, outcomes) and time.monotonic() < until:
                outcomes = await _collect_async(ended, 0.1)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.to_thread(self._drained, await _collect_async(ended, 0.0))
            await asyncio.to_thread(self._leave)
            if self._dispose is not None:
                await self._dispose()

    def _turn(self, ended: Sequence[MessageOutcome]) -> Turn:
        """A turn that survives an unavailable database, without beginning an attempt."""
        try:
            return self._dispatcher.turn(ended)
        except TransientError as error:
            self._report(error)
            return Turn(begin=(), wait_seconds=_UNAVAILABLE_SECONDS, idle=False)

    def _drained(self, ended: Sequence[MessageOutcome]) -> bool:
        try:
            return self._dispatcher.drain(ended)
        except TransientError as error:
            self._report(error)
            return False

    def _leave(self) -> None:
        # A lease that could not be released expires by itself.
        with suppress(TransientError):
            self._dispatcher.leave()


def _collect(ended: queue.SimpleQueue[MessageOutcome | None], wait_seconds: float) -> list[MessageOutcome]:
    """Ended attempts, after waiting for the first one. None only wakes the loop."""
    outcomes: list[MessageOutcome] = []
    with suppress(queue.Empty):
        outcome = ended.get(timeout=wait_seconds) if wait_seconds > 0 else ended.get_nowait()
        while True:
            if outcome is not None:
                outcomes.append(outcome)
            outcome = ended.get_nowait()
    return outcomes


async def _collect_async(
    ended: asyncio.Queue[MessageOutcome | None], wait_seconds: float
) -> list[MessageOutcome]:
    outcomes: list[MessageOutcome] = []
    with suppress(asyncio.QueueEmpty, TimeoutError):
        async with asyncio.timeout(wait_seconds):
            outcome = await ended.get()
        while True:
            if outcome is not None:
                outcomes.append(outcome)
            outcome = ended.get_nowait()
    return outcomes
