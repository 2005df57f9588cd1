"""The relay: takes committed outbox rows to Kafka, each at least once, in order by key, together with other relays.

This thread holds the leases, shares the buckets out to its lanes, looks for rows while lanes are idle, and ends. The
lanes do the work. Nothing remembers how far it has come: what waits is what the table says, so a row that commits late
is found like any other.
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
from oncehouse.messaging.outbox.relay.worker import Lane, Round
from oncehouse.messaging.outbox.tables import BUCKETS, DEFAULT_TABLE, OutboxTables, check_made, outbox_tables

if TYPE_CHECKING:
    from sqlalchemy import Engine

_HEARING_SECONDS = 0.5
_UNHEARD_POLL_SECONDS = 1.0
_TEND_AGAIN_SECONDS = 1.0
_BUSY_SECONDS = 2.0
_QUIET_SECONDS = 0.4
_CLEAN_SECONDS = 10.0

OpenSender = Callable[[Callable[[], bool]], Sender]
"""Makes a lane's sender; what it is given says whether the lane may go on."""


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
            lambda may_go_on: KafkaSender(
                bootstrap_servers,
                options or {},
                positions=self._settings.keep is not None,
                may_go_on=may_go_on,
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
        """Relay until `stop` is set or, with `once`, until nothing waits any more. Drains before it returns."""
        try:
            check_made(self._engine, self._tables)
            run = _Run(self, stop or threading.Event(), progress)
            try:
                run.go(once=once)
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

    def __init__(self, relay: Relay, stop: threading.Event, tell: Callable[[RelayProgress], None]) -> None:
        self._settings = relay._settings  # noqa: SLF001 - two halves of one thing
        self._store = relay._store  # noqa: SLF001
        self._leases = relay._leases  # noqa: SLF001
        self._stop = stop
        self._tell = tell
        self._share = Share(tokens={}, surplus=frozenset(), members=0, valid_until=0.0)
        self._hurry = False
        self._throughput = Throughput()
        unheard = min(self._settings.idle_poll, _UNHEARD_POLL_SECONDS)
        self._polling = IdlePolling(
            longest_seconds=self._settings.idle_poll if self._store.wakes else unheard
        )
        self._tend_at = self._look_at = self._clean_at = 0.0
        self._busy_since: float | None = None
        self._asleep = False
        self._lanes = [
            Lane(
                store=self._store,
                sender=relay._open_sender(may_go_on),  # noqa: SLF001
                limits=self._settings.limits,
                backoff=self._settings.backoff,
                may_go_on=may_go_on,
                tell=self._hear,
            )
            for may_go_on in (partial(self._may_go_on, number) for number in range(self._settings.lanes))
        ]
        self._threads = [
            threading.Thread(target=lane.run, name=f"oncehouse-lane-{number}", daemon=True)
            for number, lane in enumerate(self._lanes)
        ]

    def go(self, *, once: bool) -> None:
        for thread in self._threads:
            thread.start()
        while not self._stop.is_set():
            self._raise_what_lanes_raised()
            now = time.monotonic()
            try:
                if now >= self._tend_at:
                    self._tend()
                self._release_surplus()
                if now >= self._look_at:
                    waiting = self._look()
                    if once and not waiting and self._is_done():
                        return
                self._clean(now)
                self._sleep()
            except TransientError as error:
                self._hear(Round(error=str(error)))
                self._stop.wait(_TEND_AGAIN_SECONDS)

    def drain(self) -> None:
        """Let rounds under way finish, within a bound; then others may have our buckets at once."""
        for lane in self._lanes:
            lane.stop()
        ends = time.monotonic() + self._settings.drain
        for thread in self._threads:
            if thread.ident is not None:
                self._join(thread, ends)
        with suppress(TransientError):  # the leases run out by themselves
            self._leases.leave(self._share.tokens)
        self._raise_what_lanes_raised()

    def _join(self, thread: threading.Thread, ends: float) -> None:
        while thread.is_alive():
            thread.join(min(_HEARING_SECONDS, max(0.01, ends - time.monotonic())))
            # Past the bound senders give up what is under way: it was not acknowledged, so it is sent again later.
            self._hurry = time.monotonic() >= ends
            if time.monotonic() >= self._tend_at:
                self._keep_leases()

    def _keep_leases(self) -> None:
        try:
            self._tend()
        except TransientError:
            self._tend_at = time.monotonic() + _TEND_AGAIN_SECONDS

    def progress(self) -> RelayProgress:
        return self._throughput.progress(buckets=len(self._share.tokens), relays=self._share.members)

    def _may_go_on(self, lane: int) -> bool:
        share = self._share
        # A lease renewed after a pause may be another one: what was claimed under the former is others' by now.
        return (
            not self._hurry and time.monotonic() < share.valid_until and self._lanes[lane].holds(share.tokens)
        )

    def _hear(self, done: Round) -> None:
        self._throughput.add(done)
        self._tell(self.progress())

    def _tend(self) -> None:
        self._tend_at = time.monotonic() + _TEND_AGAIN_SECONDS
        before = set(self._share.tokens.items())
        self._share = self._leases.tend(asleep=self._asleep)
        self._tend_at = time.monotonic() + self._settings.lease / 3
        mine = {b: token for b, token in self._share.tokens.items() if b not in self._share.surplus}
        for number, lane in enumerate(self._lanes):
            lane.assign({b: token for b, token in mine.items() if b % len(self._lanes) == number})
        if set(self._share.tokens.items()) - before:
            self._look_at = 0.0

    def _release_surplus(self) -> None:
        if not self._share.surplus:
            return
        busy = frozenset().union(*(lane.under_way() for lane in self._lanes))
        free = {b: self._share.tokens[b] for b in self._share.surplus - busy}
        if free:
            self._leases.release(free)
            self._tend()

    def _look(self) -> bool:
        """Wake the lanes that have something to do."""
        idle = [number for number, lane in enumerate(self._lanes) if lane.is_idle]
        buckets = [
            b for b in self._share.tokens if b % len(self._lanes) in idle and b not in self._share.surplus
        ]
        waiting = self._store.find_waiting(buckets) if buckets else set()
        for number in {b % len(self._lanes) for b in waiting}:
            self._lanes[number].wake()
        busy = bool(waiting) or len(idle) < len(self._lanes)
        self._polling = self._polling.after(found=busy)
        self._look_at = time.monotonic() + self._polling.wait_seconds
        self._note_busy(busy=busy)
        return bool(waiting)

    def _note_busy(self, *, busy: bool) -> None:
        """Writers are asked for notifications only while there is little to do: each makes commits wait."""
        now = time.monotonic()
        self._busy_since = (self._busy_since or now) if busy else None
        if self._asleep and self._busy_since is not None and now - self._busy_since > _BUSY_SECONDS:
            self._say_asleep(asleep=False)
        if (
            self._store.wakes
            and not self._asleep
            and not busy
            and self._polling.wait_seconds >= _QUIET_SECONDS
        ):
            self._say_asleep(asleep=True)
            self._look_at = 0.0  # what was committed before writers could know

    def _say_asleep(self, *, asleep: bool) -> None:
        self._leases.say_asleep(asleep=asleep)
        self._asleep = asleep

    def _is_done(self) -> bool:
        return all(lane.is_idle for lane in self._lanes) and not self._store.find_waiting(range(BUCKETS))

    def _clean(self, now: float) -> None:
        keep = self._settings.keep
        if keep is None or now < self._clean_at:
            return
        cleaned = self._store.clean(keep_seconds=keep, rows=self._settings.clean_rows)
        full = cleaned == self._settings.clean_rows
        self._clean_at = now + (self._polling.shortest_seconds if full else _CLEAN_SECONDS)

    def _sleep(self) -> None:
        due = [self._tend_at, self._look_at, *([self._clean_at] if self._settings.keep is not None else [])]
        seconds = min(_HEARING_SECONDS, max(0.0, min(due) - time.monotonic()))
        if self._asleep and seconds:
            started = time.monotonic()
            if self._store.wait_for_wake(seconds):
                self._look_at = 0.0
                return
            seconds -= time.monotonic() - started
        if seconds > 0:
            self._stop.wait(seconds)

    def _raise_what_lanes_raised(self) -> None:
        for lane in self._lanes:
            if lane.error is not None:
                raise lane.error
