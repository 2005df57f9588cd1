"""The scheduler's log inside ClickHouse: a row for each block that reaches a Fact table.

A materialized view on the Fact table counts what was inserted and writes it to `Log`, a Buffer table before
`LogStore`, so that many small steps make no small parts. `LogExt` adds what the server's query log knows of the
same query. A block that ClickHouse dropped as a repeat is logged too; `repeated` marks it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oncehouse.clickhouse.identifiers import quote, quote_table
from oncehouse.clickhouse.table_info import Column, TableFacts, describe_table
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from oncehouse.clickhouse.client import Client
    from oncehouse.etl.lineage.topic import Topic

QUERY_LOG_DAYS = 7
"""`LogExt` looks this far back in the query log, which may be large."""

_INTEGER = re.compile(r"U?Int(8|16|32|64)")
_TIME = re.compile(r"Date(32|Time|Time64)?(\(.*\))?")
_WRAPPER = re.compile(r"^(?:Nullable|LowCardinality)\((.*)\)$")

# Layers; then seconds, rows and bytes, least and most, at which a layer goes to the store.
BUFFER = "16, 10, 100, 10000, 1000000, 10000000, 100000000"
# query_id is text: people name their queries as they like, and a UUID column would refuse the whole insert.
_LOG_STORE = """\
CREATE TABLE IF NOT EXISTS {store}
(
    topic LowCardinality(String),
    ts DateTime DEFAULT now(),
    rows UInt64,
    max_id UInt64,
    min_ts DateTime64(3),
    max_ts DateTime64(3),
    max_lag Int64 ALIAS dateDiff('second', min_ts, ts),
    nulls Map(String, UInt64),
    query_id String
)
ENGINE = MergeTree
ORDER BY (topic, ts)"""
_LOG_EXT = """\
CREATE VIEW IF NOT EXISTS {view} AS
SELECT
    log.topic AS topic, log.ts AS ts, log.rows AS rows, log.max_id AS max_id,
    log.min_ts AS min_ts, log.max_ts AS max_ts, dateDiff('second', log.min_ts, log.ts) AS max_lag,
    log.nulls AS nulls, log.query_id AS query_id,
    query.repeated AS repeated, query.memory_usage AS memory_usage,
    query.query_duration_ms AS duration_ms, query.read_rows AS read_rows
FROM {log} AS log
ANY LEFT JOIN
(
    SELECT
        query_id, memory_usage, query_duration_ms, read_rows,
        ProfileEvents['DuplicatedInsertedBlocks'] > 0 AS repeated
    FROM system.query_log
    WHERE type = 'QueryFinish' AND event_date >= today() - {days}
) AS query ON log.query_id = query.query_id"""


@dataclass(frozen=True, kw_only=True)
class LogRow:
    topic: str
    ts: str
    rows: int
    max_id: int
    min_ts: str
    max_ts: str
    max_lag_seconds: int
    nulls: dict[str, int]
    """Columns with nulls in the block, and how many."""
    query_id: str
    repeated: bool
    memory_bytes: int
    duration_ms: int
    read_rows: int


def log_ddl(database: str) -> tuple[str, ...]:
    """The statements that make the log's tables and view, in order."""
    store, log, view = (f"{quote(database)}.{quote(name)}" for name in ("LogStore", "Log", "LogExt"))
    return (
        _LOG_STORE.format(store=store),
        f"CREATE TABLE IF NOT EXISTS {log} AS {store}\nENGINE = Buffer({quote(database)}, LogStore, {BUFFER})",
        # The query log is made with its first flush; until then no view could name it.
        "SYSTEM FLUSH LOGS query_log",
        _LOG_EXT.format(view=view, log=log, days=QUERY_LOG_DAYS),
    )


def log_view_name(database: str, topic: Topic) -> str:
    return f"{database}.{topic.topic}Log"


def is_log_view(view: str, target: str) -> bool:
    """Whether a materialized view (`database.view`) is the log of a Fact. It may log a repeat: it counts blocks."""
    database, _, name = view.partition(".")
    return name.endswith("Log") and target == f"{database}.Log"


