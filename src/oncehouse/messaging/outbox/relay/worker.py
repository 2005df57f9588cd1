"""A lane: a thread that takes the rows of some buckets to Kafka, round after round.

A round claims, sends, and settles what was acknowledged, in this order and never ahead: a lane has one round under way,
so a bucket's next rows are claimed only when the fate of the former is written down. A bucket always belongs to the
same lane of a process. Lanes sleep while their buckets are empty; the relay wakes them.
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
from oncehouse.messaging.outbox.relay.types import RelayStore, Row, Sender, Sent, Tokens


@dataclass(frozen=True, kw_only=True)
class Limits:
    rows: int = 4_000
    """Rows that a round claims at most, over all of the lane's buckets."""
    size_bytes: int = 16 << 20
    """About how many bytes of values that may be; a bucket gives at least one row."""
    send_seconds: float = 15.0
    """How long acknowledgements are waited for before the round is given up and tried again."""
    linger_seconds: float = 0.01
    """How long to wait after a small round, so that a trickle is not sent row by row."""


@dataclass(frozen=True, kw_only=True)
class Round:
    claimed: int = 0
    sent: int = 0
    parked: int = 0
    error: str | None = None


class Lane:
    def __init__(
        self,
        *,
        store: RelayStore,
        sender: Sender,
        limits: Limits,
        backoff: Backoff,
        may_go_on: Callable[[], bool],
        tell: Callable[[Round], None],
    ) -> None:
        self._store = store
        self._sender = sender
        self._limits = limits
        self._backoff = backoff
        self._may_go_on = may_go_on
        self._tell = tell
        self._changed = threading.Condition()
        self._tokens: Tokens = {}
        self._under_way: Tokens = {}
        self._awake = False
        self._wakes = 0
        self._stopped = False
        self.error: Exception | None = None

    # What the relay's thread calls

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
        """Buckets of the round that has begun and not ended."""
        with self._changed:
            return frozenset(self._under_way)

    def holds(self, tokens: Tokens) -> bool:
        """Whether every bucket of the round under way is among these, under the token it was claimed with."""
        with self._changed:
            return self._under_way.items() <= tokens.items()

    # What its own thread does

    def run(self) -> None:
        failures = 0
        try:
            while (tokens := self._next_tokens()) is not None:
                wakes = self._wakes
                try:
                    done = self.run_round(tokens)
                except TransientError as error:
                    done = Round(error=str(error))
                finally:
                    self._end_round()
                self._tell(done)
                failures = failures + 1 if done.error else 0
                self._rest(done, failures, wakes)
        except Exception as error:  # noqa: BLE001 - a thread's edge: the relay's thread raises it
            self.error = error
        finally:
            self._sender.close()

    def run_round(self, tokens: Tokens) -> Round:
        size_bytes = max(1, self._limits.size_bytes // max(1, len(tokens)))
        rows = self._store.claim(tokens, rows=self._rows_a_bucket(tokens), size_bytes=size_bytes)
        if not rows:
            return Round()
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
        return Round(claimed=len(rows), sent=len(sent.acknowledged), parked=parked, error=sent.error)

    def _rows_a_bucket(self, tokens: Tokens) -> int:
        """Also what a single busy key may fill: a round that gave that many is no trickle."""
        return max(1, self._limits.rows // max(1, len(tokens)))

    def _send(self, rows: list[Row]) -> Sent:
        # Claimed in time, but the process may have been stopped since: another relay may be at these rows by now.
        if not self._may_go_on():
            return Sent(acknowledged=(), error="the leases could not be renewed in time")
        if not rows:
            return Sent(acknowledged=())
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

    def _rest(self, done: Round, failures: int, wakes: int) -> None:
        with self._changed:
            if failures:
                # Who failed comes again by itself, whether it is woken or not.
                self._wait(self._backoff.wait_seconds(failures, chance=random.random()))  # noqa: S311 - no secret
            elif not done.claimed:
                # Whoever woke us since the claim has seen something that the claim has not.
                self._awake = self._wakes != wakes
            elif done.claimed < min(self._limits.rows // 10, self._rows_a_bucket(self._tokens)):
                self._wait(self._limits.linger_seconds)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stopped and (left := until - time.monotonic()) > 0:
            self._changed.wait(left)


def find_heads(rows: list[Row], sent: Sent) -> list[int]:
    """The oldest unsent row of each bucket: a failure is written down there alone, so that waiting costs little."""
    done = {*sent.acknowledged, *(refusal.row.seq for refusal in sent.refused)}
    heads: dict[int, int] = {}
    for row in rows:
        if row.seq not in done:
            heads.setdefault(row.bucket, row.seq)
    return sorted(heads.values())
