"""A record as the broker in memory gives it out, with the methods that confluent-kafka's Message has."""

from __future__ import annotations

from dataclasses import dataclass

from oncehouse.messaging.message import Headers


@dataclass(frozen=True, slots=True)
class MemoryRecord:
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
