"""Late rows: which they are, written down once, so that a repair that runs again builds the very same ones.

The rows of the main source in a range whose position the Fact table does not hold are put into a table of the
repair's own, complete before it gets its name. What the transform yields for exactly these is then inserted under a
token of the repair. Needs `pos` and `id` in the Fact table, as they are in the source.
"""

from __future__ import annotations

import uuid
from functools import partial

from oncehouse.clickhouse.client import Client, failure_of
from oncehouse.clickhouse.error_codes import ErrorCode
from oncehouse.clickhouse.identifiers import TableName, quote_table, split_table
from oncehouse.clickhouse.replica_sync import read_in_step, write_in_step
from oncehouse.clickhouse.table_info import describe_table
from oncehouse.errors import ConfigurationError, PermanentError
from oncehouse.etl.lineage.topic import Topic
from oncehouse.etl.state.position import Position
from oncehouse.etl.steps.operation_builder import late_condition
from oncehouse.etl.steps.operations import Freeze
from oncehouse.etl.steps.source_ranges import IN_RANGE, bounds

REPAIR_ROWS = 65_536
"""Rows that one repair looks at, at most."""
KEEPING_ENGINES = frozenset({"MergeTree", "ReplicatedMergeTree", "SharedMergeTree"})


def check_repairable(client: Client, topic: Topic, columns: tuple[str, ...]) -> None:
    """Refused where late rows cannot be distinguished from those that are there."""
    facts = describe_table(client, topic.dst)
    engine = facts.engine if facts else "missing"
    has_place = all(facts and facts.column(name) and name in columns for name in ("pos", "id"))
    if not has_place or engine not in KEEPING_ENGINES:
        raise ConfigurationError(
            f"Topic {topic.topic}: late rows of {topic.depends_on[0]} cannot be repaired in {topic.dst} ({engine}). "
            "That takes the columns pos and id of the source in the transform and in the table, and an engine that "
            "keeps every row (MergeTree). Use `late: count`, or the template range."
        )


def find_end(client: Client, topic: Topic, last: Position, next_: Position) -> Position:
    """Where a repair of the range ends: there, or where it has looked at enough rows."""
    sql = (
        f"SELECT count(), max((time_ms, id)) FROM ({_missing(topic)} ORDER BY time_ms, id "  # noqa: S608 - quoted
        "LIMIT {limit:UInt64})"
    )
    rows = read_in_step(
        client,
        (topic.depends_on[0], topic.dst),
        lambda reader: reader.query(sql, {**bounds(last, next_), "limit": REPAIR_ROWS}),
    )
    count, (time_ms, id_) = rows[0]
    return next_ if count < REPAIR_ROWS else Position(time_ms=time_ms, id=id_)


def record_late_rows(client: Client, topic: Topic, operation: Freeze) -> int:
    """Write down which rows are late, unless that was done before; how many they are."""
    # A name of its own: a host that slept must not give the name to what another one has not filled yet.
    table, made = quote_table(operation.table), quote_table(f"{operation.table}_new_{uuid.uuid4().hex}")
    if not client.query(f"EXISTS TABLE {table}")[0][0]:
        # Rows of the Fact table that a lagging replica does not show would be taken for late ones, and doubled.
        write_in_step(
            client, (topic.depends_on[0], topic.dst), partial(_create_record, topic, operation, made)
        )
        try:
            client.command(f"RENAME TABLE {made} TO {table}")
        except PermanentError as error:
            if failure_of(error).code != ErrorCode.TABLE_ALREADY_EXISTS:
                raise
            client.command(f"DROP TABLE IF EXISTS {made} SYNC")
    return int(client.query(f"SELECT count() FROM {table}")[0][0])  # noqa: S608 - quoted


def _create_record(topic: Topic, operation: Freeze, made: str, client: Client, in_step: str) -> None:
    if in_step:
        client.command(f"DROP TABLE IF EXISTS {made} SYNC")  # of a try before, which failed half-way
    client.command(
        f"CREATE TABLE {made} (time_ms Int64, id UInt64) ENGINE = MergeTree ORDER BY (time_ms, id) "
        f"AS {_missing(topic)}{f' AND {in_step}' if in_step else ''}",
        bounds(operation.last, operation.next),
    )


def drop_old_records(client: Client, topic: Topic, number: int) -> None:
    """Drop what processes that died in repairs before this one have left."""
    dst = split_table(topic.dst)
    database = dst.database or client.database
    rows = client.query(
        "SELECT name FROM system.tables WHERE database = {database:String} AND startsWith(name, {prefix:String}) "
        "AND match(substring(name, length({prefix:String}) + 1), '^[0-9]{1,18}(_new_[0-9a-f]{32})?$') "
        "AND toUInt64OrZero(extract(substring(name, length({prefix:String}) + 1), '^[0-9]+')) < {number:UInt64}",
        {"database": database, "prefix": f"{dst.table}_late", "number": number},
    )
    for (name,) in rows:
        table = TableName(database=database, table=name)
        client.command(f"DROP TABLE IF EXISTS {table.quoted} SYNC")


def count_built(client: Client, topic: Topic, operation: Freeze) -> int:
    """Rows of the Fact table at the positions that were written down."""
    sql = (
        f"SELECT count() FROM {quote_table(topic.dst)} WHERE {IN_RANGE} AND {late_condition(operation.table)}"  # noqa: S608 - quoted
    )
    rows = read_in_step(
        client, [topic.dst], lambda reader: reader.query(sql, bounds(operation.last, operation.next))
    )
    return int(rows[0][0])


def _missing(topic: Topic) -> str:
    source, dst = quote_table(topic.depends_on[0]), quote_table(topic.dst)
    return (
        f"SELECT DISTINCT toUnixTimestamp64Milli(toDateTime64(pos, 3)) AS time_ms, toUInt64(id) AS id FROM {source} "  # noqa: S608 - quoted
        f"WHERE {IN_RANGE} AND (time_ms, toUInt64(id)) NOT IN "
        f"(SELECT toUnixTimestamp64Milli(toDateTime64(pos, 3)), toUInt64(id) FROM {dst} WHERE {IN_RANGE})"
    )
