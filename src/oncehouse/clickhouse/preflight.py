"""Is a table fit to be loaded? Facts and needs in, findings out, before any data moves.

`judge` is pure; `inspect` reads what it judges. Nothing on the server is changed: advice that would change
something is given as the exact statement, for somebody to run.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from oncehouse.clickhouse.comparison import compare_types, difference_is_null
from oncehouse.clickhouse.describe import Column, TableFacts, describe_table
from oncehouse.clickhouse.names import quote, quote_table
from oncehouse.clickhouse.schema import widen_window_ddl
from oncehouse.clickhouse.server import ServerFacts, read_server
from oncehouse.clickhouse.windows import WindowNeeds, blocks_needed, explain, seconds_needed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from oncehouse.clickhouse.client import Client
    from oncehouse.config import Pipeline, Table

OLDEST_VERSION = (24, 8)
PARTITIONS_AN_INSERT = 10
"""What an insert into a partitioned table is expected to touch when nobody has said otherwise."""


class Level(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, kw_only=True)
class Finding:
    level: Level
    where: str
    what: str
    advice: str


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a pipeline asks of one of its tables."""

    table: str
    columns: Mapping[str, str]
    """Column of the table -> ClickHouse type that is sent."""
    batch_column: str
    id_column: str | None
    window: WindowNeeds


def needs_of(pipeline: Pipeline, table: Table) -> Needs:
    fields = pipeline.source.fields
    columns = table.columns if table.columns is not None else {field: field for field in fields}
    limits = pipeline.limits(table.name)
    return Needs(
        table=table.name,
        columns={column: fields[field] for column, field in columns.items()},
        batch_column=table.batch_column,
        id_column=table.id_column,
        window=WindowNeeds(
            min_interval_seconds=limits.min_interval,
            retry_horizon_seconds=pipeline.clickhouse.insert_timeout + pipeline.retry.longest,
        ),
    )


def inspect(client: Client, needs: Needs) -> tuple[Finding, ...]:
    """Read the server and the table, and judge them. Raises when the server cannot be asked."""
    facts = describe_table(client, needs.table)
    return judge_server(read_server(client, needs.table), needs) + judge(facts, needs)


def judge(facts: TableFacts | None, needs: Needs) -> tuple[Finding, ...]:
    if facts is None:
        return (
            Finding(
                level=Level.ERROR,
                where=needs.table,
                what="the table does not exist, or the user may not see it",
                advice="run `oncehouse table create`, which shows its statement first",
            ),
        )
    if not facts.is_merge_tree:
        return (
            Finding(
                level=Level.ERROR,
                where=needs.table,
                what=f"the engine {facts.engine} cannot tell a repeated insert from a new one",
                advice="name a table of the MergeTree family; for a Distributed table, the one behind it",
            ),
        )
    return (
        *_judge_columns(facts, needs),
        *_judge_own_columns(facts, needs),
        *_judge_window(facts, needs),
        *_judge_losses(facts, needs),
    )


def judge_server(server: ServerFacts, needs: Needs) -> tuple[Finding, ...]:
    findings = [
        Finding(
            level=Level.ERROR,
            where=needs.table,
            what=f"the user {server.user!r} lacks the grant {grant}",
            advice=f"run: GRANT {grant} TO {quote(server.user)}",
        )
        for grant in server.missing_grants
    ]
    findings += [
        Finding(
            level=Level.ERROR,
            where=f"setting {forced.name}",
            what=f"the user's profile fixes it at {forced.value!r}, so a retry could double or lose rows",
            advice=f"lift the constraint on {forced.name} for this user",
        )
        for forced in server.forced_settings
    ]
    if _version_of(server.version) < OLDEST_VERSION:
        findings.append(
            Finding(
                level=Level.ERROR,
                where="server",
                what=f"ClickHouse {server.version} is older than {OLDEST_VERSION[0]}.{OLDEST_VERSION[1]}",
                advice="upgrade the server; older ones double or lose rows of views on a retry",
            )
        )
    if _sends_uuids(needs) and server.reads_uuids_in_order is not True:
        findings.append(_doubt_uuids(server))
    return tuple(findings)


def _sends_uuids(needs: Needs) -> bool:
    return any("UUID" in type_ for type_ in needs.columns.values())


def _doubt_uuids(server: ServerFacts) -> Finding:
    if server.reads_uuids_in_order is None:
        return Finding(
            level=Level.WARNING,
            where="server",
            what="how it reads UUIDs from Arrow could not be tried: the user lacks CREATE TEMPORARY TABLE",
            advice="compare one loaded UUID with its event, or give the user that grant for the check",
        )
    return Finding(
        level=Level.ERROR,
        where="server",
        what=f"ClickHouse {server.version} does not read UUIDs from Arrow as they are sent",
        advice="upgrade the server, or declare the UUID fields and columns as String",
    )


