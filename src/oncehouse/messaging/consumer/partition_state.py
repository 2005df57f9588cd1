"""The state of one assigned partition: records fetched, cut into batches, planned, tried, handled. Pure; no clock.

Invariants: batches are cut and handled in the order of offsets; at most one task is under way; a batch is handled only
after its end was committed; the committed offset never passes a record that is not handled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

from oncehouse.common.backoff import Backoff
from oncehouse.messaging.consumer.batch_sizing import (
    BatchMeasurement,
    BatchSize,
    BatchSizeLimits,
    adapt_batch_size,
    initial_batch_size,
)
from oncehouse.messaging.consumer.commit_plan import MAX_ENDS, CommittedPosition
from oncehouse.messaging.consumer.events import (
    Action,
    Bisected,
    Commit,
    Divert,
    FailureKind,
    HandlerStuck,
    NotifyCommitted,
    PartitionResumed,
    PartitionStopped,
    PreparePartition,
    RetryAt,
    RunHandler,
    Ticket,
)
from oncehouse.messaging.consumer.handler_rules import HandlerRules
from oncehouse.messaging.consumer.records import Records
from oncehouse.messaging.failure_policy import Partition

# A fetch returns many records at once, so the buffer must hold some fetches even if batches are small.
MIN_BUFFER_RECORDS = 2_000
# Every rebalance refuses commits for a moment, and tasks wait for commits.
COMMIT_BACKOFF = Backoff(base_seconds=0.1, longest_seconds=2.0)
Level = Literal["low", "full", "over"]


@dataclass(kw_only=True, slots=True)
class CutBatch:
    """A batch that was cut from the buffer."""

    records: Records
    end: int
    ready_at: float
    """Since when it waits only for a free slot or a commit."""
    allowed: int
    """Attempts before it is bisected."""
    attempts: int = 0
    without: frozenset[int] = frozenset()
    poison: str = ""
    """The error of the one record on which the handler fails."""

    @property
    def remaining(self) -> int:
        return len(self.records) - len(self.without)


@dataclass(kw_only=True, slots=True)
class PartitionState:
    key: Partition
    rules: HandlerRules
    term: int
    start: CommittedPosition
    jitter: Callable[[], float]
    leaving: bool = False
    paused: bool = False
    full_since: float = inf
    end: int = 0
    """The partition's end offset, as far as known."""
    stopped: str = ""
    """Why the partition is stopped; empty if it is not."""
    task: Ticket | None = None
    task_since: float = 0.0
    stuck: bool = False
    waited_seconds: float = 0.0
    """How long batches were ready before their task began."""
    batch_size: BatchSize = field(init=False)
    closed: deque[CutBatch] = field(default_factory=deque)
    done: int | None = field(init=False)
    _prepared: bool = field(init=False)
    _names_group: bool = field(init=False)
    _done_epoch: int | None = None
    """Kafka's leader epoch of the record before `done`."""
    _number: int = 0
    _buffer: list[Any] = field(default_factory=list)
    _buffer_bytes: int = 0
    _opened_at: float = 0.0
    _later: deque[tuple[float, Records]] = field(default_factory=deque)
    _later_count: int = 0
    _expected: int = field(init=False)
    _planned: deque[int] = field(init=False)
    _acked: CommittedPosition = field(init=False)
    _in_flight: CommittedPosition | None = None
    _commit_failures: int = 0
    _commit_delay_until: float = 0.0
    _delay_until: float = 0.0
    _failures: int = 0
    _diverted_in_row: int = 0
    _unsettled: deque[CutBatch] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.batch_size = initial_batch_size(self._batch_size_limits)
        self._prepared = not self.rules.diverts
        self.done = self.start.offset
        # The leader epoch of another client's commit is not committed again.
        self._done_epoch = self.start.leader_epoch if self.start.is_ours else None
        # Where an offset was committed, a batch of an older version may be under way: it keeps its token.
        self._names_group = self.start.names_group or self.start.offset is None
        self._expected = self.start.offset or 0
        self._planned = deque(self.start.ends)
        self._acked = self.start

    @property
    def _batch_size_limits(self) -> BatchSizeLimits:
        return BatchSizeLimits(
            size=self.rules.size,
            wait_seconds=self.rules.wait_seconds,
            target_seconds=self.rules.target_seconds,
        )

    # Records are added and cut into batches.

    def take(self, records: Records, due_at: float, now: float) -> None:
        # After a seek or a resume the client may return the same records again.
        if records.first_offset < self._expected:
            records = records[records.count_below(self._expected) :]
        if self.leaving or not records:
            return
        if self.done is None:
            self.done, self._done_epoch = records.first_offset, None
        self._expected = records.last_offset + 1
        if due_at > now or self._later:
            self._later.append((due_at, records))
            self._later_count += len(records)
        else:
            self._keep(records, now)

    def _keep(self, records: Records, now: float) -> None:
        if not self._buffer:
            self._opened_at = now
        self._buffer += records.raw
        self._buffer_bytes += records.count_bytes()

    def cut(self, now: float) -> None:
        while self._later and self._later[0][0] <= now:
            _, records = self._later.popleft()
            self._later_count -= len(records)
            self._keep(records, now)
        while len(self.closed) < self.rules.ahead and (count := self._count_to_cut(now)):
            records = Records(self._buffer[:count])
            self._buffer = self._buffer[count:]
            # Measured on the shorter side, because measuring is the most expensive step here.
            fewer = len(self._buffer) < count
            rest = (
                Records(self._buffer).count_bytes() if fewer else self._buffer_bytes - records.count_bytes()
            )
            self._buffer_bytes = rest
            self._opened_at = now
            self.closed.append(
                CutBatch(records=records, end=records.last_offset, ready_at=now, allowed=self.rules.attempts)
            )

    def _count_to_cut(self, now: float) -> int:
        if not self._buffer:
            return 0
        waiting = Records(self._buffer)
        # Records of a plan from before a crash may have been deleted from Kafka since.
        while self._planned and self._planned[0] < waiting.first_offset:
            self._planned.popleft()
        if self._planned:
            if waiting.last_offset < self._planned[0]:
                return 0
            return waiting.count_below(self._planned.popleft() + 1)
        if self._buffer_bytes >= self.rules.max_bytes:
            return min(self.batch_size.size, waiting.count_within_bytes(self.rules.max_bytes))
        if len(waiting) >= self.batch_size.size or now >= self._opened_at + self.batch_size.wait_seconds:
            return min(self.batch_size.size, len(waiting))
        return 0

    # Tasks begin and end.

    def begin(self, now: float) -> PreparePartition | RunHandler | Divert | None:
        if self.task is not None or self.leaving or now < self._delay_until:
            return None
        if not self._prepared:
            return PreparePartition(ticket=self._start_task(now))
        # Before its end is committed, a batch could be cut differently after a crash, with another token.
        if not self.closed or self.closed[0].end not in self._acked.ends:
            return None
        work = self.closed[0]
        if work.poison:
            ticket = self._start_task(now)
            return Divert(ticket=ticket, records=work.records.without(work.without), error=work.poison)
        self.waited_seconds += now - work.ready_at
        return RunHandler(
            ticket=self._start_task(now),
            records=work.records,
            without=work.without,
            attempt=self._failures + 1,
            names_group=self._names_group,
        )

    def _start_task(self, now: float) -> Ticket:
        self._number += 1
        self.task = Ticket(partition=self.key, term=self.term, number=self._number)
        self.task_since = now
        self.stuck = False
        return self.task

    def end_prepare(self) -> list[Action]:
        self._end_task()
        self._prepared, self._failures = True, 0
        return self._resume()

    def end_handled(self, now: float) -> list[Action]:
        work = self._pop_head(now)
        if self.rules.adaptive:
            seen = BatchMeasurement(
                records=len(work.records), seconds=now - self.task_since, lag=self._waiting + self.lag
            )
            self.batch_size = adapt_batch_size(self.batch_size, seen, self._batch_size_limits)
        self._diverted_in_row = 0
        return self._resume()

    def end_failed(self, error: str, kind: FailureKind, now: float) -> list[Action]:
        ticket, work = self._end_task(), self.closed[0]
        work.ready_at = now
        work.attempts = work.allowed if kind == "permanent" else work.attempts + (kind == "unknown")
        if kind == "transient" or (kind == "unknown" and work.attempts < work.allowed):
            return [self._retry(ticket, error, now)]
        if kind == "configuration" or not self.rules.diverts:
            return [*self._stop(f"the handler fails: {error}"), self._retry(ticket, error, now)]
        self._failures = 0
        if work.remaining > 1:
            self._bisect(work, now)
            return [Bisected(ticket=ticket, size=work.remaining, error=error)]
        work.poison = error
        return []

    def end_divert(self, now: float) -> list[Action]:
        self._pop_head(now)
        self._diverted_in_row += 1
        if self._diverted_in_row > 1:
            # Consecutive records fail: an outage is more likely than bad records. Slow down until one succeeds.
            self._delay(self._diverted_in_row - 1, now)
        return self._resume()

    def end_divert_failed(self, error: str, now: float) -> list[Action]:
        ticket = self._end_task()
        return [*self._stop(error), self._retry(ticket, error, now)]

    def skip(self, offsets: frozenset[int]) -> None:
        self.closed[0].without |= offsets

    def _bisect(self, work: CutBatch, now: float) -> None:
        middle = len(work.records) // 2
        self.closed.popleft()
        for records in (work.records[middle:], work.records[:middle]):
            inside = frozenset(
                offset for offset in work.without if records.first_offset <= offset <= records.last_offset
            )
            self.closed.appendleft(
                CutBatch(records=records, end=records.last_offset, ready_at=now, allowed=1, without=inside)
            )

    def _pop_head(self, now: float) -> CutBatch:
        self._end_task()
        work = self.closed.popleft()
        if self.closed:
            self.closed[0].ready_at = now
        self.done = work.end + 1
        # Of exactly that record: with an older epoch Kafka would answer that the log ends earlier.
        self._done_epoch = work.records.last_leader_epoch if work.records.last_offset == work.end else None
        self._failures = 0
        if self.rules.diverts:
            self._unsettled.append(work)
        return work

    def _end_task(self) -> Ticket:
        assert self.task is not None  # noqa: S101 - the state machine compares tickets before it calls
        ticket, self.task, self.stuck = self.task, None, False
        return ticket

    def _retry(self, ticket: Ticket, error: str, now: float) -> RetryAt:
        self._failures += 1
        self._delay(self._failures, now)
        return RetryAt(ticket=ticket, at=self._delay_until, failures=self._failures, error=error)

    def _delay(self, failures: int, now: float) -> None:
        self._delay_until = now + self.rules.backoff.wait_seconds(failures, jitter=self.jitter())
        if self.closed:
            self.closed[0].ready_at = self._delay_until

    def _stop(self, reason: str) -> list[Action]:
        activity = self.stopped != reason
        self.stopped = reason
        return [PartitionStopped(partition=self.key, reason=reason)] if activity else []

    def _resume(self) -> list[Action]:
        if not self.stopped:
            return []
        self.stopped = ""
        return [PartitionResumed(partition=self.key)]

    # Offsets are committed.

    @property
    def _ends(self) -> tuple[int, ...]:
        return (*(work.end for work in self.closed), *self._planned)[:MAX_ENDS]

    @property
    def _position(self) -> CommittedPosition:
        return CommittedPosition(
            offset=self.done, ends=self._ends, leader_epoch=self._done_epoch, names_group=self._names_group
        )

    def commit(self, now: float) -> Commit | None:
        if self._in_flight is not None or self.done is None or now < self._commit_delay_until:
            return None
        position = self._position
        if self.done == self._acked.offset and set(position.ends) <= set(self._acked.ends):
            return None
        self._in_flight = position
        return Commit(partition=self.key, position=position)

    def last_commit(self) -> CommittedPosition | None:
        """What remains to be committed when the partition is revoked."""
        if self.done is None or self.done == self._acked.offset:
            return None
        return self._position

    def end_commit(self, position: CommittedPosition) -> list[Action]:
        committed: list[Action] = []
        if position != self._in_flight:  # the result of a commit of an earlier assignment
            return committed
        self._in_flight, self._commit_failures, self._acked = None, 0, position
        while self._unsettled and self._unsettled[0].end < (position.offset or 0):
            committed.append(NotifyCommitted(partition=self.key, records=self._unsettled.popleft().records))
        return committed

    def end_commit_failed(self, now: float) -> None:
        self._in_flight = None
        self._commit_failures += 1
        wait = COMMIT_BACKOFF.wait_seconds(self._commit_failures, jitter=self.jitter())
        self._commit_delay_until = now + wait

    # For the state machine.

    @property
    def _waiting(self) -> int:
        return len(self._buffer) + self._later_count

    @property
    def level(self) -> Level:
        buffer_limit = max(self.rules.size, MIN_BUFFER_RECORDS)
        if self._lacks_records:
            return "low"
        if (
            self.stopped
            or self._waiting >= 3 * buffer_limit
            or self._buffer_bytes >= 3 * self.rules.max_bytes
        ):
            return "over"
        if self._later_count >= buffer_limit:
            return "over"
        cannot_cut = len(self.closed) >= self.rules.ahead
        if cannot_cut and (self._waiting >= buffer_limit or self._buffer_bytes >= self.rules.max_bytes):
            return "full"
        return "low"

    @property
    def _lacks_records(self) -> bool:
        """A planned batch must be filled to its end, whatever size another consumer planned."""
        return bool(
            self._planned
            and self._buffer
            and not self.closed
            and Records(self._buffer).last_offset < self._planned[0]
        )

    @property
    def awaits_commit(self) -> bool:
        return self._in_flight is not None

    @property
    def lag(self) -> int:
        """Offsets that Kafka has and that are not handled."""
        return max(0, max(self.end, self._expected) - (self._expected if self.done is None else self.done))

    def find_stuck(self, now: float) -> HandlerStuck | None:
        if self.task is None or self.stuck or now < self.task_since + self.rules.stuck_seconds:
            return None
        self.stuck = True
        return HandlerStuck(ticket=self.task, seconds=now - self.task_since)

    def wake_at(self, now: float) -> float:
        """The next time at which something is due without an event."""
        times = [self._delay_until, self._commit_delay_until]
        if self._buffer and not self._planned and len(self.closed) < self.rules.ahead:
            times.append(self._opened_at + self.batch_size.wait_seconds)
        if self._later:
            times.append(self._later[0][0])
        if self.task is not None:
            times.append(self.task_since + self.rules.stuck_seconds)
        return min((time for time in times if time > now), default=inf)
