"""A handler's batch: records of one partition in order, with a token that stays the same after a crash."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, overload

from oncehouse.messaging.consumer.records import Records
from oncehouse.messaging.message import Message
from oncehouse.messaging.sent_batches import SentBatches


class Batch(Sequence[Message]):
    """A sequence of messages, created on access. `values` is much faster than the messages' values."""

    def __init__(
        self,
        records: Records,
        *,
        topic: str,
        partition: int,
        first_offset: int,
        last_offset: int,
        attempt: int = 1,
        is_cancelled: Callable[[], bool] = lambda: False,
        source: str | None = None,
        group: str | None = None,
        sent: SentBatches | None = None,
    ) -> None:
        self.topic = topic
        self.source = source
        """The topic whose retry topic this is; None for any other topic."""
        self.partition = partition
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.attempt = attempt
        """From 1; more after the handler failed on the same records."""
        self.group = group
        """The consumer group, if insert tokens name it; None in partitions that the group began with version 0.1.0."""
        self.sent = sent
        """Of handlers in a worker process: what they have sent without an answer, in whichever process it was."""
        self._records = records
        self._is_cancelled = is_cancelled

    @property
    def token(self) -> str:
        """Identifies these records. A batch that is repeated (retry, crash, another consumer) has the same token."""
        return f"{self.topic}/{self.partition}/{self.first_offset}-{self.last_offset}"

    @property
    def insert_token(self) -> str:
        """The token for inserts into a destination that several groups write to."""
        return self.token if self.group is None else f"{self.group}/{self.token}"

    @property
    def values(self) -> list[bytes | None]:
        return self._records.values()

    @property
    def keys(self) -> list[bytes | None]:
        return self._records.keys()

    @property
    def cancelled(self) -> bool:
        """Whether the handler's result is no longer needed: the partition was revoked, or the time to stop is up."""
        return self._is_cancelled()

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._records) if self.source is None else map(self._name_source, self._records)

    @overload
    def __getitem__(self, place: int) -> Message: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Message]: ...
    def __getitem__(self, place: Any) -> Any:
        if self.source is None:
            return self._records[place]
        found = self._records[place]
        return self._name_source(found) if isinstance(found, Message) else list(map(self._name_source, found))

    def _name_source(self, message: Message) -> Message:
        return replace(message, source=self.source)

    def __repr__(self) -> str:
        return f"Batch({self.token!r}, {len(self)} messages, attempt {self.attempt})"
