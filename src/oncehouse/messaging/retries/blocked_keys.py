"""Order by key: which keys are blocked because an earlier message of the key waits in a retry topic.

The source is level 0, its retry topics are the levels above. A message on level L is tried only if no uncommitted
message of its key is on a level above L. A failed message moves up one level at a time, to the end of that topic, so
the messages of a key are tried in their original order on all levels. Each assigned partition tracks the levels above
it; a key has the same partition number on every level. Messages without a key have no order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from threading import Lock

from oncehouse.messaging.message import Message


@dataclass(kw_only=True)
class _PartitionView:
    """What one level of a partition knows of the levels above it."""

    level: int
    places: dict[bytes, set[tuple[int, int]]] = field(default_factory=dict)
    """Key -> level and offset of its uncommitted messages."""
    committed: dict[int, int] = field(default_factory=dict)
    """Level -> the last committed offset there."""

    def block(self, key: bytes, level: int, offset: int) -> None:
        # With a short delay a message may be committed on its new level before its sender reports it here.
        if level > self.level and offset > self.committed.get(level, -1):
            self.places.setdefault(key, set()).add((level, offset))

    def unblock(self, key: bytes | None, level: int, offset: int) -> None:
        if level <= self.level:
            return
        self.committed[level] = max(offset, self.committed.get(level, -1))
        if key is None or (places := self.places.get(key)) is None:
            return
        places.discard((level, offset))
        if not places:
            del self.places[key]


class BlockedKeys:
    def __init__(self) -> None:
        self._lock = Lock()
        self._views: dict[int, dict[int, _PartitionView]] = {}
        """Partition number -> level -> view, for the assigned partitions."""

    def open(self, number: int, level: int) -> None:
        with self._lock:
            self._views.setdefault(number, {})[level] = _PartitionView(level=level)

    def close(self, number: int, level: int) -> None:
        with self._lock:
            self._views.get(number, {}).pop(level, None)

    def is_open(self, number: int, level: int) -> bool:
        with self._lock:
            return level in self._views.get(number, {})

    def block(self, number: int, places: Iterable[tuple[bytes | None, int, int]]) -> None:
        """Each place is the (key, level, offset) of a message in a retry topic."""
        listed = list(places)
        with self._lock:
            for view in self._views.get(number, {}).values():
                for key, level, offset in listed:
                    if key is not None:
                        view.block(key, level, offset)

    def unblock(self, messages: Iterable[Message], level: int) -> None:
        """These were committed; those of a partition come in order."""
        with self._lock:
            for message in messages:
                for view in self._views.get(message.partition, {}).values():
                    view.unblock(message.key, level, message.offset)

    def find_blocked(self, number: int, level: int, messages: Sequence[Message]) -> list[int]:
        """Indices of the messages whose key has an uncommitted message above their level."""
        with self._lock:
            places = self._views[number][level].places
            if not places:
                return []
            return [at for at, message in enumerate(messages) if message.key in places]
