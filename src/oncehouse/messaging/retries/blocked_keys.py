"""Which keys wait, because an earlier message of theirs stands on a higher level.

A message on level L is tried only while no message of its key is unsettled on a level above L. Since a message only
ever goes up one level, behind what stands there, messages of a key are then tried in their first order on all levels.
Each partition that we read has a view of its own of what stands above it, from its assignment until it is gone; a key
keeps its partition number on every level. Messages without a key have no order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from threading import Lock

from oncehouse.messaging.message import Message


@dataclass(kw_only=True)
class _View:
    """What one level of a partition number sees above itself."""

    level: int
    places: dict[bytes, set[tuple[int, int]]] = field(default_factory=dict)
    """Key -> level and offset of its unsettled messages."""
    settled: dict[int, int] = field(default_factory=dict)
    """Level -> the last offset that is settled there."""

    def hold(self, key: bytes, level: int, offset: int) -> None:
        # With a short delay a message may be settled up there before whoever put it there says so here.
        if level > self.level and offset > self.settled.get(level, -1):
            self.places.setdefault(key, set()).add((level, offset))

    def release(self, key: bytes | None, level: int, offset: int) -> None:
        if level <= self.level:
            return
        self.settled[level] = max(offset, self.settled.get(level, -1))
        if key is None or (places := self.places.get(key)) is None:
            return
        places.discard((level, offset))
        if not places:
            del self.places[key]


class HeldKeys:
    def __init__(self) -> None:
        self._lock = Lock()
        self._views: dict[int, dict[int, _View]] = {}
        """Partition number -> level -> view, of the partitions that are ours."""

    def open(self, number: int, level: int) -> None:
        with self._lock:
            self._views.setdefault(number, {})[level] = _View(level=level)

    def close(self, number: int, level: int) -> None:
        with self._lock:
            self._views.get(number, {}).pop(level, None)

    def is_open(self, number: int, level: int) -> bool:
        with self._lock:
            return level in self._views.get(number, {})

    def hold(self, number: int, places: Iterable[tuple[bytes | None, int, int]]) -> None:
        """Each place is (key, level, offset) of a message that stands in a retry topic."""
        listed = list(places)
        with self._lock:
            for view in self._views.get(number, {}).values():
                for key, level, offset in listed:
                    if key is not None:
                        view.hold(key, level, offset)

    def release(self, messages: Iterable[Message], level: int) -> None:
        """These are settled; those of a partition come in order."""
        with self._lock:
            for message in messages:
                for view in self._views.get(message.partition, {}).values():
                    view.release(message.key, level, message.offset)

    def behind(self, number: int, level: int, messages: Sequence[Message]) -> list[int]:
        """Places of the messages whose key has something unsettled above their level."""
        with self._lock:
            places = self._views[number][level].places
            if not places:
                return []
            return [at for at, message in enumerate(messages) if message.key in places]
