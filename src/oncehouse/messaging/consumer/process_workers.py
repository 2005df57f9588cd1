"""Runs plain handlers in separate processes: if one dies (killed, out of memory, a crash in C), the attempt failed.

A process is started with `spawn`, imports the handler's module and handles one batch after another; records are sent as
bytes. What a handler has sent without an answer is kept here, and goes to the process that gets the repeat. Cancelled
handlers are killed, and so are those still running when the consumer ends.
"""

from __future__ import annotations

import atexit
import multiprocessing
import pickle
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any

from oncehouse.errors import ConfigurationError, OncehouseError
from oncehouse.messaging.consumer.batch import Batch
from oncehouse.messaging.consumer.partition_tasks import Executor
from oncehouse.messaging.consumer.records import MemoryRecord, Records
from oncehouse.messaging.consumer.workers import HandlerJob
from oncehouse.messaging.sent_batches import SentBatches

_SPAWN = multiprocessing.get_context("spawn")
_EXIT_SECONDS = 2.0


class WorkerDiedError(OncehouseError):
    """The process of a handler ended without an answer."""


class HandlerError(OncehouseError):
    """The error of a handler whose exception could not be pickled."""


@dataclass(kw_only=True)
class _Worker:
    process: Any
    pipe: Connection
    cancelled: bool = False


@dataclass(kw_only=True)
class ProcessWorkers:
    executor: Executor
    _lock: Lock = field(default_factory=Lock)
    _idle: list[_Worker] = field(default_factory=list)
    _working: dict[int, _Worker] = field(default_factory=dict)
    _sent: dict[str, Any] = field(default_factory=dict)
    """What handlers have sent without an answer: a process that is killed cannot say so any more."""
    _closed: bool = False

    def __post_init__(self) -> None:
        # At exit Python terminates child processes and waits for them; these ignore SIGTERM.
        atexit.register(self.close)

    def start(self, job: HandlerJob) -> None:
        self.executor.submit(lambda: self._run(job))

    def _run(self, job: HandlerJob) -> None:
        try:
            job.done(self._request(job))
        except BaseException as error:  # noqa: BLE001 - any error is a failed attempt
            job.done(error)

    def _request(self, job: HandlerJob) -> BaseException | None:
        worker = self._accept_records(job)
        try:
            worker.pipe.send_bytes(pack(job.batch, self._read_sent()))
            while (answer := pickle.loads(worker.pipe.recv_bytes()))[0] == "sent":  # noqa: S301 - of our own child
                self._keep_sent(*answer[1])
            kind, content = answer
        except (EOFError, OSError) as error:
            worker.process.join(_EXIT_SECONDS)
            raise WorkerDiedError(
                f"the process of the handler ended with {describe_exit(worker.process.exitcode)}"
            ) from error
        finally:
            self._release(job, worker)
        if kind == "handled":
            return None
        return content if isinstance(content, BaseException) else HandlerError(content)

    def _read_sent(self) -> dict[str, Any]:
        with self._lock:
            return dict(self._sent)

    def _keep_sent(self, key: str, sent: Any) -> None:
        with self._lock:
            if sent is None:
                self._sent.pop(key, None)
            else:
                self._sent[key] = sent

    def _accept_records(self, job: HandlerJob) -> _Worker:
        with self._lock:
            if job.cancelled or self._closed:
                raise WorkerDiedError("the batch was cancelled before its process began")
            worker = self._pop_living()
        if worker is None:
            worker = _start(job.handler)
        with self._lock:
            self._working[id(job)] = worker
            if job.cancelled or self._closed:  # while it started
                worker.cancelled = True
                worker.process.kill()
        return worker

    def _pop_living(self) -> _Worker | None:
        """A process that died while idle must not fail the next batch."""
        while self._idle:
            worker = self._idle.pop()
            if worker.process.is_alive():
                return worker
            _end(worker)
        return None

    def _release(self, job: HandlerJob, worker: _Worker) -> None:
        with self._lock:
            self._working.pop(id(job), None)
            if worker.process.is_alive() and not worker.cancelled and not self._closed:
                self._idle.append(worker)
                return
        _end(worker)

    def cancel(self, job: HandlerJob) -> None:
        with self._lock:
            job.flag.is_set = True
            worker = self._working.get(id(job))
            if worker is not None:
                worker.cancelled = True
                worker.process.kill()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle = [*self._idle]
            self._idle.clear()
            # The threads that wait for answers close their pipes; a second close could hit another file.
            for worker in self._working.values():
                worker.process.kill()
        for worker in idle:
            _end(worker)
        atexit.unregister(self.close)


def _start(handler: Callable[[Batch], Any]) -> _Worker:
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=serve, args=(handler, theirs), daemon=True, name="oncehouse-handler")
    try:
        process.start()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"isolation='process' needs a handler that can be imported by name; {handler!r} cannot: {error}"
        ) from error
    theirs.close()
    return _Worker(process=process, pipe=ours)


def _end(worker: _Worker) -> None:
    worker.process.kill()
    worker.process.join(_EXIT_SECONDS)
    worker.pipe.close()


def serve(handler: Callable[[Batch], Any], pipe: Connection) -> None:
    """The main loop of the child process: batches in, answers out, until the pipe is closed."""
    # Ctrl-C reaches the whole process group, and some supervisors send SIGTERM to all processes: the consumer decides
    # when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def report(key: str, sent: Any) -> None:
        pipe.send_bytes(pickle.dumps(("sent", (key, sent))))

    while True:
        try:
            batch = unpack(pipe.recv_bytes(), report)
        except (EOFError, OSError):
            return
        try:
            handler(batch)
        except Exception as error:  # noqa: BLE001 - sent to the consumer, which decides
            pipe.send_bytes(pack_error(error))
        else:
            pipe.send_bytes(pickle.dumps(("handled", None)))


def pack(batch: Batch, sent: dict[str, Any]) -> bytes:
    messages = [
        (message.offset, message.key, message.value, message.headers, message.timestamp_ms)
        for message in batch
    ]
    where = (
        batch.topic,
        batch.partition,
        batch.first_offset,
        batch.last_offset,
        batch.attempt,
        batch.source,
        batch.group,
    )
    return pickle.dumps((where, messages, sent), protocol=pickle.HIGHEST_PROTOCOL)


def unpack(packed: bytes, report: Callable[[str, Any], None]) -> Batch:
    where, messages, sent = pickle.loads(packed)  # noqa: S301 - the parent wrote it
    topic, partition, first, last, attempt, source, group = where
    raw = [MemoryRecord(topic, partition, *message) for message in messages]
    return Batch(
        Records(raw),
        topic=topic,
        partition=partition,
        first_offset=first,
        last_offset=last,
        attempt=attempt,
        source=source,
        group=group,
        sent=SentBatches(sent, report),
    )


def pack_error(error: Exception) -> bytes:
    """The exception itself if it can be pickled, because its class matters; otherwise its text."""
    try:
        packed = pickle.dumps(("failed", error))
        pickle.loads(packed)  # noqa: S301 - what was packed in the line before
    except Exception:  # noqa: BLE001 - pickling a user's exception can fail in any way
        return pickle.dumps(("failed", f"{type(error).__name__}: {error}"))
    return packed


def describe_exit(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"
