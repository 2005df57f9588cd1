"""What statements are to a replicated table, and how they must read for plain tables to answer as replicated ones.

Texts only, for `replica_stand_in.py`; as much of SQL as oncehouse and its tests send.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Statement(StrEnum):
    READ = "read"
    INSERT = "insert"
    INSERT_SELECT = "insert select"
    CREATE = "create"
    CHANGE = "change"
    """Other DDL, and whatever else both servers must do in the order of writes."""
    SYNC = "sync"
    KILL = "kill"


@dataclass(frozen=True, kw_only=True)
class InsertSelect:
    insert: str
    select: str


_INSERT_SELECT = re.compile(
    r"(INSERT\s+INTO\s+\S+\s*(?:\([^()]*\))?)\s*((?:SELECT|WITH)\b.*)", re.DOTALL | re.IGNORECASE
)
_CHANGES = {
    "ALTER",
    "DROP",
    "RENAME",
    "EXCHANGE",
    "TRUNCATE",
    "DELETE",
    "OPTIMIZE",
    "ATTACH",
    "DETACH",
}
_ENGINE = re.compile(r"\bReplicated(\w*MergeTree)\s*(?:\(\s*'[^']*'\s*,\s*'[^']*'\s*\))?")

_TABLES = (
    "(SELECT * REPLACE (if(endsWith(engine, 'MergeTree'), 'Replicated' || engine, engine) AS engine, "
    "if(endsWith(engine, 'MergeTree'), 'Replicated' || replaceAll(engine_full, 'non_replicated_dedup', "
    "'replicated_dedup'), engine_full) AS engine_full) FROM system.tables)"
)
_REPLICAS = (
    "(SELECT database, name AS table, {is_readonly} AS is_readonly, 0 AS is_session_expired, "
    "{delay_seconds} AS absolute_delay, {queue} AS queue_size, {queue} AS inserts_in_queue, "
    "{written} AS log_max_index, '' AS zookeeper_exception, "
    "2 AS total_replicas, 2 AS active_replicas FROM system.tables WHERE endsWith(engine, 'MergeTree'))"
)
_SETTINGS = (
    "(SELECT * REPLACE (multiIf(name = 'insert_quorum', '2', name = 'insert_quorum_parallel', '0', value) AS value) "
    "FROM system.settings)"
)
_WINDOWS = (
    "(SELECT 'replicated_deduplication_window' AS name, '10000' AS value "
    "UNION ALL SELECT 'replicated_deduplication_window_seconds', '3600')"
)


def read_statement(sql: str) -> Statement:
    words = sql.lstrip().split(None, 3)
    first = words[0].upper() if words else ""
    if first == "INSERT":
        return Statement.INSERT_SELECT if _INSERT_SELECT.match(sql.lstrip()) else Statement.INSERT
    if first == "SYSTEM":
        is_sync = [word.upper() for word in words[1:3]] == ["SYNC", "REPLICA"]
        return Statement.SYNC if is_sync else Statement.CHANGE
    if first == "KILL":
        return Statement.KILL
    if first == "CREATE":
        return Statement.CREATE
    return Statement.CHANGE if first in _CHANGES else Statement.READ


def split_insert_select(sql: str) -> InsertSelect:
    found = _INSERT_SELECT.match(sql.lstrip())
    if found is None:
        raise ValueError(f"not an INSERT … SELECT: {sql[:200]}")
    return InsertSelect(insert=found[1], select=found[2])


def imitate(sql: str, facts: Mapping[str, Any]) -> str:
    """The statement for a plain server, whose answer is then that of a replica with these facts."""
    if read_statement(sql) in {Statement.CREATE, Statement.CHANGE}:
        sql = _ENGINE.sub(r"\1", sql)
        sql = re.sub(
            r"(?<!non_)\breplicated_deduplication_window\b", "non_replicated_deduplication_window", sql
        )
    sql = sql.replace("system.replicated_merge_tree_settings", _WINDOWS)
    sql = re.sub(r"\bsystem\.tables\b", _TABLES, sql)
    sql = re.sub(r"\bsystem\.replicas\b", _REPLICAS.format_map(facts), sql)
    if facts["quorum"]:
        sql = re.sub(r"\bsystem\.settings\b", _SETTINGS, sql)
    return sql.replace("displayName()", f"'{facts['name']}'")
