"""One turn of a worker: renew leases, store outcomes, read messages, and choose what to begin next.

Both loops of `worker` (threads, asyncio) call `turn` repeatedly, one call at a time, and run the messages it returns.
`key_queues` decides which message may run, `row_updates` writes to the table. An unavailable database raises
TransientError; outcomes that were not stored yet are kept for the next turn.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from sqlalchemy import Connection, Engine, select

from oncehouse.errors import FencedError, OncehouseError
from oncehouse.messaging.bucket_leases import BucketLeases, Share
from oncehouse.messaging.database import open_reader, transact
from oncehouse.messaging.inbox.expiry import expire_ids, expire_messages
from oncehouse.messaging.inbox.ids import BUCKETS
from oncehouse.messaging.inbox.key_queues import KeyQueues
from oncehouse.messaging.inbox.row_updates import mark_begun, read_waiting, record_answer, record_failure
from oncehouse.messaging.inbox.tables import ABSENT, InboxState, inbox, lease_tables
from oncehouse.messaging.inbox.types import (
    AttemptFailed,
    AttemptSucceeded,
    AttemptWithdrawn,
    MessageOutcome,
    PendingMessage,
    WorkerSettings,
)

_FIRST_POLL_SECONDS = 0.02
_EXPIRY_SECONDS = 60.0
_DIED = "The worker died while it handled this message, {attempts} times; the handler may crash the process."


@dataclass(frozen=True, kw_only=True)
class Turn:
    begin: tuple[PendingMessage, ...]
    wait_seconds: float
    """When the next turn is due unless an attempt ends earlier."""
    idle: bool
    """No attempt runs, and no message was due."""


@dataclass(kw_only=True)
class WorkCounts:
    done: int = 0
    failed: int = 0
    parked: int = 0
    withdrawn: int = 0


class Dispatcher:
    def __init__(
        self,
        engine: Engine,
        name: str,
        settings: WorkerSettings,
        *,
        holder: str,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.counts = WorkCounts()
        self._engine = engine
        self._name = name
        self._settings = settings
        self._jitter = jitter
        self._leases = BucketLeases(
            engine,
            name=f"inbox:{name}",
            buckets=BUCKETS,
            holder=holder,
            lease_seconds=settings.lease_seconds,
            tables=lease_tables,
        )
        self._queues = KeyQueues(max_attempts=settings.max_attempts)
        self._share: Share | None = None
        self._renew_at = 0.0
        self._read_at = 0.0
        self._expire_at = 0.0
        self._poll_seconds = _FIRST_POLL_SECONDS
        self._delayed_keys: dict[int, float] = {}
        self._unwritten: list[AttemptFailed | AttemptWithdrawn] = []

    def turn(self, ended: Sequence[MessageOutcome]) -> Turn:
        self._accept_outcomes(ended)
        self._write_outcomes()
        self._renew_leases()
        empty = self._read()
        begun = self._begin_next()
        return Turn(
            begin=begun,
            wait_seconds=self._wait_seconds(),
            idle=empty and not (begun or self._queues.running or self._queues.ready),
        )

    def drain(self, ended: Sequence[MessageOutcome]) -> bool:
        """A turn that begins no attempt. True once all running attempts have ended."""
        self._accept_outcomes(ended)
        self._write_outcomes()
        self._queues.keep_only(())
        if self._queues.running:
            self._renew_leases()
        return not self._queues.running

    def leave(self) -> None:
        """Release the buckets, so that other workers need not wait for the leases to expire."""
        if self._share is not None:
            self._leases.leave(self._share.tokens)

    def fence(self, connection: Connection, row: PendingMessage) -> None:
        """Lock the message's bucket until the transaction ends; raises FencedError if another worker holds it."""
        share = self._share
        if share is None or row.bucket not in share.tokens:
            raise FencedError(
                f"inbox:{self._name}: bucket {row.bucket} belongs to another worker by now. Nothing was written."
            )
        self._leases.fence(connection, {row.bucket: share.tokens[row.bucket]})

    def _accept_outcomes(self, ended: Sequence[MessageOutcome]) -> None:
        for outcome in ended:
            self._queues.end(outcome)
            match outcome:
                case AttemptSucceeded():
                    self.counts.done += 1
                case AttemptFailed():
                    self._unwritten.append(outcome)
                    self._delay_key(outcome.waiting.key_hash)
                case AttemptWithdrawn():
                    self.counts.withdrawn += 1
                    self._delay_key(outcome.waiting.key_hash)
                    if outcome.begun:
                        self._unwritten.append(outcome)

    def _delay_key(self, key_hash: int) -> None:
        # A failed message must not be read again before its failure is stored.
        self._delayed_keys[key_hash] = time.monotonic() + self._settings.rest_seconds

    def _write_outcomes(self) -> None:
        while self._unwritten:
            ended = self._unwritten[0]
            with self._transaction("storing the outcome of an attempt") as connection:
                if isinstance(ended, AttemptWithdrawn):
                    # The worker did not die, whatever the reason.
                    record_answer(connection, ended.waiting)
                else:
                    state = record_failure(connection, ended, self._settings, jitter=self._jitter())
            del self._unwritten[0]
            if isinstance(ended, AttemptFailed):
                self._delayed_keys.pop(ended.waiting.key_hash, None)
                self.counts.failed += 1
                self.counts.parked += state is InboxState.PARKED

    def _renew_leases(self) -> None:
        if time.monotonic() < self._renew_at:
            return
        if self._share is None:
            with self._read_connection("looking for its table") as connection:
                connection.execute(select(inbox.c.sequence).limit(1))
        share = self._leases.renew()
        busy = {row.bucket for row in self._queues.running}
        spare = {bucket: share.tokens[bucket] for bucket in share.surplus - busy}
        self._leases.release(spare)
        self._share = Share(
            tokens={bucket: token for bucket, token in share.tokens.items() if bucket not in spare},
            surplus=share.surplus - spare.keys(),
            members=share.members,
            valid_until=share.valid_until,
        )
        self._renew_at = time.monotonic() + self._settings.lease_seconds / 3
        self._queues.keep_only(self._usable_buckets())
        self._expire()

    def _usable_buckets(self) -> set[int]:
        """Buckets in which an attempt may begin now."""
        share = self._share
        if share is None or time.monotonic() > share.valid_until:
            return set()
        return set(share.tokens) - share.surplus

    def _read(self) -> bool:
        """True if the table was read and had no due message."""
        now, ours = time.monotonic(), self._usable_buckets()
        if not ours or self._queues.ready >= self._settings.concurrency or now < self._read_at:
            return False
        self._delayed_keys = {key: until for key, until in self._delayed_keys.items() if until > now}
        with self._read_connection("reading messages") as connection:
            found = read_waiting(
                connection,
                self._name,
                buckets=ours,
                without_keys=self._queues.keys | self._delayed_keys.keys(),
                limit=self._settings.concurrency * 16,
            )
        self._queues.add(found)
        if found:
            self._poll_seconds, self._read_at = _FIRST_POLL_SECONDS, 0.0
        else:
            self._poll_seconds = min(self._poll_seconds * 2, self._settings.poll_seconds)
            self._read_at = time.monotonic() + self._poll_seconds
        return not (found or self._delayed_keys)

    def _begin_next(self) -> tuple[PendingMessage, ...]:
        if not self._usable_buckets():
            return ()
        choice = self._queues.choose(self._settings.concurrency - len(self._queues.running))
        died = [
            AttemptFailed(waiting=row, error=_DIED.format(attempts=row.attempts), final=True)
            for row in choice.park
        ]
        try:
            begun = self._mark(choice.run)
        except OncehouseError:
            begun = {}
            raise
        finally:
            refused = [
                AttemptWithdrawn(waiting=row, reason="held", begun=False)
                for row in choice.run
                if row.sequence not in begun
            ]
            self._accept_outcomes([*died, *refused])
        self._write_outcomes()
        return tuple(
            replace(row, attempts=begun[row.sequence]) for row in choice.run if row.sequence in begun
        )

    def _mark(self, rows: Sequence[PendingMessage]) -> dict[int, int]:
        if not rows:
            return {}
        with self._transaction("beginning messages") as connection:
            return mark_begun(connection, rows)

    def _wait_seconds(self) -> float:
        now = time.monotonic()
        if (
            len(self._queues.running) < self._settings.concurrency
            and self._read_at <= now
            and self._usable_buckets()
        ):
            return 0.0
        return max(0.0, min(self._poll_seconds, self._renew_at - now))

    def _expire(self) -> None:
        if time.monotonic() >= self._expire_at:
            self._expire_at = time.monotonic() + _EXPIRY_SECONDS
            for expire in (expire_ids, expire_messages):
                with self._transaction("cleaning up") as connection:
                    expire(connection)

    def _read_connection(self, doing: str) -> AbstractContextManager[Connection]:
        return open_reader(self._engine, f"Inbox {self._name}: {doing}", absent=ABSENT)

    def _transaction(self, doing: str) -> AbstractContextManager[Connection]:
        return transact(self._engine, f"Inbox {self._name}: {doing}", absent=ABSENT)
