"""Runs handlers: plain ones in threads, async ones in an event loop. Any exception of a handler is a failed attempt.

Threads are started as needed and are daemons: one that never returns blocks neither the consumer nor the end of the
process. Threads cannot be stopped; async handlers are cancelled by CancelledError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Protocol

from oncehouse.messaging.consumer.batch import Batch
from oncehouse.messaging.consumer.events import Ticket
from oncehouse.messaging.consumer.partition_tasks import Executor

Done = Callable[[BaseException | None], None]


@dataclass(kw_only=True)
class CancelFlag:
    """Separate from the job: a batch that refers to its job would be a cycle, freed only by the garbage collector."""

    is_set: bool = False


@dataclass(kw_only=True)
class HandlerJob:
    ticket: Ticket
    handler: Callable[[Batch], Any]
    batch: Batch
    done: Done
    """Called once, from any thread, with the handler's exception or None."""
    flag: CancelFlag

    @property
    def cancelled(self) -> bool:
        return self.flag.is_set


class Workers(Protocol):
    def start(self, job: HandlerJob) -> None: ...

    def cancel(self, job: HandlerJob) -> None:
        """Its result is no longer needed. `done` may still be called."""
        ...

    def close(self) -> None: ...


class ThreadExecutor:
    """Daemon threads, as many as are needed at once; idle ones are reused."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = Lock()
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = 0
        self._threads = 0

    def submit(self, task: Callable[[], None]) -> None:
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self._threads += 1
                Thread(target=self._run, name=f"{self._name}-{self._threads}", daemon=True).start()
            self._tasks.put(task)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
            # Not kept during the next wait, where it would keep the records of a batch alive.
            del task
            with self._lock:
                self._idle += 1

    def close(self) -> None:
        with self._lock:
            for _ in range(self._threads):
                self._tasks.put(None)


class ThreadWorkers:
    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def start(self, job: HandlerJob) -> None:
        self._executor.submit(lambda: run_plain(job))

    def cancel(self, job: HandlerJob) -> None:
        job.flag.is_set = True

    def close(self) -> None:
        pass


def run_plain(job: HandlerJob) -> None:
    if job.cancelled:  # while it waited for a thread
        return
    try:
        job.handler(job.batch)
    except BaseException as error:  # noqa: BLE001 - SystemExit of a handler ends its attempt, not the consumer
        job.done(error)
    else:
        job.done(None)


class LoopWorkers:
    """Async handlers in an event loop: the caller's, or one of its own in a thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._own = loop is None
        self._loop = loop or asyncio.new_event_loop()
        self._tasks: dict[Ticket, asyncio.Task[None]] = {}
        self._thread = Thread(target=self._serve, name="oncehouse-loop", daemon=True)
        if self._own:
            self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def start(self, job: HandlerJob) -> None:
        self._loop.call_soon_threadsafe(self._begin, job)

    def _begin(self, job: HandlerJob) -> None:
        task = self._loop.create_task(_run_async(job))
        self._tasks[job.ticket] = task
        task.add_done_callback(lambda _: self._tasks.pop(job.ticket, None))

    def cancel(self, job: HandlerJob) -> None:
        job.flag.is_set = True
        self._loop.call_soon_threadsafe(self._cancel, job.ticket)

    def _cancel(self, ticket: Ticket) -> None:
        if ticket in self._tasks:
            self._tasks[ticket].cancel()

    def close(self) -> None:
        if self._own:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _end(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        # A handler that ignores its cancellation is abandoned with the loop.
        await asyncio.wait(tasks, timeout=1.0) if tasks else None
        await self._loop.shutdown_asyncgens()


async def _run_async(job: HandlerJob) -> None:
    try:
        await job.handler(job.batch)
    except BaseException as error:  # noqa: BLE001 - an exception that leaves the task would end the loop
        job.done(error)
    else:
        job.done(None)
