"""Which message may run next: the first of each key, one at a time; a message that may kill its worker runs alone.

No I/O and no clock. Rows are added in order by `add`, chosen by `choose`, and end by `end`. After a failure the key is
dropped here and read again from the table, which knows how long it is delayed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from oncehouse.messaging.inbox.types import AttemptSucceeded, MessageOutcome, PendingMessage

MOST_OF_A_KEY = 16


@dataclass(frozen=True, kw_only=True)
class NextMessages:
    run: tuple[PendingMessage, ...] = ()
    park: tuple[PendingMessage, ...] = ()
    """Begun as often as allowed, and the worker died each time."""


@dataclass(kw_only=True)
class KeyQueues:
    max_attempts: int
    _queues: dict[int, deque[PendingMessage]] = field(default_factory=dict)
    _running: dict[int, PendingMessage] = field(default_factory=dict)

    def add(self, rows: Iterable[PendingMessage]) -> None:
        """Rows in order of arrival, without rows of keys that are queued or running (see `keys`).

        Only the first few of a key are kept; the others are read again later, so that other keys get their turn.
        """
        for row in rows:
            queue = self._queues.setdefault(row.key_hash, deque())
            if len(queue) < MOST_OF_A_KEY:
                queue.append(row)

    @property
    def keys(self) -> frozenset[int]:
        """Keys that are queued or running: further rows of these must not be read yet."""
        return frozenset(self._queues) | frozenset(self._running)

    @property
    def running(self) -> tuple[PendingMessage, ...]:
        return tuple(self._running.values())

    @property
    def ready(self) -> int:
        """Keys with a message that could begin if there were a free slot."""
        return len(self._queues.keys() - self._running.keys())

    def keep_only(self, buckets: Collection[int]) -> None:
        """Drop queued rows of other buckets. Running ones are fenced by their token."""
        gone = [key for key, queue in self._queues.items() if queue[0].bucket not in buckets]
        for key in gone:
            del self._queues[key]

    def choose(self, free: int) -> NextMessages:
        """What to begin now with `free` slots; it counts as running from then on."""
        heads = [queue[0] for key, queue in self._queues.items() if key not in self._running]
        park = [head for head in heads if head.suspect and head.attempts >= self.max_attempts]
        suspects = [head for head in heads if head.suspect and head.attempts < self.max_attempts]
        if any(row.suspect for row in self._running.values()):
            run = []
        elif suspects:
            # Alone, so that a crash of the worker affects no other message.
            run = suspects[:1] if not self._running and free > 0 else []
        else:
            run = [head for head in heads if not head.suspect][: max(0, free)]
        for head in (*park, *run):
            self._begin(head)
        return NextMessages(run=tuple(run), park=tuple(park))

    def _begin(self, head: PendingMessage) -> None:
        queue = self._queues[head.key_hash]
        queue.popleft()
        if not queue:
            del self._queues[head.key_hash]
        self._running[head.key_hash] = head

    def end(self, outcome: MessageOutcome) -> None:
        key = outcome.waiting.key_hash
        del self._running[key]
        if not isinstance(outcome, AttemptSucceeded):
            self._queues.pop(key, None)
