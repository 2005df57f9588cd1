"""The log that a stream reads, partition by partition: it must be the one that the ledger has read, and stay it.

At the start of a stream the ledger's positions are compared with it. After each epoch's records were read, one request
asks who leads: the same leader as at the start means that nothing was cut meanwhile; another one, that the epoch is
read again, after the comparison at the next start. So each position is settled with the leader epoch of exactly the log
it was read from, though Spark's source reports none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from oncehouse.common.leader_epochs import EpochEnd, Place
from oncehouse.ledger.models import OffsetRange
from oncehouse.pipeline.ingest.log_history import (
    FIRST_EPOCH,
    LogEnd,
    StaleLeaders,
    check_ends,
    check_history,
    check_leaders,
    find_doubtful,
)

_NO_END = 1 << 63


class Brokers(Protocol):
    def ends(self, partitions: Iterable[Place]) -> dict[Place, LogEnd]: ...

    def epoch_ends(self, leader_epochs: Mapping[Place, int]) -> dict[Place, EpochEnd]: ...


@dataclass(frozen=True, kw_only=True)
class _Stretch:
    """Offsets behind `start` up to `end` that were written under one leader epoch."""

    epoch: int
    start: int
    end: int


class KafkaLog:
    """Raises DataLossError where what was read is no longer there, TransientError where that cannot be said yet."""

    def __init__(
        self,
        brokers: Brokers,
        positions: Mapping[Place, int],
        known: Mapping[Place, int],
        stale: StaleLeaders | None = None,
    ) -> None:
        """`known`: the leader epoch of what stands before each position, as far as the ledger has it."""
        self._brokers = brokers
        ends = brokers.ends(positions)
        doubtful = find_doubtful(known, ends, stale or StaleLeaders())
        check_ends(positions, ends)
        check_history(positions, doubtful, brokers.epoch_ends(doubtful))
        self._leaders = {place: end.leader_epoch for place, end in ends.items()}
        self._stretches = {
            place: _Stretch(epoch=epoch, start=positions[place], end=_NO_END)
            for place, epoch in known.items()
            if place in ends and ends[place].leader_epoch == epoch
        }

    def confirm(self, ranges: tuple[OffsetRange, ...]) -> tuple[OffsetRange, ...]:
        """The ranges that were read, with the leader epoch of the last record of each."""
        read_to = {(span.topic, span.partition): span.end for span in ranges}
        filled = {(span.topic, span.partition): span.end for span in ranges if span.end > span.start}
        # Before the leaders are asked for: what another leader says of epochs would be of another log.
        self._find_epochs(filled)
        ends = self._brokers.ends(read_to)
        check_leaders(self._leaders, ranges, ends)
        check_ends(read_to, ends)
        # Where nothing was read, the leader of the last comparison stays the one that counts.
        self._leaders |= {place: ends[place].leader_epoch for place in filled}
        return tuple(
            replace(span, leader_epoch=self._epoch_of((span.topic, span.partition), span.end))
            for span in ranges
        )

    def _epoch_of(self, place: Place, end: int) -> int | None:
        known = self._stretches.get(place)
        return known.epoch if known is not None and known.start <= end <= known.end else None

    def _find_epochs(self, wanted: Mapping[Place, int]) -> None:
        """The stretch that each offset ends or stands in. One request suffices where a reader has caught up."""
        searched = {
            place: _Search(offset=offset, latest=leader)
            for place, offset in wanted.items()
            if self._epoch_of(place, offset) is None
            and (leader := self._leaders.get(place, FIRST_EPOCH)) is not None
        }
        while open_ones := {place: search for place, search in searched.items() if search.found is None}:
            answers = self._brokers.epoch_ends({place: search.asks for place, search in open_ones.items()})
            for place, search in open_ones.items():
                # The leader knows none of its epochs: records of before there were any.
                if answers[place].end < 0:
                    del searched[place]
                else:
                    search.take(answers[place])
        self._stretches |= {
            place: search.found for place, search in searched.items() if search.found is not None
        }


class _Search:
    """Bisection over leader epochs: the first one whose records reach the offset."""

    def __init__(self, *, offset: int, latest: int) -> None:
        self._offset = offset
        self._low, self._high = 0, latest
        self._start, self._end = 0, _NO_END
        # Nearly always the records were written under the last one, which begins where the one before ends.
        self.asks = max(latest - 1, 0)
        self.found: _Stretch | None = None
        if latest == 0:
            self._finish()

    def take(self, answer: EpochEnd) -> None:
        if answer.end >= self._offset:
            self._high, self._end = min(answer.epoch, self.asks), answer.end
        else:
            self._low, self._start = self.asks + 1, max(answer.end, 0) + 1
        if self._low >= self._high:
            self._finish()
        else:
            self.asks = (self._low + self._high) // 2

    def _finish(self) -> None:
        self.found = _Stretch(epoch=self._high, start=self._start, end=self._end)
