"""What the parts of a relay exchange: claimed rows, the result of sending, and the interfaces of store and sender."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

Tokens = Mapping[int, int]
"""Buckets, each with the fencing token under which it is ours."""


class Row(NamedTuple):
    """A waiting row as it was claimed. A plain tuple, because there are tens of thousands a second."""

    seq: int
    bucket: int
    message_id: str
    topic: str
    key: bytes | None
    value: bytes | None
    headers: str | None
    behind: str | None
    """The id of a parked message of the same topic and key: this one must wait for it."""


class Position(NamedTuple):
    seq: int
    partition: int
    offset: int


class Refusal(NamedTuple):
    row: Row
    error: str


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What became of rows that were given to Kafka."""

    acknowledged: Sequence[int]
    """Numbers of the rows that Kafka has for sure."""
    positions: Sequence[Position] = ()
    """Where they stand, if it was asked for."""
    refused: Sequence[Refusal] = ()
    """Rows that can never be sent as they are."""
    error: str | None = None
    """Why the others were not sent; the same may succeed later."""


class Sender(Protocol):
    """Takes rows to Kafka. Used by one thread."""

    def send(self, rows: Sequence[Row], *, give_up_at: float) -> Sent:
        """Returns when each row is acknowledged, refused, or given up; blocks until `give_up_at` (monotonic) at most.

        The rows of a topic and key are sent in the order given, without a gap: after one that was not acknowledged,
        none of the same topic and key is.
        """
        ...

    def close(self) -> None: ...


class RelayStore(Protocol):
    """The outbox table as a relay sees it. Every write checks the buckets' tokens in the same transaction.

    Raises TransientError while the database is away. Used by several threads, one a lane and the relay's own.
    """

    wakes: bool
    """Whether writers can wake a sleeping relay."""

    def claim(self, tokens: Tokens, *, rows: int, size_bytes: int) -> list[Row]:
        """The oldest waiting rows of each bucket that is still ours, by `seq`: at most `rows` a bucket, and no more
        than the first that reaches `size_bytes` in it. Reads only: what is claimed is ours because its bucket is."""
        ...

    def settle(self, tokens: Tokens, sent: Sent) -> int:
        """Delete or mark what was acknowledged; says how many rows that were. Buckets lost meanwhile are left alone."""
        ...

    def park(self, tokens: Tokens, refused: Sequence[Refusal]) -> int: ...

    def park_behind(self, tokens: Tokens, rows: Sequence[Row]) -> int:
        """Put aside the rows whose key is parked. Those whose key was let go meanwhile stay as they are."""
        ...

    def note_failure(self, tokens: Tokens, seqs: Sequence[int], error: str) -> None:
        """Count an attempt that failed, and keep what was said."""
        ...

    def find_waiting(self, buckets: Sequence[int]) -> set[int]:
        """Which of these buckets have rows to be sent."""
        ...

    def clean(self, *, keep_seconds: float, rows: int) -> int:
        """Delete at most so many rows that were sent longer ago than that."""
        ...

    def wait_for_wake(self, timeout_seconds: float) -> bool:
        """Sleep until a writer wakes us (True) or the time is over; only where `wakes`."""
        ...

    def close(self) -> None: ...
