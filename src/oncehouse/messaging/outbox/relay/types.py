"""What the parts of a relay exchange: claimed rows, the result of sending, and the interfaces of store and sender."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

Tokens = Mapping[int, int]
"""Buckets, each with the fencing token of this holder's lease."""


class ClaimedRow(NamedTuple):
    """A waiting row as it was claimed. A plain tuple for speed: there are tens of thousands per second."""

    seq: int
    bucket: int
    message_id: str
    topic: str
    key: bytes | None
    value: bytes | None
    headers: str | None
    behind: str | None
    """The id of a parked message of the same topic and key: this one must wait for it."""


class SentPosition(NamedTuple):
    seq: int
    partition: int
    offset: int


class RefusedRow(NamedTuple):
    row: ClaimedRow
    error: str


@dataclass(frozen=True, kw_only=True)
class SendResult:
    """The result of sending rows to Kafka."""

    acknowledged: Sequence[int]
    """`seq` of the rows that Kafka acknowledged."""
    positions: Sequence[SentPosition] = ()
    """Their partitions and offsets, if requested."""
    refused: Sequence[RefusedRow] = ()
    """Rows that can never be sent as they are."""
    error: str | None = None
    """Why the others were not sent; a retry may succeed."""


class Sender(Protocol):
    """Sends rows to Kafka. Used by one thread."""

    def send(self, rows: Sequence[ClaimedRow], *, give_up_at: float) -> SendResult:
        """Return once each row is acknowledged, refused or abandoned; block until `give_up_at` (monotonic) at most.

        The rows of a topic and key are sent in the given order and without gaps: after one that was not acknowledged,
        none of the same topic and key is acknowledged.
        """
        ...

    def close(self) -> None: ...


class RelayStore(Protocol):
    """The outbox table as a relay sees it. Every write checks the buckets' tokens in the same transaction.

    Raises TransientError while the database is unavailable. Used by the threads of the workers and the relay.
    """

    wakes: bool
    """Whether writers can wake a sleeping relay."""

    def claim(self, tokens: Tokens, *, rows: int, size_bytes: int) -> list[ClaimedRow]:
        """The oldest waiting rows of each bucket whose lease is held, by `seq`: per bucket at most `rows`, and none
        after the one that reaches `size_bytes`. Reads only: the lease on the bucket is the claim."""
        ...

    def settle(self, tokens: Tokens, sent: SendResult) -> int:
        """Delete or mark acknowledged rows; returns how many. Buckets lost since then are left alone."""
        ...

    def park(self, tokens: Tokens, refused: Sequence[RefusedRow]) -> int: ...

    def park_behind(self, tokens: Tokens, rows: Sequence[ClaimedRow]) -> int:
        """Park the rows whose key is parked. Rows whose key was released since then stay as they are."""
        ...

    def note_failure(self, tokens: Tokens, seqs: Sequence[int], error: str) -> None:
        """Count a failed attempt and store its error."""
        ...

    def find_waiting(self, buckets: Sequence[int]) -> set[int]:
        """Which of these buckets have waiting rows."""
        ...

    def clean(self, *, keep_seconds: float, rows: int) -> int:
        """Delete at most `rows` rows that were sent more than `keep_seconds` ago."""
        ...

    def wait_for_wake(self, timeout_seconds: float) -> bool:
        """Sleep until a writer notifies the relay (True) or the time is over; only where `wakes`."""
        ...

    def close(self) -> None: ...
