"""Records of one partition as the client returned them: cut, counted and measured without a Python loop over records.

A raw record is what confluent-kafka calls Message; `MemoryRecord` has the same methods. Operations on many records use
`map` with the type's own methods, which run in C.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, repeat
from operator import is_
from typing import Any, Protocol, overload

from oncehouse.messaging.failure_policy import Partition
from oncehouse.messaging.message import Headers, Message


class RawRecord(Protocol):
    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def key(self) -> Any: ...
    def value(self) -> Any: ...
    def headers(self) -> Any: ...
    def timestamp(self) -> tuple[int, int]: ...
    def error(self) -> Any: ...
    def leader_epoch(self) -> int | None: ...
    def __len__(self) -> int:
        """Bytes of its value."""
        ...


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """A raw record that did not come from Kafka's client: of the broker in memory, or sent to another process."""

    _topic: str
    _partition: int
    _offset: int
    _key: bytes | None
    _value: bytes | None
    _headers: Headers = ()
    _timestamp_ms: int | None = None

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> Headers:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return (0, -1) if self._timestamp_ms is None else (1, self._timestamp_ms)

    def error(self) -> None:
        return None

    def leader_epoch(self) -> None:
        return None

    def __len__(self) -> int:
        return 0 if self._value is None else len(self._value)


class Records(Sequence[Message]):
    """Consecutive records of one partition in the order of their offsets; messages are created on access."""

    __slots__ = ("raw",)

    def __init__(self, raw: list[Any]) -> None:
        self.raw = raw

    def __len__(self) -> int:
        return len(self.raw)

    def __iter__(self) -> Iterator[Message]:
        return map(make_message, self.raw)

    @overload
    def __getitem__(self, place: int) -> Message: ...
    @overload
    def __getitem__(self, place: slice) -> Records: ...
    def __getitem__(self, place: int | slice) -> Message | Records:
        return Records(self.raw[place]) if isinstance(place, slice) else make_message(self.raw[place])

    @property
    def first_offset(self) -> int:
        return int(self.raw[0].offset())

    @property
    def last_offset(self) -> int:
        return int(self.raw[-1].offset())

    @property
    def last_leader_epoch(self) -> int | None:
        return read_epoch(self.raw[-1].leader_epoch())

    def offsets(self) -> list[int]:
        return list(map(type(self.raw[0]).offset, self.raw)) if self.raw else []

    def values(self) -> list[Any]:
        return list(map(type(self.raw[0]).value, self.raw)) if self.raw else []

    def keys(self) -> list[Any]:
        return list(map(type(self.raw[0]).key, self.raw)) if self.raw else []

    def count_bytes(self) -> int:
        return sum(map(len, self.raw))

    def count_within_bytes(self, limit: int) -> int:
        """How many records from the front have at most `limit` bytes together; at least one."""
        return max(1, bisect_left(list(accumulate(map(len, self.raw))), limit + 1))

    def count_below(self, offset: int) -> int:
        """How many records from the front are before this offset."""
        return bisect_left(self.raw, offset, key=_offset)

    def without(self, offsets: frozenset[int]) -> Records:
        return Records([raw for raw in self.raw if raw.offset() not in offsets]) if offsets else self


def read_epoch(epoch: int | None) -> int | None:
    """None for -1, which the client returns if the broker has no leader epochs."""
    return epoch if epoch is not None and epoch >= 0 else None


def make_message(raw: RawRecord) -> Message:
    kind, milliseconds = raw.timestamp()
    return Message(
        topic=str(raw.topic()),
        partition=int(raw.partition() or 0),
        offset=int(raw.offset() or 0),
        key=raw.key(),
        value=raw.value(),
        headers=tuple(raw.headers() or ()),
        timestamp_ms=milliseconds if kind else None,
    )


def by_partition(raw: list[Any]) -> list[tuple[Partition, Records]]:
    """The records of one fetch by partition, each in order. None of them may be an error."""
    kind = type(raw[0])
    topics = list(map(kind.topic, raw))
    places: Iterable[Any] = map(kind.partition, raw)
    if topics.count(topics[0]) != len(raw):
        places = zip(topics, places, strict=True)
    found: dict[Partition, list[Any]] = {}
    start = 0
    # The client returns records of a partition in long runs; counting a run stays in C.
    for place, run in groupby(places):
        end = start + len(list(run))
        partition = place if isinstance(place, tuple) else (topics[0], place)
        found.setdefault(partition, []).extend(raw[start:end])
        start = end
    return [(partition, Records(records)) for partition, records in found.items()]


def split_errors(raw: list[Any]) -> tuple[list[Any], list[Any]]:
    """Records, and the errors that the client returns in place of records."""
    # By identity: confluent-kafka 2.16 breaks when one of its errors is compared with None.
    if not raw or all(map(is_, map(type(raw[0]).error, raw), repeat(None))):
        return raw, []
    return [record for record in raw if record.error() is None], [
        record for record in raw if record.error() is not None
    ]


def _offset(raw: RawRecord) -> int:
    return int(raw.offset() or 0)
