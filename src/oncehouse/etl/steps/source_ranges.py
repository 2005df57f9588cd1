"""What the source tables hold: their newest positions, all in one query, and where a step's range ends.

A source has the columns `pos` (DateTime or DateTime64) and `id` (UInt64) and is sorted by them, so that both
questions read a few granules. Positions have milliseconds; the id distinguishes rows of one millisecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from oncehouse.clickhouse.client import Client
from oncehouse.clickhouse.complete_results import WHOLE_ANSWERS
from oncehouse.clickhouse.identifiers import quote_table
from oncehouse.clickhouse.replica_sync import read_in_step
from oncehouse.etl.lineage.topic import Topic
from oncehouse.etl.state.models import SourceState
from oncehouse.etl.state.position import MAX_ID, Position, Range

_CLOCK = "toUnixTimestamp64Milli(now64(3))"
_CLOCK_NUMBER = 65_535
_TABLES_PER_QUERY = 400  # larger unions are planned by the server in more than linear time
_SETTINGS = {
    **WHOLE_ANSWERS,
    "max_query_size": 10_000_000,
    "max_ast_elements": 1_000_000,
    "max_expanded_ast_elements": 1_000_000,
}

_POSITION = "toUnixTimestamp64Milli(toDateTime64(pos, 3)) AS time_ms, id"
# The first two conditions serve the primary key, the others are exact, whatever precision `pos` has.
IN_RANGE = """pos >= fromUnixTimestamp64Milli({last_ms:Int64})
    AND pos < fromUnixTimestamp64Milli({upper_ms:Int64} + 1)
    AND (toUnixTimestamp64Milli(toDateTime64(pos, 3)), id) > ({last_ms:Int64}, {last_id:UInt64})
    AND (toUnixTimestamp64Milli(toDateTime64(pos, 3)), id) <= ({upper_ms:Int64}, {next_id:UInt64})"""


def list_source_tables(topics: Sequence[Topic]) -> tuple[str, ...]:
    """Tables that no topic builds, and every main source."""
    built = {topic.dst for topic in topics if not topic.is_source}
    tables: dict[str, None] = {}
    for topic in topics:
        for number, table in enumerate(topic.depends_on):
            if number == 0 or table not in built:
                tables[table] = None
    return tuple(tables)


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What tables held at one moment."""

    states: dict[str, SourceState]
    clock_ms: int | None
    """ClickHouse's time when the first of them was read; None: there was nothing to read."""


def read_sources(
    client: Client, tables: Iterable[str], *, upto_ms: int | None = None, in_step: Iterable[str] = ()
) -> Sources:
    """The newest position of each table, or the newest up to a time; None where it has no rows.

    A replica that lags shows an older one, by which a step only begins later. Not so of tables that are declared to
    have come further than their rows: with nothing new in them, others go ahead. Those have to be `in_step`.
    """
    declared = frozenset(in_step)
    where = "" if upto_ms is None else f"WHERE pos < fromUnixTimestamp64Milli({upto_ms + 1})"
    names = tuple(tables)
    found: dict[str, SourceState] = {name: SourceState(table=name, newest=None) for name in names}
    clock_ms: int | None = None
    for start in range(0, len(names), _TABLES_PER_QUERY):
        chunk = names[start : start + _TABLES_PER_QUERY]
        sql = " UNION ALL ".join(
            f"(SELECT {number} AS number, {_POSITION} FROM {quote_table(name)} {where} "  # noqa: S608 - names are quoted
            "ORDER BY pos DESC, id DESC LIMIT 1)"
            for number, name in enumerate(chunk)
        )
        sql += f" UNION ALL (SELECT {_CLOCK_NUMBER} AS number, {_CLOCK} AS time_ms, 0 AS id)"
        for number, time_ms, id_ in read_in_step(
            client, declared.intersection(chunk), partial(_ask, sql=sql)
        ):
            if number == _CLOCK_NUMBER:
                clock_ms = time_ms if clock_ms is None else min(clock_ms, time_ms)
                continue
            newest = Position(time_ms=time_ms, id=id_)
            found[chunk[number]] = SourceState(table=chunk[number], newest=newest)
    return Sources(states=found, clock_ms=clock_ms)


