"""One turn of a worker: leases tended, outcomes written down, messages read, and what to begin next.

Both shells (threads, asyncio) call `turn` again and again from one place at a time and run what it gives them; which
message may run is decided by `queues.py`, what is written by `taking.py`. A database that is away shows as
TransientError; whatever was not written down yet is kept for the next turn.
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
from oncehouse.messaging.database import reading, transact
from oncehouse.messaging.inbox.expiry import expire_ids, expire_messages
from oncehouse.messaging.inbox.ids import BUCKETS
from oncehouse.messaging.inbox.key_queues import KeyQueues
from oncehouse.messaging.inbox.row_updates import mark_begun, read_waiting, record_answer, record_failure
from oncehouse.messaging.inbox.tables import ABSENT, State, inbox, lease_tables
from oncehouse.messaging.inbox.types import Done, Failed, Outcome, Waiting, Withdrawn, WorkerSettings

_FIRST_POLL_SECONDS = 0.02
_CLEANING_SECONDS = 60.0
_DIED = "The worker ended while it handled this message, {attempts} times; the handler may crash the process."


@dataclass(frozen=True, kw_only=True)
class Turn:
    begin: tuple[Waiting, ...]
    wait_seconds: float
    """When the next turn is due if nothing ends earlier."""
    idle: bool
    """Nothing runs and nothing was there to be begun."""


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
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.counts = WorkCounts()
        self._engine = engine
        self._name = name
        self._settings = settings
        self._chance = chance
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
        self._tend_at = 0.0
        self._read_at = 0.0
        self._clean_at = 0.0
        self._poll_seconds = _FIRST_POLL_SECONDS
        self._resting: dict[int, float] = {}
        self._unwritten: list[Failed | Withdrawn] = []

    def turn(self, ended: Sequence[Outcome]) -> Turn:
        self._take(ended)
        self._write_ends()
        self._tend()
        empty = self._read()
        begun = self._choose()
        return Turn(
            begin=begun,
            wait_seconds=self._wait_seconds(),
            idle=empty and not (begun or self._queues.running or self._queues.ready),
        )

    def drain(self, ended: Sequence[Outcome]) -> bool:
        """A turn that begins nothing. True when all that was begun has ended."""
        self._take(ended)
        self._write_ends()
        self._queues.keep_only(())
        if self._queues.running:
            self._tend()
        return not self._queues.running

    def leave(self) -> None:
        """Give the buckets back, so that others need not wait for the leases to run out."""
        if self._share is not None:
            self._leases.leave(self._share.tokens)

    def fence(self, connection: Connection, row: Waiting) -> None:
        """Raises FencedError unless the message's bucket is ours until the transaction ends."""
        share = self._share
        if share is None or row.bucket not in share.tokens:
            raise FencedError(
                f"inbox:{self._name}: bucket {row.bucket} is no longer ours. Nothing was written."
            )
        self._leases.fence(connection, {row.bucket: share.tokens[row.bucket]})

    def _take(self, ended: Sequence[Outcome]) -> None:
        for outcome in ended:
            self._queues.end(outcome)
            match outcome:
                case Done():
                    self.counts.done += 1
                case Failed():
                    self._unwritten.append(outcome)
                    self._rest(outcome.waiting.key_hash)
                case Withdrawn():
                    self.counts.withdrawn += 1
                    self._rest(outcome.waiting.key_hash)
                    if outcome.begun:
                        self._unwritten.append(outcome)

    def _rest(self, key_hash: int) -> None:
        # A failed message must not be read again before its failure is written down.
        self._resting[key_hash] = time.monotonic() + self._settings.rest_seconds

    def _write_ends(self) -> None:
        while self._unwritten:
            ended = self._unwritten[0]
            with self._transaction("writing down how an attempt ended") as connection:
                if isinstance(ended, Withdrawn):
                    # Nobody died of it, whatever kept it from being done.
                    record_answer(connection, ended.waiting)
                else:
                    state = record_failure(connection, ended, self._settings, chance=self._chance())
            del self._unwritten[0]
            if isinstance(ended, Failed):
                self._resting.pop(ended.waiting.key_hash, None)
                self.counts.failed += 1
                self.counts.parked += state is State.PARKED

    def _tend(self) -> None:
        if time.monotonic() < self._tend_at:
            return
        if self._share is None:
            with self._look("looking for its table") as connection:
                connection.execute(select(inbox.c.sequence).limit(1))
        share = self._leases.tend()
        busy = {row.bucket for row in self._queues.running}
        spare = {bucket: share.tokens[bucket] for bucket in share.surplus - busy}
        self._leases.release(spare)
        self._share = Share(
            tokens={bucket: token for bucket, token in share.tokens.items() if bucket not in spare},
            surplus=share.surplus - spare.keys(),
            members=share.members,
            valid_until=share.valid_until,
        )
        self._tend_at = time.monotonic() + self._settings.lease_seconds / 3
        self._queues.keep_only(self._ours())
        self._clean()

    def _ours(self) -> set[int]:
        """Buckets in which something may be begun now."""
        share = self._share
        if share is None or time.monotonic() > share.valid_until:
            return set()
        return set(share.tokens) - share.surplus

    def _read(self) -> bool:
        """True when the table was asked and had nothing for us."""
        now, ours = time.monotonic(), self._ours()
        if not ours or self._queues.ready >= self._settings.concurrency or now < self._read_at:
            return False
        self._resting = {key: until for key, until in self._resting.items() if until > now}
        with self._look("reading messages") as connection:
            found = read_waiting(
                connection,
                self._name,
                buckets=ours,
                without_keys=self._queues.keys | self._resting.keys(),
                limit=self._settings.concurrency * 16,
            )
        self._queues.add(found)
        if found:
            self._poll_seconds, self._read_at = _FIRST_POLL_SECONDS, 0.0
        else:
            self._poll_seconds = min(self._poll_seconds * 2, self._settings.poll_seconds)
            self._read_at = time.monotonic() + self._poll_seconds
        return not (found or self._resting)

    def _choose(self) -> tuple[Waiting, ...]:
        if not self._ours():
            return ()
        choice = self._queues.choose(self._settings.concurrency - len(self._queues.running))
        died = [
            Failed(waiting=row, error=_DIED.format(attempts=row.attempts), final=True) for row in choice.park
        ]
        try:
            begun = self._mark(choice.run)
        except OncehouseError:
            begun = {}
            raise
        finally:
            refused = [
                Withdrawn(waiting=row, reason="held", begun=False)
                for row in choice.run
                if row.sequence not in begun
            ]
            self._take([*died, *refused])
        self._write_ends()
        return tuple(
            replace(row, attempts=begun[row.sequence]) for row in choice.run if row.sequence in begun
        )

    def _mark(self, rows: Sequence[Waiting]) -> dict[int, int]:
        if not rows:
            return {}
        with self._transaction("beginning messages") as connection:
            return mark_begun(connection, rows)

    def _wait_seconds(self) -> float:
        now = time.monotonic()
        if len(self._queues.running) < self._settings.concurrency and self._read_at <= now and self._ours():
            return 0.0
        return max(0.0, min(self._poll_seconds, self._tend_at - now))

    def _clean(self) -> None:
        if time.monotonic() >= self._clean_at:
            self._clean_at = time.monotonic() + _CLEANING_SECONDS
            for expire in (expire_ids, expire_messages):
                with self._transaction("cleaning up") as connection:
                    expire(connection)

    def _look(self, doing: str) -> AbstractContextManager[Connection]:
        return reading(self._engine, f"Inbox {self._name}: {doing}", absent=ABSENT)

    def _transaction(self, doing: str) -> AbstractContextManager[Connection]:
        return transact(self._engine, f"Inbox {self._name}: {doing}", absent=ABSENT)