def _judge_columns(facts: TableFacts, needs: Needs) -> Iterator[Finding]:
    for name, declared in needs.columns.items():
        where = f"{needs.table}.{name}"
        column = facts.column(name)
        if column is None:
            yield Finding(
                level=Level.ERROR,
                where=where,
                what="the table has no such column",
                advice=_nearest(facts, name, declared, needs),
            )
        elif column.default_kind in {"MATERIALIZED", "ALIAS"}:
            yield Finding(
                level=Level.ERROR,
                where=where,
                what=f"the column is {column.default_kind}: the table computes it and takes no value",
                advice=f"leave {name} out of tables.columns",
            )
        elif (difference := compare_types(declared, column.type)) is not None:
            yield Finding(
                level=Level.ERROR,
                where=where,
                what=f"the pipeline sends {declared}, the table has {column.type}: {difference}",
                advice=_advise_type(name, declared, column, needs),
            )


def _advise_type(name: str, declared: str, column: Column, needs: Needs) -> str:
    declare = f"declare the field as {column.type}"
    if difference_is_null(declared, column.type):
        table = quote_table(needs.table)
        return f"{declare}, or run: ALTER TABLE {table} MODIFY COLUMN {quote(name)} {declared}"
    return (
        f"{declare}, or load a table that has {declared} here (changing the column would change its values)"
    )


def _nearest(facts: TableFacts, name: str, declared: str, needs: Needs) -> str:
    close = difflib.get_close_matches(name, [column.name for column in facts.columns], n=1)
    meant = f"did you mean {close[0]!r}? Otherwise run: " if close else "run: "
    return f"{meant}ALTER TABLE {quote_table(needs.table)} ADD COLUMN {quote(name)} {declared}"


def _judge_own_columns(facts: TableFacts, needs: Needs) -> Iterator[Finding]:
    own = {needs.batch_column: "UUID"} | ({needs.id_column: "FixedString(16)"} if needs.id_column else {})
    for name, type_ in own.items():
        column = facts.column(name)
        if column is None:
            yield Finding(
                level=Level.ERROR,
                where=f"{needs.table}.{name}",
                what=f"the table lacks oncehouse's own column {name} {type_}",
                advice=f"run: ALTER TABLE {quote_table(needs.table)} ADD COLUMN {quote(name)} {type_}",
            )
        elif column.type != type_ or column.default_kind in {"MATERIALIZED", "ALIAS"}:
            yield Finding(
                level=Level.ERROR,
                where=f"{needs.table}.{name}",
                what=f"oncehouse needs a plain column of type {type_} here, the table has {_show(column)}",
                advice=f"give the column another name in the pipeline file, or make it {type_}",
            )


def _judge_window(facts: TableFacts, needs: Needs) -> Iterator[Finding]:
    window = _window_for(facts, needs)
    blocks = blocks_needed(window)
    if facts.window_blocks < blocks:
        remembers = f"the last {facts.window_blocks} blocks" if facts.window_blocks else "no blocks at all"
        yield Finding(
            level=Level.ERROR,
            where=f"{needs.table}: {facts.window_setting}",
            what=f"the table remembers {remembers}, a retry needs {blocks} ({explain(window)})",
            advice=f"run: {widen_window_ddl(needs.table, facts.window_setting, blocks)}",
        )
    seconds = seconds_needed(window)
    if facts.window_seconds is not None and facts.window_seconds < seconds:
        setting = "replicated_deduplication_window_seconds"
        yield Finding(
            level=Level.ERROR,
            where=f"{needs.table}: {setting}",
            what=f"the table remembers blocks for {facts.window_seconds:g} s, a retry needs {seconds} s",
            advice=f"run: {widen_window_ddl(needs.table, setting, seconds)}",
        )


def _window_for(facts: TableFacts, needs: Needs) -> WindowNeeds:
    """An insert leaves one token in each partition it touches, and late events touch more than the newest."""
    if not facts.partition_key:
        return needs.window
    spread = max(needs.window.partitions_per_insert, PARTITIONS_AN_INSERT)
    return replace(needs.window, partitions_per_insert=spread)


def _judge_losses(facts: TableFacts, needs: Needs) -> Iterator[Finding]:
    if facts.loses_rows:
        reason = f"{facts.engine} merges rows away" if facts.merges_rows else "its TTL removes rows"
        yield Finding(
            level=Level.INFO,
            where=needs.table,
            what=f"{reason}, so counts of rows prove less",
            advice="`oncehouse verify` compares what can be compared and says what cannot",
        )
    if facts.views:
        yield Finding(
            level=Level.INFO,
            where=needs.table,
            what=f"materialized views read its inserts: {', '.join(facts.views)}",
            advice="give their target tables a deduplication window too, or a repeat doubles their rows",
        )


def _show(column: Column) -> str:
    return f"{column.type} {column.default_kind}".strip()


def _version_of(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
