"""A relay worker: a thread that sends the rows of its buckets to Kafka, round after round.

A round claims rows, sends them, and settles those that were acknowledged. A worker has one round under way, so the next
rows of a bucket are claimed only after the result of the former ones is stored: this keeps the order by key. A bucket
always belongs to the same worker of a process. Workers sleep while their buckets are empty; the relay wakes them.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from oncehouse.common import failpoints
from oncehouse.common.backoff import Backoff
from oncehouse.errors import TransientError
from oncehouse.messaging.outbox.relay.types import ClaimedRow, RelayStore, Sender, SendResult, Tokens


@dataclass(frozen=True, kw_only=True)
class RoundLimits:
    rows: int = 4_000
    """Rows that a round claims at most, over all buckets of the worker."""
    size_bytes: int = 16 << 20
    """About how many bytes of values a round claims; each bucket gives at least one row."""
    send_seconds: float = 15.0
    """How long to wait for acknowledgements before the round is abandoned and retried."""
    linger_seconds: float = 0.01
    """How long to wait after a small round, so that slow writers do not cause one request per row."""


@dataclass(frozen=True, kw_only=True)
class RelayRound:
    claimed: int = 0
    sent: int = 0
    parked: int = 0
    error: str | None = None


class RelayWorker:
    def __init__(
        self,
        *,
        store: RelayStore,
        sender: Sender,
        limits: RoundLimits,
        backoff: Backoff,
        may_continue: Callable[[], bool],
        on_round: Callable[[RelayRound], None],
    ) -> None:
        self._store = store
        self._sender = sender
        self._limits = limits
        self._backoff = backoff
        self._may_continue = may_continue
        self._on_round = on_round
        self._changed = threading.Condition()
        self._tokens: Tokens = {}
        self._under_way: Tokens = {}
        self._awake = False
        self._wakes = 0
        self._stopped = False
        self.error: Exception | None = None

    # Called by the relay's thread

    def assign(self, tokens: Mapping[int, int]) -> None:
        """From the next round on, work on these buckets."""
        with self._changed:
            self._tokens = dict(tokens)

    def wake(self) -> None:
        with self._changed:
            self._awake = True
            self._wakes += 1
            self._changed.notify()

    def stop(self) -> None:
        """End after the round that is under way."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    @property
    def is_idle(self) -> bool:
        with self._changed:
            return not self._awake and not self._under_way

    def under_way(self) -> frozenset[int]:
        """Buckets of the current round."""
        with self._changed:
            return frozenset(self._under_way)

    def holds(self, tokens: Tokens) -> bool:
        """Whether every bucket of the current round is among these, with the token it was claimed under."""
        with self._changed:
            return self._under_way.items() <= tokens.items()

    # Run by the worker's own thread

    def run(self) -> None:
        failures = 0
        try:
            while (tokens := self._next_tokens()) is not None:
                wakes = self._wakes
                try:
                    done = self.run_round(tokens)
                except TransientError as error:
                    done = RelayRound(error=str(error))
                finally:
                    self._end_round()
                self._on_round(done)
                failures = failures + 1 if done.error else 0
                self._rest(done, failures, wakes)
        except Exception as error:  # noqa: BLE001 - the thread's boundary: the relay's thread raises it
            self.error = error
        finally:
            self._sender.close()

    def run_round(self, tokens: Tokens) -> RelayRound:
        size_bytes = max(1, self._limits.size_bytes // max(1, len(tokens)))
        rows = self._store.claim(tokens, rows=self._rows_a_bucket(tokens), size_bytes=size_bytes)
        if not rows:
            return RelayRound()
        failpoints.reach("outbox claimed")
        parked = self._store.park_behind(tokens, [row for row in rows if row.behind is not None])
        ready = [row for row in rows if row.behind is None]
        sent = self._send(ready)
        failpoints.reach("outbox sent")
        ours = {bucket: tokens[bucket] for bucket in {row.bucket for row in ready}}
        self._store.settle(ours, sent)
        failpoints.reach("outbox settled")
        parked += self._store.park(ours, sent.refused)
        if sent.error is not None:
            self._store.note_failure(ours, find_heads(ready, sent), sent.error)
        return RelayRound(claimed=len(rows), sent=len(sent.acknowledged), parked=parked, error=sent.error)

    def _rows_a_bucket(self, tokens: Tokens) -> int:
        """At least one. A round that claimed this many rows from one busy key counts as full."""
        return max(1, self._limits.rows // max(1, len(tokens)))

    def _send(self, rows: list[ClaimedRow]) -> SendResult:
        # The process may have been suspended since the claim: another relay may send these rows by now.
        if not self._may_continue():
            return SendResult(acknowledged=(), error="the leases could not be renewed in time")
        if not rows:
            return SendResult(acknowledged=())
        return self._sender.send(rows, give_up_at=time.monotonic() + self._limits.send_seconds)

    def _next_tokens(self) -> Tokens | None:
        with self._changed:
            while not self._stopped and not (self._awake and self._tokens):
                self._awake = False
                self._changed.wait()
            if self._stopped:
                return None
            self._under_way = self._tokens
            return self._tokens

    def _end_round(self) -> None:
        with self._changed:
            self._under_way = {}

    def _rest(self, done: RelayRound, failures: int, wakes: int) -> None:
        with self._changed:
            if failures:
                # After a failure the worker retries without being woken.
                self._wait(self._backoff.wait_seconds(failures, jitter=random.random()))  # noqa: S311 - no secret
            elif not done.claimed:
                # A wake-up since the claim may be about rows that the claim did not see.
                self._awake = self._wakes != wakes
            elif done.claimed < min(self._limits.rows // 10, self._rows_a_bucket(self._tokens)):
                self._wait(self._limits.linger_seconds)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stopped and (left := until - time.monotonic()) > 0:
            self._changed.wait(left)


def find_heads(rows: list[ClaimedRow], sent: SendResult) -> list[int]:
    """The oldest unsent row of each bucket: failures are recorded only there, so that retries cost little."""
    done = {*sent.acknowledged, *(refusal.row.seq for refusal in sent.refused)}
    heads: dict[int, int] = {}
    for row in rows:
        if row.seq not in done:
            heads.setdefault(row.bucket, row.seq)
    return sorted(heads.values())
