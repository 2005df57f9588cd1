"""Whether the server's query log can prove that an insert ended well, where a retry depends on it.

How it is asked is `clickhouse/insert/view_proof.py`. The table of the log is made when the server first writes to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from oncehouse.clickhouse.client import failure_of
from oncehouse.clickhouse.error_codes import ErrorCode
from oncehouse.clickhouse.identifiers import quote
from oncehouse.clickhouse.insert.view_proof import write_log
from oncehouse.clickhouse.preflight.finding import Finding, Level
from oncehouse.errors import ConfigurationError, PermanentError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncehouse.clickhouse.client import Client
    from oncehouse.clickhouse.table_info import TableFacts

# The columns that a proof reads, over no day.
_PROBE = (
    "SELECT count() FROM system.query_log WHERE event_date > today() AND type = 'QueryFinish' AND query_id = '' "
    "AND query_kind = 'Insert' AND Settings['insert_deduplication_token'] = ''"
)
# Setting -> the values with which the end of each insert is logged.
_LOGS_ALL = {
    "log_queries": {"1"},
    "log_queries_min_type": {"QUERY_START", "QUERY_FINISH"},
    "log_queries_min_query_duration_ms": {"0"},
    "log_queries_probability": {"1"},
}


class LogAccess(StrEnum):
    READABLE = "readable"
    DENIED = "denied"
    ABSENT = "absent"


@dataclass(frozen=True, kw_only=True)
class QueryLog:
    user: str
    access: LogAccess
    left_out: tuple[str, ...] = ()
    """Settings of the user under which not every insert is logged, such as `log_queries = 0`."""


def read_query_log(client: Client) -> QueryLog:
    rows = client.query(
        "SELECT name, value FROM system.settings WHERE name IN {names:Array(String)} ORDER BY name",
        {"names": list(_LOGS_ALL)},
    )
    left_out = tuple(f"{name} = {value}" for name, value in rows if value not in _LOGS_ALL[name])
    access = _probe(client)
    if access is LogAccess.ABSENT and write_log(client):
        access = _probe(client)
    return QueryLog(user=client.config.user, access=access, left_out=left_out)


def _probe(client: Client) -> LogAccess:
    try:
        client.query(_PROBE)
    except ConfigurationError as error:
        if failure_of(error).code != ErrorCode.ACCESS_DENIED:
            raise
        return LogAccess.DENIED
    except PermanentError as error:
        if failure_of(error).code != ErrorCode.UNKNOWN_TABLE:
            raise
        return LogAccess.ABSENT
    return LogAccess.READABLE


def needs_query_log(facts: TableFacts) -> bool:
    return bool(facts.views) or facts.merges_rows


def check_query_log(facts: TableFacts, log: QueryLog) -> Iterator[Finding]:
    """Of a table that needs the log. Pure."""
    where = f"{facts.database}.{facts.table}: system.query_log"
    match log.access:
        case LogAccess.DENIED:
            what = f"the user {log.user!r} may not read it"
            advice = f"run: GRANT SELECT ON system.query_log TO {quote(log.user)}"
        case LogAccess.ABSENT:
            what = "the server keeps none, or has logged nothing yet"
            advice = "let the server's configuration have a section query_log"
        case LogAccess.READABLE if log.left_out:
            what = f"not every insert of the user {log.user!r} is logged ({', '.join(log.left_out)})"
            advice = "let the user's profile keep ClickHouse's defaults of these settings"
        case LogAccess.READABLE:
            yield Finding(
                level=Level.OK,
                where=where,
                what="the query log can prove that an insert whose answer was lost ended well",
            )
            return
    yield Finding(
        level=Level.WARNING,
        where=where,
        what=f"{what}, so after a lost answer nothing proves that the insert ended well. {_describe_effects(facts)}",
        advice=advice,
    )


def _describe_effects(facts: TableFacts) -> str:
    effects = []
    if facts.views:
        effects.append("a batch whose rows are all there is loaded with `views unproven`")
    if facts.merges_rows:
        effects.append("a batch is parked when the table, which merges rows, may have forgotten its token")
    text = "; ".join(effects)
    return text[0].upper() + text[1:]
