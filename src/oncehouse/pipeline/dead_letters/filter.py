"""Selects dead letters by reason, topic, time and position. Pure.

A selection is applied three times, each time to less: to a file's counts in the catalog, to the statistics of
its row groups, and to the dead letters themselves. What cannot hold a selected dead letter is never read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

FILTER_COLUMNS = ("topic", "partition", "offset", "timestamp", "schema", "reason")
"""All that `chosen` looks at."""


@dataclass(frozen=True, kw_only=True, order=True)
class Span:
    """Offsets `first` to `last`, both included, of one partition."""

    topic: str
    partition: int
    first: int
    last: int


@dataclass(frozen=True, kw_only=True)
class Selection:
    """All that is said must hold; nothing said means all letters."""

    reason: str | None = None
    schemas: tuple[str, ...] = ()
    topic: str | None = None
    since: float | None = None
    """Seconds since 1970, compared with the record's own time; included."""
    until: float | None = None
    """Left out."""
    positions: tuple[Span, ...] = ()

    def to_arguments(self) -> dict[str, object]:
        """As a request holds it; what is not said is left out."""
        said = {"reason": self.reason, "topic": self.topic, "since": self.since, "until": self.until}
        spans = [[span.topic, span.partition, span.first, span.last] for span in self.positions]
        return {name: value for name, value in said.items() if value is not None} | (
            {"positions": spans} if spans else {}
        )

    @staticmethod
    def from_arguments(arguments: Mapping[str, Any]) -> Selection:
        return Selection(
            reason=arguments.get("reason"),
            topic=arguments.get("topic"),
            since=arguments.get("since"),
            until=arguments.get("until"),
            positions=tuple(
                Span(topic=str(topic), partition=int(partition), first=int(first), last=int(last))
                for topic, partition, first, last in arguments.get("positions") or ()
            ),
        )

    def may_count(self, reasons: Mapping[str, int]) -> bool:
        """Whether a file with these counts may hold a letter that is meant."""
        return self.reason is None or bool(reasons.get(self.reason))

    def find_groups(self, metadata: pq.FileMetaData) -> list[int]:
        """The row groups that may hold letters that are meant."""
        return [
            number
            for number in range(metadata.num_row_groups)
            if self._may_hold(_read_bounds(metadata.row_group(number)))
        ]

    def _may_hold(self, bounds: Mapping[str, tuple[Any, Any]]) -> bool:
        times = bounds.get("timestamp")
        if times is not None:
            if self.since is not None and times[1] < _moment(self.since):
                return False
            if self.until is not None and times[0] >= _moment(self.until):
                return False
        if self.topic is not None and not _meets(bounds.get("topic"), self.topic, self.topic):
            return False
        return not self.positions or any(
            _meets(bounds.get("topic"), span.topic, span.topic)
            and _meets(bounds.get("partition"), span.partition, span.partition)
            and _meets(bounds.get("offset"), span.first, span.last)
            for span in self.positions
        )

    def chosen(self, dead_letters: pa.Table) -> pa.ChunkedArray:
        """For each letter whether it is meant."""
        tests = []
        if self.reason is not None:
            tests.append(pc.equal(dead_letters.column("reason"), self.reason))
        if self.schemas:
            tests.append(pc.is_in(dead_letters.column("schema"), value_set=pa.array(self.schemas)))
        if self.topic is not None:
            tests.append(pc.equal(dead_letters.column("topic").cast(pa.string()), self.topic))
        if self.since is not None:
            tests.append(pc.greater_equal(dead_letters.column("timestamp"), _scalar(self.since)))
        if self.until is not None:
            tests.append(pc.less(dead_letters.column("timestamp"), _scalar(self.until)))
        if self.positions:
            tests.append(self._placed(dead_letters))
        everything = pa.chunked_array([np.ones(dead_letters.num_rows, dtype=np.bool_)])
        # A letter without the value that is asked for is not meant.
        return pc.fill_null(reduce(pc.and_, tests, everything), False)

    def _placed(self, dead_letters: pa.Table) -> pa.ChunkedArray:
        topic = dead_letters.column("topic").cast(pa.string()).to_numpy(zero_copy_only=False)
        partition, offset = (dead_letters.column(name).to_numpy() for name in ("partition", "offset"))
        placed = np.zeros(dead_letters.num_rows, dtype=np.bool_)
        for span in self.positions:
            placed |= (
                (topic == span.topic)
                & (partition == span.partition)
                & (offset >= span.first)
                & (offset <= span.last)
            )
        return pa.chunked_array([placed])


def _read_bounds(group: pq.RowGroupMetaData) -> dict[str, tuple[Any, Any]]:
    """Least and greatest value by column; a column without them may hold anything."""
    bounds = {}
    for number in range(group.num_columns):
        column = group.column(number)
        statistics = column.statistics
        if column.path_in_schema in FILTER_COLUMNS and statistics is not None and statistics.has_min_max:
            bounds[column.path_in_schema] = (statistics.min, statistics.max)
    return bounds


def _meets(bounds: tuple[Any, Any] | None, first: Any, last: Any) -> bool:
    return bounds is None or (bounds[0] <= last and bounds[1] >= first)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _scalar(seconds: float) -> pa.Scalar:
    return pa.scalar(_moment(seconds), pa.timestamp("us", tz="UTC"))
