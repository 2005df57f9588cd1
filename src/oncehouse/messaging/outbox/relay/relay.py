"""The relay: sends committed outbox rows to Kafka, at least once each and in order by key. Relays share the work.

The relay's thread renews the bucket leases, assigns the buckets to its workers, and polls for rows while workers are
idle; the workers send them. No position is stored: the table says which rows wait, so a row whose transaction commits
late is found like any other.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pydantic import SecretStr

from oncehouse.common.database import open_engine
from oncehouse.errors import TransientError
from oncehouse.messaging.bucket_leases import BucketLeases, Share
from oncehouse.messaging.outbox.relay.progress import RelayProgress, Throughput
from oncehouse.messaging.outbox.relay.sender import KafkaSender
from oncehouse.messaging.outbox.relay.settings import RelaySettings
from oncehouse.messaging.outbox.relay.sql_store import SqlStore
from oncehouse.messaging.outbox.relay.types import RelayStore, Sender
from oncehouse.messaging.outbox.relay.worker import RelayRound, RelayWorker
from oncehouse.messaging.outbox.tables import (
    BUCKETS,
    DEFAULT_TABLE,
    OutboxTables,
    outbox_tables,
    require_tables,
)

if TYPE_CHECKING:
    from sqlalchemy import Engine

_MAX_WAIT_SECONDS = 0.5
_UNNOTIFIED_POLL_SECONDS = 1.0
_RETRY_SECONDS = 1.0
_BUSY_SECONDS = 2.0
_QUIET_SECONDS = 0.4
_CLEAN_SECONDS = 10.0

OpenSender = Callable[[Callable[[], bool]], Sender]
"""Opens a worker's sender; the argument returns whether the worker may continue."""


class Relay:
    """`Relay(database=…, bootstrap_servers=…).run()` in a process of its own, or in a thread with a `stop` event."""

    def __init__(
        self,
        *,
        database: str,
        bootstrap_servers: str,
        options: Mapping[str, str | SecretStr] | None = None,
        table: str = DEFAULT_TABLE,
        settings: RelaySettings | None = None,
        open_sender: OpenSender | None = None,
    ) -> None:
        self._settings = settings or RelaySettings()
        self._tables = outbox_tables(table)
        self._engine = open_engine(database, setting="database", ping=False)
        self._store = open_store(self._engine, self._tables, keep=self._settings.keep is not None)
        self._open_sender = open_sender or (
            lambda may_continue: KafkaSender(
                bootstrap_servers,
                options or {},
                positions=self._settings.keep is not None,
                may_continue=may_continue,
            )
        )
        self.holder = f"{socket.gethostname()} pid {os.getpid()} #{uuid.uuid4().hex[:6]}"
        self._leases = BucketLeases(
            self._engine,
            name=self._tables.name,
            buckets=BUCKETS,
            holder=self.holder,
            lease_seconds=self._settings.lease,
            tables=self._tables.leases,
        )

    def run(
        self,
        *,
        stop: threading.Event | None = None,
        once: bool = False,
        progress: Callable[[RelayProgress], None] = lambda _: None,
    ) -> RelayProgress:
        """Relay until `stop` is set or, with `once`, until no row waits. Drains before it returns."""
        try:
            require_tables(self._engine, self._tables)
            run = _Run(self, stop or threading.Event(), progress)
            try:
                run.loop(once=once)
            finally:
                run.drain()
        finally:
            self._store.close()
        return run.progress()


def open_store(engine: Engine, tables: OutboxTables, *, keep: bool) -> RelayStore:
    if engine.dialect.name == "postgresql":
        from oncehouse.messaging.outbox.relay.postgres_store import PostgresStore

        return PostgresStore(engine, tables, keep=keep)
    return SqlStore(engine, tables, keep=keep)


@dataclass(frozen=True, kw_only=True)
class IdlePolling:
    """When an idle relay polls again: soon after it found rows, ever later while it finds none."""

    shortest_seconds: float = 0.05
    longest_seconds: float = 5.0
    wait_seconds: float = 0.05

    def after(self, *, found: bool) -> IdlePolling:
        wait = self.shortest_seconds if found else min(self.longest_seconds, self.wait_seconds * 2)
        return IdlePolling(
            shortest_seconds=self.shortest_seconds, longest_seconds=self.longest_seconds, wait_seconds=wait
        )