def log_view_ddl(
    database: str,
    topic: Topic,
    facts: TableFacts,
    *,
    id_column: str | None = None,
    time_column: str | None = None,
) -> str:
    """The logging view of one Fact table; columns that are not named are chosen by name and type."""
    id_ = _choose(facts, id_column, _INTEGER, preferred=("id",))
    time = _choose(facts, time_column, _TIME, preferred=("pos", "ts", "time"), or_first=True)
    nullable = [
        column.name
        for column in facts.columns
        if column.type.startswith(("Nullable", "LowCardinality(Nullable"))
    ]
    counts = ", ".join(f"{_literal(name)}, countIf(isNull(f.{quote(name)}))" for name in nullable)
    selected = [f"{_literal(topic.topic)} AS topic", "now() AS ts", "count() AS rows"]
    if id_ is not None:
        selected.append(f"max(toUInt64(ifNull(f.{quote(id_.name)}, 0))) AS max_id")
    if time is not None:
        selected += [f"{fold}(toDateTime64(f.{quote(time.name)}, 3)) AS {fold}_ts" for fold in ("min", "max")]
    if counts:
        selected.append(f"CAST(map({counts}), 'Map(String, UInt64)') AS nulls")
    selected.append("queryID() AS query_id")
    body = ",\n    ".join(selected)
    view = quote_table(log_view_name(database, topic))
    return (
        f"CREATE MATERIALIZED VIEW IF NOT EXISTS {view} "  # nosec B608 - names and literals are quoted
        f"TO {quote(database)}.{quote('Log')} AS\n"
        f"SELECT\n    {body}\nFROM {quote_table(topic.dst)} AS f"
    )


def plan_log_view(
    client: Client, database: str, topic: Topic, *, id_column: str | None, time_column: str | None
) -> str:
    """As `log_view_ddl`, for the Fact table as it is on the server."""
    facts = describe_table(client, topic.dst)
    if facts is None:
        raise ConfigurationError(
            f"topic {topic.topic}: its table {topic.dst} does not exist; create it before its log"
        )
    return log_view_ddl(database, topic, facts, id_column=id_column, time_column=time_column)


def read_log(client: Client, database: str, *, topic: str | None, limit: int) -> tuple[LogRow, ...]:
    """The latest rows, newest first; what is still in the Buffer table is among them."""
    view = f"{quote(database)}.{quote('LogExt')}"
    rows = client.query(
        "SELECT topic, toString(ts), rows, max_id, toString(min_ts), toString(max_ts), max_lag, nulls, query_id, "  # noqa: S608 - quoted
        f"repeated, memory_usage, duration_ms, read_rows FROM {view} "
        "WHERE {topic:String} IN ('', topic) ORDER BY ts DESC, topic LIMIT {limit:UInt32}",
        {"topic": topic or "", "limit": limit},
    )
    return tuple(_log_row(row) for row in rows)


def _log_row(row: tuple[Any, ...]) -> LogRow:
    topic, ts, rows, max_id, min_ts, max_ts, lag, nulls, query_id, repeated, memory, duration, read = row
    return LogRow(
        topic=topic,
        ts=ts,
        rows=rows,
        max_id=max_id,
        min_ts=min_ts,
        max_ts=max_ts,
        max_lag_seconds=lag,
        nulls={name: count for name, count in dict(nulls).items() if count},
        query_id=query_id,
        repeated=bool(repeated),
        memory_bytes=memory,
        duration_ms=duration,
        read_rows=read,
    )


def _choose(
    facts: TableFacts,
    named: str | None,
    kind: re.Pattern[str],
    *,
    preferred: tuple[str, ...],
    or_first: bool = False,
) -> Column | None:
    matching = {column.name: column for column in facts.columns if kind.fullmatch(_bare(column.type))}
    if named is not None:
        if named not in matching:
            raise ConfigurationError(
                f"{facts.database}.{facts.table} has no column {named!r} of a type that fits; "
                f"such are: {', '.join(matching) or 'none'}"
            )
        return matching[named]
    found = next((matching[name] for name in preferred if name in matching), None)
    return found or (next(iter(matching.values()), None) if or_first else None)


def _bare(type_: str) -> str:
    while found := _WRAPPER.match(type_):
        type_ = found[1]
    return type_


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