def _ask(client: Client, *, sql: str) -> list[tuple[Any, ...]]:
    return client.query(sql, settings=_SETTINGS)


def exclude_future(
    client: Client, sources: Mapping[str, SourceState], upto_ms: int, *, in_step: Iterable[str] = ()
) -> dict[str, SourceState]:
    """The sources as they are up to a time. One row with a wrong date would else take every topic past all that is
    still to come. Asks only about those that have such rows."""
    ahead = [name for name, one in sources.items() if one.newest and one.newest.time_ms > upto_ms]
    held = read_sources(client, ahead, upto_ms=upto_ms, in_step=in_step).states
    return {**sources, **{name: replace(one, is_ahead=True) for name, one in held.items()}}


def count_future(client: Client, sources: Iterable[SourceState], upto_ms: int) -> dict[str, int]:
    """Rows that `exclude_future` has left alone, of the sources that have some."""
    start, end = Position(time_ms=upto_ms, id=MAX_ID), Position(time_ms=1 << 53, id=MAX_ID)
    return {
        one.table: count_range(client, one.table, last=start, next_=end, decides=False)
        for one in sources
        if one.is_ahead
    }


def find_range(
    client: Client,
    table: str,
    *,
    last: Position,
    upper_ms: int,
    maxstep_rows: int,
    upper_id: int = MAX_ID,
    decides: bool = True,
) -> Range | None:
    """At most `maxstep_rows` rows after `last` and not after (upper_ms, upper_id); None when there are none.

    What only shows something (`decides` is false) may ask a replica that lags.
    """
    upper = Position(time_ms=upper_ms, id=upper_id)
    sql = (
        f"SELECT count(), max((time_ms, id)) FROM (SELECT {_POSITION} FROM {quote_table(table)} "  # noqa: S608 - quoted
        f"WHERE {between(last, upper)} ORDER BY pos, id LIMIT {{limit:UInt64}})"
    )
    # Reads in order and stops: more threads read what is then thrown away.
    settings = {**WHOLE_ANSWERS, "max_threads": 1}
    rows = read_in_step(
        client,
        [table] if decides else [],
        lambda reader: reader.query(sql, {"limit": maxstep_rows}, settings),
    )
    count, (time_ms, id_) = rows[0]
    if not count:
        return None
    return Range(last=last, next=Position(time_ms=time_ms, id=id_), rows=count, is_cut=count >= maxstep_rows)


def between(last: Position, upper: Position) -> str:
    """As IN_RANGE. Whole numbers only, so they may stand in the text, which the server plans faster."""
    place = "(toUnixTimestamp64Milli(toDateTime64(pos, 3)), id)"
    parts = [
        f"pos >= fromUnixTimestamp64Milli({last.time_ms})",
        f"pos < fromUnixTimestamp64Milli({upper.time_ms + 1})",
        f"{place} > ({last.time_ms}, {last.id})",
    ]
    if upper.id != MAX_ID:
        parts.append(f"{place} <= ({upper.time_ms}, {upper.id})")
    return " AND ".join(parts)


def splits_time(client: Client, table: str, end: Position) -> bool:
    """Whether there are rows after `end` that have the same time."""
    return count_range(client, table, last=end, next_=Position(time_ms=end.time_ms, id=MAX_ID)) > 0


def count_range(client: Client, table: str, *, last: Position, next_: Position, decides: bool = True) -> int:
    """`decides` as for `find_range`."""
    sql = f"SELECT count() FROM {quote_table(table)} WHERE {IN_RANGE}"  # noqa: S608 - the name is quoted
    rows = read_in_step(
        client,
        [table] if decides else [],
        lambda reader: reader.query(sql, bounds(last, next_), WHOLE_ANSWERS),
    )
    return int(rows[0][0])


def bounds(last: Position, next_: Position) -> dict[str, int]:
    """What IN_RANGE binds."""
    return {"last_ms": last.time_ms, "last_id": last.id, "upper_ms": next_.time_ms, "next_id": next_.id}
