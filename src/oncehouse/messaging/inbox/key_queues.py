"""Which message may run next: the first of each key, one at a time, and nothing beside one that may kill a worker.

No I/O and no clock. Rows come in by `add` in their order, decisions go out by `choose`, outcomes come back by `end`.
A key whose message did not get done is forgotten here and read anew from the table, which knows how long it rests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from oncehouse.messaging.inbox.types import Done, Outcome, Waiting

MOST_OF_A_KEY = 16


@dataclass(frozen=True, kw_only=True)
class Choice:
    run: tuple[Waiting, ...] = ()
    park: tuple[Waiting, ...] = ()
    """Begun as often as allowed, and each time the worker ended before it did."""


@dataclass(kw_only=True)
class KeyQueues:
    max_attempts: int
    _queues: dict[int, deque[Waiting]] = field(default_factory=dict)
    _running: dict[int, Waiting] = field(default_factory=dict)

    def add(self, rows: Iterable[Waiting]) -> None:
        """Rows in order of arrival; of keys that are known already none (see `keys`).

        Of one key only the first few are kept: the others are read again later, and leave room for other keys.
        """
        for row in rows:
            queue = self._queues.setdefault(row.key_hash, deque())
            if len(queue) < MOST_OF_A_KEY:
                queue.append(row)

    @property
    def keys(self) -> frozenset[int]:
        """Keys whose next rows are here or under way: their others must not be read yet."""
        return frozenset(self._queues) | frozenset(self._running)

    @property
    def running(self) -> tuple[Waiting, ...]:
        return tuple(self._running.values())

    @property
    def ready(self) -> int:
        """Keys of which a message could be begun if there were a place."""
        return len(self._queues.keys() - self._running.keys())

    def keep_only(self, buckets: Collection[int]) -> None:
        """Forget what waits in other buckets. What runs there is fenced by its token, not from here."""
        gone = [key for key, queue in self._queues.items() if queue[0].bucket not in buckets]
        for key in gone:
            del self._queues[key]

    def choose(self, free: int) -> Choice:
        """What to begin now with `free` places; it counts as running from then on."""
        heads = [queue[0] for key, queue in self._queues.items() if key not in self._running]
        park = [head for head in heads if head.suspect and head.attempts >= self.max_attempts]
        suspects = [head for head in heads if head.suspect and head.attempts < self.max_attempts]
        if any(row.suspect for row in self._running.values()):
            run = []
        elif suspects:
            # Alone, so that a worker that dies takes no innocent message with it.
            run = suspects[:1] if not self._running and free > 0 else []
        else:
            run = [head for head in heads if not head.suspect][: max(0, free)]
        for head in (*park, *run):
            self._begin(head)
        return Choice(run=tuple(run), park=tuple(park))

    def _begin(self, head: Waiting) -> None:
        queue = self._queues[head.key_hash]
        queue.popleft()
        if not queue:
            del self._queues[head.key_hash]
        self._running[head.key_hash] = head

    def end(self, outcome: Outcome) -> None:
        key = outcome.waiting.key_hash
        del self._running[key]
        if not isinstance(outcome, Done):
            self._queues.pop(key, None)
