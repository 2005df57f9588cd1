"""Looks for late rows: counts what the main sources hold now in ranges that were covered before.

On a pace of its own and not with each step; of all hosts one looks at a time. A source into which nothing was
inserted since the last look is not counted again, and the ranges of all topics are counted in a few queries. Seen
is a range that has more rows than it had; rows that went while as many came are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from oncehouse.clickhouse.client import Client
from oncehouse.clickhouse.identifiers import quote_table, split_table
from oncehouse.clickhouse.replica_sync import read_in_step
from oncehouse.etl.lineage.topic import LatePolicy, Topic
from oncehouse.etl.state import coverage, transitions
from oncehouse.etl.state.coverage import CoveredRange
from oncehouse.etl.state.models import Offset
from oncehouse.etl.state.topic_lease import MutexError
from oncehouse.etl.state.transitions import OffsetStore

_TURN = ":late"
"""The row by which hosts agree who looks; no topic can have this name."""
_RANGES_PER_QUERY = 400


class LateRowWatch:
    def __init__(self, client: Client, store: OffsetStore, topics: Sequence[Topic]) -> None:
        self._client = client
        self._store = store
        self._topics = tuple(
            topic for topic in topics if topic.depends_on and topic.late is not LatePolicy.IGNORE
        )
        self._seen: dict[str, tuple[int | None, tuple[CoveredRange, ...]]] = {}
        """Topic, what had been inserted into its source at the last look, and the ranges that were counted."""

    def take_turn(self, every_seconds: float) -> bool:
        """Whether this host shall look now; then no other one does for a while."""

        def decide(row: Offset, now_ms: int) -> Offset:
            if row.run_ms and now_ms - row.run_ms < every_seconds * 1000:
                raise MutexError("Late rows were counted a moment ago.")
            return row

        try:
            self._store.change(_TURN, decide)
        except MutexError:
            return False
        return True

    def record(self) -> int:
        """Count, and write down what has changed; for how many topics that was."""
        known = self._store.read_all()
        inserted = read_insertions(self._client, {topic.depends_on[0] for topic in self._topics})
        to_count: dict[str, tuple[str, tuple[CoveredRange, ...]]] = {}
        for topic in self._topics:
            segments = select_covered(topic, known.offsets.get(topic.topic))
            number = inserted.get(topic.depends_on[0])
            if segments and (number is None or self._seen.get(topic.topic) != (number, segments)):
                to_count[topic.topic] = (topic.depends_on[0], segments)
        counted = count_covered(
            self._client, [(source, one) for source, segments in to_count.values() for one in segments]
        )
        counts = iter(counted)
        changed = 0
        for name, (source, segments) in to_count.items():
            found = {segment: next(counts) for segment in segments}
            if self._note(known.offsets[name], found):
                changed += 1
            else:  # nothing new, or worked on just now: then its ranges will differ
                self._seen[name] = (inserted.get(source), segments)
        return changed

    def _note(self, offset: Offset, counts: Mapping[CoveredRange, int]) -> bool:
        """Whether something new was written down."""
        if coverage.update_counts(offset.topic_state.segments, counts) == offset.topic_state.segments:
            return False
        with suppress(MutexError):
            transitions.update_counts(self._store, offset.topic, counts)
            return True
        return False


def select_covered(topic: Topic, offset: Offset | None) -> tuple[CoveredRange, ...]:
    """The covered ranges that are looked at; none while a step is under way."""
    if offset is None or offset.hostid or offset.is_open:
        return ()
    from_ms = offset.reached.time_ms - topic.late_within_seconds * 1000
    return tuple(one for one in offset.topic_state.segments if one.upto.time_ms >= from_ms)


def count_covered(client: Client, to_count: Sequence[tuple[str, CoveredRange]]) -> list[int]:
    """Rows of each source within each range, on a replica that is in step: rows that it does not show yet would be
    late ones afterwards."""
    counts = [0] * len(to_count)
    for start in range(0, len(to_count), _RANGES_PER_QUERY):
        chunk = to_count[start : start + _RANGES_PER_QUERY]
        sql = " UNION ALL ".join(
            _count_sql(number, table, segment) for number, (table, segment) in enumerate(chunk)
        )
        for number, count in read_in_step(client, {table for table, _ in chunk}, partial(_ask, sql=sql)):
            counts[start + number] = int(count)
    return counts


def _ask(client: Client, *, sql: str) -> list[tuple[Any, ...]]:
    return client.query(sql, settings={"max_query_size": 10_000_000})


def _count_sql(number: int, table: str, segment: CoveredRange) -> str:
    """Whole numbers only, so they may stand in the text."""
    after, upto = segment.after, segment.upto
    place = "(toUnixTimestamp64Milli(toDateTime64(pos, 3)), toUInt64(id))"
    return (
        f"SELECT {number} AS number, count() FROM {quote_table(table)} "  # noqa: S608 - quoted, and whole numbers
        f"WHERE pos >= fromUnixTimestamp64Milli({after.time_ms}) "
        f"AND pos < fromUnixTimestamp64Milli({upto.time_ms + 1}) "
        f"AND {place} > ({after.time_ms}, toUInt64({after.id})) AND {place} <= ({upto.time_ms}, toUInt64({upto.id}))"
    )


def read_insertions(client: Client, tables: Iterable[str]) -> dict[str, int]:
    """A number for each table that moves with every insert; tables that keep no parts are left out."""
    names = {table: split_table(table) for table in tables}
    keys = {f"{name.database or client.database}.{name.table}": table for table, name in names.items()}
    rows = client.query(
        "SELECT full, groupBitXor(cityHash64(partition_id, newest)) FROM (SELECT database || '.' || table AS full, "
        "partition_id, max(max_block_number) AS newest FROM system.parts WHERE active "
        "AND full IN {names:Array(String)} GROUP BY full, partition_id) GROUP BY full",
        {"names": sorted(keys)},
    )
    return {keys[full]: int(number) for full, number in rows}