class _Run:
    """One call of `Relay.run`."""

    def __init__(self, relay: Relay, stop: threading.Event, report: Callable[[RelayProgress], None]) -> None:
        self._settings = relay._settings  # noqa: SLF001 - `_Run` is one call of that relay
        self._store = relay._store  # noqa: SLF001
        self._leases = relay._leases  # noqa: SLF001
        self._stop = stop
        self._report = report
        self._share = Share(tokens={}, surplus=frozenset(), members=0, valid_until=0.0)
        self._drain_expired = False
        self._throughput = Throughput()
        unnotified = min(self._settings.idle_poll, _UNNOTIFIED_POLL_SECONDS)
        self._polling = IdlePolling(
            longest_seconds=self._settings.idle_poll if self._store.wakes else unnotified
        )
        self._renew_at = self._poll_at = self._clean_at = 0.0
        self._busy_since: float | None = None
        self._asleep = False
        self._workers = [
            RelayWorker(
                store=self._store,
                sender=relay._open_sender(may_continue),  # noqa: SLF001
                limits=self._settings.limits,
                backoff=self._settings.backoff,
                may_continue=may_continue,
                on_round=self._record_round,
            )
            for may_continue in (
                partial(self._may_continue, number) for number in range(self._settings.lanes)
            )
        ]
        self._threads = [
            threading.Thread(target=worker.run, name=f"oncehouse-relay-{number}", daemon=True)
            for number, worker in enumerate(self._workers)
        ]

    def loop(self, *, once: bool) -> None:
        for thread in self._threads:
            thread.start()
        while not self._stop.is_set():
            self._raise_worker_errors()
            now = time.monotonic()
            try:
                if now >= self._renew_at:
                    self._renew_leases()
                self._release_surplus()
                if now >= self._poll_at:
                    waiting = self._poll()
                    if once and not waiting and self._is_done():
                        return
                self._clean(now)
                self._sleep()
            except TransientError as error:
                self._record_round(RelayRound(error=str(error)))
                self._stop.wait(_RETRY_SECONDS)

    def drain(self) -> None:
        """Let rounds under way finish within the drain time; then release the buckets to other relays."""
        for worker in self._workers:
            worker.stop()
        ends = time.monotonic() + self._settings.drain
        for thread in self._threads:
            if thread.ident is not None:
                self._join(thread, ends)
        with suppress(TransientError):  # the leases expire by themselves
            self._leases.leave(self._share.tokens)
        self._raise_worker_errors()

    def _join(self, thread: threading.Thread, ends: float) -> None:
        while thread.is_alive():
            thread.join(min(_MAX_WAIT_SECONDS, max(0.01, ends - time.monotonic())))
            # After the drain time senders abandon unacknowledged rows, which are sent again later.
            self._drain_expired = time.monotonic() >= ends
            if time.monotonic() >= self._renew_at:
                self._keep_leases()

    def _keep_leases(self) -> None:
        try:
            self._renew_leases()
        except TransientError:
            self._renew_at = time.monotonic() + _RETRY_SECONDS

    def progress(self) -> RelayProgress:
        return self._throughput.progress(buckets=len(self._share.tokens), relays=self._share.members)

    def _may_continue(self, worker: int) -> bool:
        share = self._share
        # A lease renewed after a pause may have a new token: rows claimed under the old one may be another relay's now.
        return (
            not self._drain_expired
            and time.monotonic() < share.valid_until
            and self._workers[worker].holds(share.tokens)
        )

    def _record_round(self, done: RelayRound) -> None:
        self._throughput.add(done)
        self._report(self.progress())

    def _renew_leases(self) -> None:
        self._renew_at = time.monotonic() + _RETRY_SECONDS
        before = set(self._share.tokens.items())
        self._share = self._leases.renew(asleep=self._asleep)
        self._renew_at = time.monotonic() + self._settings.lease / 3
        mine = {b: token for b, token in self._share.tokens.items() if b not in self._share.surplus}
        for number, worker in enumerate(self._workers):
            worker.assign({b: token for b, token in mine.items() if b % len(self._workers) == number})
        if set(self._share.tokens.items()) - before:
            self._poll_at = 0.0

    def _release_surplus(self) -> None:
        if not self._share.surplus:
            return
        busy = frozenset().union(*(worker.under_way() for worker in self._workers))
        free = {b: self._share.tokens[b] for b in self._share.surplus - busy}
        if free:
            self._leases.release(free)
            self._renew_leases()

    def _poll(self) -> bool:
        """Wake the workers whose buckets have waiting rows."""
        idle = [number for number, worker in enumerate(self._workers) if worker.is_idle]
        buckets = [
            b for b in self._share.tokens if b % len(self._workers) in idle and b not in self._share.surplus
        ]
        waiting = self._store.find_waiting(buckets) if buckets else set()
        for number in {b % len(self._workers) for b in waiting}:
            self._workers[number].wake()
        busy = bool(waiting) or len(idle) < len(self._workers)
        self._polling = self._polling.after(found=busy)
        self._poll_at = time.monotonic() + self._polling.wait_seconds
        self._update_asleep(busy=busy)
        return bool(waiting)

    def _update_asleep(self, *, busy: bool) -> None:
        """Ask writers for notifications only while the relay is idle: each notification delays a commit."""
        now = time.monotonic()
        self._busy_since = (self._busy_since or now) if busy else None
        if self._asleep and self._busy_since is not None and now - self._busy_since > _BUSY_SECONDS:
            self._set_asleep(asleep=False)
        if (
            self._store.wakes
            and not self._asleep
            and not busy
            and self._polling.wait_seconds >= _QUIET_SECONDS
        ):
            self._set_asleep(asleep=True)
            self._poll_at = 0.0  # rows may have been committed before writers saw the change

    def _set_asleep(self, *, asleep: bool) -> None:
        self._leases.set_asleep(asleep=asleep)
        self._asleep = asleep

    def _is_done(self) -> bool:
        return all(worker.is_idle for worker in self._workers) and not self._store.find_waiting(
            range(BUCKETS)
        )

    def _clean(self, now: float) -> None:
        keep = self._settings.keep
        if keep is None or now < self._clean_at:
            return
        cleaned = self._store.clean(keep_seconds=keep, rows=self._settings.clean_rows)
        full = cleaned == self._settings.clean_rows
        self._clean_at = now + (self._polling.shortest_seconds if full else _CLEAN_SECONDS)

    def _sleep(self) -> None:
        due = [self._renew_at, self._poll_at, *([self._clean_at] if self._settings.keep is not None else [])]
        seconds = min(_MAX_WAIT_SECONDS, max(0.0, min(due) - time.monotonic()))
        if self._asleep and seconds:
            started = time.monotonic()
            if self._store.wait_for_wake(seconds):
                self._poll_at = 0.0
                return
            seconds -= time.monotonic() - started
        if seconds > 0:
            self._stop.wait(seconds)

    def _raise_worker_errors(self) -> None:
        for worker in self._workers:
            if worker.error is not None:
                raise worker.error
