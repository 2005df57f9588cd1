"""Materialized views behind a table: where each one writes, and whether a repeated insert would double there.

A view's target drops a repeated block by the same token as the table itself, but only if it remembers tokens
of its own. Views of targets are followed too. Read from ClickHouse's system tables; judged without it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncehouse.clickhouse.identifiers import TableName
from oncehouse.clickhouse.preflight.finding import Finding, Level
from oncehouse.clickhouse.preflight.table import check_window
from oncehouse.clickhouse.table_info import TableFacts, describe_named

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oncehouse.clickhouse.client import Client
    from oncehouse.clickhouse.preflight.requirements import Needs

_NAME = r"(?:`(?:[^`\\]|\\.|``)*`|\w+)"
_TARGET = re.compile(
    rf"^CREATE MATERIALIZED VIEW {_NAME}(?:\.{_NAME})? (?:UUID '[^']*' )?TO ((?:INNER UUID)|{_NAME}(?:\.{_NAME})?)"
)
_REFRESHED = re.compile(rf"^CREATE MATERIALIZED VIEW {_NAME}(?:\.{_NAME})? (?:UUID '[^']*' )?REFRESH\b")
_ESCAPED = re.compile(r"\\(.)|`(`)")
_MOST_VIEWS = 100


@dataclass(frozen=True, kw_only=True)
class ViewFacts:
    view: str
    """`database.view`"""
    target: str
    """`database.table` that it writes to; what is known of the name when the user may not see it."""
    facts: TableFacts | None
    """None when the user may not see the target."""


def read_views(client: Client, table: TableFacts) -> tuple[ViewFacts, ...]:
    """The views that an insert into the table reaches, those behind their targets included."""
    found: dict[str, ViewFacts] = {}
    waiting = list(table.views)
    while waiting and len(found) < _MOST_VIEWS:
        name = waiting.pop(0)
        if name in found or (view := _read_view(client, name)) is None:
            continue
        found[name] = view
        if view.facts is not None:
            waiting += view.facts.views
    return tuple(found.values())


def _read_view(client: Client, name: str) -> ViewFacts | None:
    database, _, view = name.partition(".")
    rows = client.query(
        "SELECT create_table_query, toString(uuid) FROM system.tables "
        "WHERE database = {database:String} AND name = {view:String}",
        {"database": database, "view": view},
    )
    if not rows:
        return ViewFacts(view=name, target="(not visible)", facts=None)
    statement, uuid = rows[0]
    if _REFRESHED.match(statement):
        return None  # it runs by the clock and reads the whole table, not the inserts
    place = target_of(statement)
    inner = [f".inner_id.{uuid}", f".inner.{view}"]
    candidates = [place] if place is not None else [(database, table) for table in inner]
    for target_database, table in candidates:
        facts = describe_named(client, TableName(database=target_database or database, table=table))
        if facts is not None:
            return ViewFacts(view=name, target=f"{facts.database}.{facts.table}", facts=facts)
    return ViewFacts(view=name, target=".".join(part for part in candidates[0] if part), facts=None)


def target_of(statement: str) -> tuple[str | None, str] | None:
    """(database, table) after TO in a view's definition; None for a view that keeps its rows itself."""
    found = _TARGET.match(statement)
    if found is None or found[1] == "INNER UUID":
        return None
    parts = [_unquote(part) for part in re.findall(_NAME, found[1])]
    return (parts[0], parts[1]) if len(parts) == 2 else (None, parts[0])


def _unquote(name: str) -> str:
    return _ESCAPED.sub(r"\1\2", name[1:-1]) if name.startswith("`") else name


def check_views(views: Sequence[ViewFacts], needs: Needs) -> Iterator[Finding]:
    for found in views:
        where = f"{needs.table}: materialized view {found.view}"
        if found.facts is None:
            yield Finding(
                level=Level.WARNING,
                where=where,
                what=f"its target {found.target} is not visible to this user, so it is unknown whether a "
                "repeated insert would double its rows",
                advice="let the user see it (GRANT SHOW TABLES on the target), then check again",
            )
        elif found.facts.engine == "Null":
            continue  # keeps nothing; the views behind it are judged by themselves
        elif not found.facts.is_merge_tree:
            yield Finding(
                level=Level.ERROR,
                where=where,
                what=f"its target {found.target} has the engine {found.facts.engine}, which takes a repeated "
                "insert twice",
                advice="let the view write to a table of the MergeTree family, or read the table some other way",
            )
        else:
            yield from _check_target(found, found.facts, needs)


def _check_target(view: ViewFacts, facts: TableFacts, needs: Needs) -> Iterator[Finding]:
    for finding in check_window(facts, needs.window, table=view.target):
        doubles = (
            "; without that a repeat doubles the rows of the view" if finding.level is Level.ERROR else ""
        )
        yield Finding(
            level=finding.level,
            where=f"{needs.table}: materialized view {view.view} writes to {finding.where}",
            what=finding.what + doubles,
            advice=finding.advice,
        )
