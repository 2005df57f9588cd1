"""Which keys wait, because an earlier message of theirs stands on a higher level.

A message on level L is tried only while no message of its key is unsettled on a level above L. Since a message only
ever goes up one level, behind what stands there, messages of a key are then tried in their first order on all levels.
Keys are kept by partition number: a key keeps its partition on every level. Messages without a key have no order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from threading import Lock

from oncehouse.messaging.message import Message


@dataclass(kw_only=True)
class _Keys:
    places: dict[bytes, set[tuple[int, int]]] = field(default_factory=dict)
    """Key -> level and offset of its unsettled messages."""
    settled: dict[int, int] = field(default_factory=dict)
    """Level -> the last offset that is settled there."""


class HeldKeys:
    def __init__(self) -> None:
        self._lock = Lock()
        self._by_partition: dict[int, _Keys] = {}

    def hold(self, partition: int, places: Iterable[tuple[bytes | None, int, int]]) -> None:
        """Each place is (key, level, offset) of a message that stands in a retry topic."""
        listed = [place for place in places if place[0] is not None]
        with self._lock:
            keys = self._by_partition.setdefault(partition, _Keys())
            for key, level, offset in listed:
                # With a short delay a message may be settled up there before whoever put it there says so here.
                if key is not None and offset > keys.settled.get(level, -1):
                    keys.places.setdefault(key, set()).add((level, offset))

    def release(self, messages: Iterable[Message], level: int) -> None:
        """These are settled; those of a partition come in order."""
        with self._lock:
            for message in messages:
                keys = self._by_partition.setdefault(message.partition, _Keys())
                keys.settled[level] = max(message.offset, keys.settled.get(level, -1))
                if message.key is None or (places := keys.places.get(message.key)) is None:
                    continue
                places.discard((level, message.offset))
                if not places:
                    del keys.places[message.key]

    def forget(self, partition: int) -> None:
        with self._lock:
            self._by_partition.pop(partition, None)

    def behind(self, messages: Sequence[Message], level: int) -> list[int]:
        """Places of the messages whose key has something unsettled above their level."""
        with self._lock:
            return [at for at, message in enumerate(messages) if self._waits(message, level)]

    def _waits(self, message: Message, level: int) -> bool:
        keys = self._by_partition.get(message.partition)
        if keys is None or message.key is None:
            return False
        return any(above > level for above, _ in keys.places.get(message.key, ()))
