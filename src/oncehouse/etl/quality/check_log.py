"""What became of every expectation, inside ClickHouse: a row for each one and each run, whether it held or not.

`Checks` is a Buffer table before `ChecksStore`, so that many small steps make no small parts. A range that runs again
before its insert began is looked at again, and written down again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oncehouse.clickhouse.client import failure_of
from oncehouse.clickhouse.error_codes import ErrorCode
from oncehouse.clickhouse.identifiers import quote
from oncehouse.errors import ConfigurationError, OncehouseError
from oncehouse.etl.quality.expectations import ExpectationOutcome, ExpectationResult
from oncehouse.etl.step_log import BUFFER

if TYPE_CHECKING:
    from oncehouse.clickhouse.client import Client
    from oncehouse.etl.state.position import Range

_STORE = """\
CREATE TABLE IF NOT EXISTS {store}
(
    topic LowCardinality(String),
    ts DateTime64(3) DEFAULT now64(3),
    last Tuple(DateTime64(3), UInt64),
    next Tuple(DateTime64(3), UInt64),
    expectation String,
    outcome LowCardinality(String),
    figure String
)
ENGINE = MergeTree
ORDER BY (topic, ts)"""
_INSERT = """INSERT INTO {table} SELECT {{topic:String}}, now64(3),
    (fromUnixTimestamp64Milli({{last_ms:Int64}}), {{last_id:UInt64}}),
    (fromUnixTimestamp64Milli({{next_ms:Int64}}), {{next_id:UInt64}}), verdict.1, verdict.2, verdict.3
FROM (SELECT arrayJoin(arrayZip(
    {{expectations:Array(String)}}, {{outcomes:Array(String)}}, {{figures:Array(String)}})) AS verdict)"""


@dataclass(frozen=True, kw_only=True)
class CheckRow:
    topic: str
    ts: str
    expectation: str
    outcome: ExpectationOutcome
    figure: str


def check_log_ddl(database: str) -> tuple[str, ...]:
    store, table = (f"{quote(database)}.{quote(name)}" for name in ("ChecksStore", "Checks"))
    return (
        _STORE.format(store=store),
        f"CREATE TABLE IF NOT EXISTS {table} AS {store}\nENGINE = Buffer({quote(database)}, ChecksStore, {BUFFER})",
    )


def write_checks(
    client: Client, database: str, topic: str, span: Range, verdicts: tuple[ExpectationResult, ...]
) -> None:
    parameters = {
        "topic": topic,
        "last_ms": span.last.time_ms,
        "last_id": span.last.id,
        "next_ms": span.next.time_ms,
        "next_id": span.next.id,
        "expectations": [verdict.expectation for verdict in verdicts],
        "outcomes": [str(verdict.outcome) for verdict in verdicts],
        "figures": [verdict.figure for verdict in verdicts],
    }
    try:
        client.command(_INSERT.format(table=_table(database)), parameters)
    except OncehouseError as error:
        if failure_of(error).code != ErrorCode.UNKNOWN_TABLE:
            raise
        raise ConfigurationError(
            f"Topic {topic}: what became of its expectations goes to {database}.Checks, which does not exist; "
            "`oncehouse etl init --yes` makes it."
        ) from error


def read_checks(
    client: Client, database: str, *, topic: str | None, limit: int, only_broken: bool
) -> tuple[CheckRow, ...]:
    """The latest rows, newest first."""
    rows = client.query(
        f"SELECT topic, toString(ts, 'UTC'), expectation, outcome, figure FROM {_table(database)} "  # noqa: S608 - quoted
        "WHERE {topic:String} IN ('', topic) AND ({every:Bool} OR outcome != 'held') "
        "ORDER BY ts DESC, topic, expectation LIMIT {limit:UInt32}",
        {"topic": topic or "", "every": not only_broken, "limit": limit},
    )
    return tuple(_row(row) for row in rows)


def read_latest_checks(client: Client, database: str) -> dict[str, tuple[CheckRow, ...]]:
    """Topic and what became of its expectations when they were last looked at."""
    rows = client.query(
        "SELECT topic, toString(max(ts), 'UTC'), expectation, argMax(outcome, ts), argMax(figure, ts) "  # noqa: S608 - quoted
        f"FROM {_table(database)} GROUP BY topic, expectation ORDER BY topic, expectation"
    )
    found: dict[str, tuple[CheckRow, ...]] = {}
    for row in rows:
        found[row[0]] = (*found.get(row[0], ()), _row(row))
    return found


def _row(row: tuple[Any, ...]) -> CheckRow:
    topic, ts, expectation, outcome, figure = row
    return CheckRow(
        topic=topic, ts=ts, expectation=expectation, outcome=ExpectationOutcome(outcome), figure=figure
    )


def _table(database: str) -> str:
    return f"{quote(database)}.{quote('Checks')}"
