"""A table, its load and its ClickHouse in simulated time: the real batcher and pace, and nothing else real.

Epochs register what arrived, a second and a bit after it did; the load stage looks ten times a second, cuts by
`plan_batches` and has one insert under way at a time. ClickHouse takes its time by rows, may be away or refuse for a
while, and has parts that every insert adds to and merges take away. Times are multiples of a tick, so runs repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ledger_examples import make_file
from oncehouse.config.pipeline import BatchLimits
from oncehouse.ledger.models import Part
from oncehouse.pipeline.load import insert_rate as pace_module
from oncehouse.pipeline.load.batch_planner import TableFeedback, plan_batches
from oncehouse.pipeline.load.insert_rate import EndedInsert, InsertAnswer, InsertRate

TICK_SECONDS = 0.1
TABLE = "a"


@dataclass(frozen=True, kw_only=True)
class Server:
    """How ClickHouse is: by the second since the start."""

    seconds_an_insert: float = 0.1
    seconds_a_row: float = 1e-6
    away: tuple[float, float] = (0.0, 0.0)
    refusing: tuple[float, float] = (0.0, 0.0)
    merges_a_second: float = 3.0
    parts_limit: int = 100
    """From here on it says that there are too many parts; half of it is where it would slow inserts down."""
    most_rows: int = 10_000_000
    """More rows in one insert than this exhaust its memory."""


@dataclass(frozen=True, kw_only=True)
class Sent:
    at: float
    rows: int
    oldest_at: float
    """When its oldest row arrived."""
    done_at: float


@dataclass(kw_only=True)
class LoadSimulation:
    load: Callable[[float], float]
    """Rows a second, by the second."""
    seconds: float
    server: Server = field(default_factory=Server)
    limits: BatchLimits = field(default_factory=BatchLimits)
    epoch_seconds: float = 0.7
    patience_seconds: float = 300.0
    """How long after the load what is left may take."""
    add_insert: Callable[[InsertRate, EndedInsert, BatchLimits], InsertRate] = pace_module.add_insert
    decide_timing: Callable[[InsertRate, BatchLimits], pace_module.BatchTiming] = pace_module.decide_timing

    pace: InsertRate = field(default_factory=InsertRate)
    sent: list[Sent] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    """Of every attempt."""
    steps: list[int] = field(default_factory=list)
    """How often the interval was doubled, at every look."""
    left: int = 0

    def run(self) -> LoadSimulation:
        """All of the load, and afterwards until nothing is left or nothing more happens."""
        open_parts: list[Part] = []
        batch: tuple[Part, ...] = ()
        ends_at, next_at = 0.0, 0.0
        last_cut, attempts, arrived, parts_here = float("-inf"), 0, 0.0, 0.0
        answer = InsertAnswer.TAKEN
        tick = 0
        while True:
            now = tick * TICK_SECONDS
            tick += 1
            parts_here = max(1.0, parts_here - self.server.merges_a_second * TICK_SECONDS)
            if now < self.seconds:
                arrived += self.load(now) * TICK_SECONDS
            # One epoch after the other; each registers what came before it began.
            if tick % max(1, round(self.epoch_seconds / TICK_SECONDS)) == 0 and arrived >= 1:
                open_parts.append(_part(tick, int(arrived), now))
                self.pace = pace_module.add_arrivals(self.pace, int(arrived), now)
                arrived -= int(arrived)
            else:
                self.pace = pace_module.add_arrivals(self.pace, 0, now)
            if batch and ends_at and now >= ends_at:
                self._record_answer(batch, answer, ends_at - self.starts[-1], parts_here)
                ends_at = 0.0
                if answer is InsertAnswer.TAKEN:
                    rows = sum(part.live_rows for part in batch)
                    self.sent.append(
                        Sent(at=self.starts[-1], rows=rows, oldest_at=batch[0].registered_at, done_at=now)
                    )
                    parts_here += 1
                    batch, attempts = (), 0
                else:
                    attempts += 1
                    next_at = now + min(8.0, 0.25 * 2**attempts)
            if not batch:
                batch = self._cut(open_parts, now, last_cut)
                if batch:
                    last_cut, next_at = now, now
                    open_parts = open_parts[len(batch) :]
            rested = not self.starts or now - self.starts[-1] >= self.limits.min_interval - 1e-6
            if batch and not ends_at and now >= next_at and rested:
                self.starts.append(now)
                rows = sum(part.live_rows for part in batch)
                answer, took = self._insert(rows, now, parts_here)
                ends_at = now + max(TICK_SECONDS, took)
            self.steps.append(self.pace.steps)
            waiting = bool(open_parts or batch or arrived >= 1)
            if now >= self.seconds and (not waiting or now >= self.seconds + self.patience_seconds):
                self.left = sum(part.live_rows for part in (*open_parts, *batch)) + int(arrived)
                return self

    def _cut(self, open_parts: Sequence[Part], now: float, last_cut: float) -> tuple[Part, ...]:
        feedback = TableFeedback(
            # A hair more: sums of ticks fall short of round numbers.
            seconds_since_cut=now - last_cut + 1e-6,
            timing=self.decide_timing(self.pace, self.limits),
        )
        planned = plan_batches(open_parts, limits={TABLE: self.limits}, feedback={TABLE: feedback}, now=now)
        return planned[0].parts if planned else ()

    def _insert(self, rows: int, now: float, parts_here: float) -> tuple[InsertAnswer, float]:
        server = self.server
        if server.away[0] <= now < server.away[1]:
            return InsertAnswer.FAILED, 0.2
        if server.refusing[0] <= now < server.refusing[1] or parts_here >= server.parts_limit:
            return InsertAnswer.TOO_MANY_PARTS, 0.1
        if rows > server.most_rows:
            return InsertAnswer.TOO_LARGE, 1.0
        return InsertAnswer.TAKEN, server.seconds_an_insert + server.seconds_a_row * rows

    def _record_answer(
        self, batch: Sequence[Part], answer: InsertAnswer, seconds: float, parts_here: float
    ) -> None:
        seen = EndedInsert(
            answer=answer,
            rows=sum(part.live_rows for part in batch),
            seconds=seconds,
            parts_share=parts_here / (self.server.parts_limit / 2),
        )
        self.pace = self.add_insert(self.pace, seen, self.limits)

    def sizes(self, since: float, until: float = float("inf")) -> list[int]:
        return [one.rows for one in self.sent if since <= one.at < until]

    def longest_wait(self) -> float:
        """From a row's registration to the start of the insert that brought it."""
        return max((one.at - one.oldest_at for one in self.sent), default=0.0)


def _part(number: int, rows: int, now: float) -> Part:
    return Part(
        part=f"part-{number}",
        epoch=number,
        table=TABLE,
        key_file=f"keys-{number}",
        ordinal=0,
        rows=rows,
        live_rows=rows,
        size_bytes=rows * 100,
        file=make_file(f"part-{number}"),
        registered_at=now,
    )


def count_turns(values: Sequence[float], *, ignored: float) -> int:
    """How often a series changes its direction; ups and downs of less than this share of a value are none."""
    turns, direction, corner = 0, 0, values[0] if values else 0.0
    for value in values[1:]:
        change = (value > corner * (1 + ignored)) - (value < corner * (1 - ignored))
        if change and direction and change != direction:
            turns += 1
        if change:
            direction = change
        if change or (direction >= 0 and value > corner) or (direction <= 0 and value < corner):
            corner = value
    return turns


def largest_ratio(sizes: Sequence[int]) -> float:
    """Between two neighbours."""
    return max((max(a, b) / max(1, min(a, b)) for a, b in pairwise(sizes)), default=1.0)
