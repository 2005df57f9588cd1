"""Three roles for three kinds of work, each with the rights that its work asks for and no others. Pure.

The writer runs the pipeline, the migrator makes and changes tables, the reader looks (verify, status). What the code
asks of the server stands here once: `oncehouse grants` prints it, and the check before a run asks for the writer's.
Rights that only sharpen what a check can say are listed apart: nothing fails without them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, assert_never
from urllib.parse import unquote, urlsplit

from oncehouse.clickhouse.identifiers import quote, split_table
from oncehouse.clickhouse.preflight.requirements import needs_of

if TYPE_CHECKING:
    from oncehouse.clickhouse.preflight.requirements import Needs
    from oncehouse.config.pipeline import Pipeline


class Role(StrEnum):
    WRITER = "writer"
    MIGRATOR = "migrator"
    READER = "reader"


@dataclass(frozen=True, kw_only=True)
class Grant:
    privileges: str
    on: str
    why: str
    optional: bool = False

    @property
    def right(self) -> str:
        """As it stands in a GRANT or a CHECK GRANT."""
        return f"{self.privileges} ON {self.on}"

    def statement(self, user: str) -> str:
        return f"GRANT {self.right} TO {quote(user)}"


def role_grants(pipeline: Pipeline, role: Role) -> tuple[Grant, ...]:
    """What a user in this role needs for all tables of the pipeline; each right once."""
    database = unquote(urlsplit(pipeline.clickhouse.url).path.strip("/")) or "default"
    found: dict[str, Grant] = {}
    for table in pipeline.tables:
        for grant in _table_grants(needs_of(pipeline, table), role, database=database):
            found.setdefault(grant.right, grant)
        if role is Role.WRITER and table.declare is not None:
            name = split_table(table.declare.offsets)
            on = f"{quote(name.database or database)}.{quote(name.table)}"
            for privileges in ("SELECT", "INSERT"):
                right = Grant(privileges=privileges, on=on, why="tables[].declare")
                found.setdefault(right.right, right)
    return tuple(sorted(found.values(), key=lambda grant: grant.optional))


def _table_grants(needs: Needs, role: Role, *, database: str) -> Iterator[Grant]:
    name = split_table(needs.table)
    on = f"{quote(name.database or database)}.{quote(name.table)}"
    match role:
        case Role.WRITER:
            yield from writer_grants(needs, on=on)
            yield _sync_grant(on)
            yield from _sharper_checks(needs)
        case Role.MIGRATOR:
            yield from _migrator_grants(on)
        case Role.READER:
            yield _reader_grant(needs, on)
            yield _sync_grant(on)
        case _:
            assert_never(role)


def writer_grants(needs: Needs, *, on: str) -> Iterator[Grant]:
    """What loading one table cannot do without; `on` is the table as it stands in SQL."""
    yield Grant(privileges="INSERT", on=on, why="batches")
    yield Grant(privileges="SELECT", on=on, why="whether the rows of a doubtful batch have arrived")
    # A user may end queries of its own without a further right, but has to find them.
    yield Grant(
        privileges="SELECT",
        on="system.processes",
        why="an insert of unknown outcome is ended before it is repeated",
    )
    if needs.adds_columns:
        yield Grant(privileges="ALTER ADD COLUMN", on=on, why="source.new_fields: add")


def _sync_grant(on: str) -> Grant:
    return Grant(
        privileges="SYSTEM SYNC REPLICA",
        on=on,
        why="for replicated tables: what decides something waits until the replica has all rows",
        optional=True,
    )


def _sharper_checks(needs: Needs) -> Iterator[Grant]:
    yield Grant(
        privileges="SELECT",
        on="system.parts",
        why="blocks of all writers; inserts come more seldom before the table has too many parts",
        optional=True,
    )
    log = "for tables that have materialized views or merge rows: whether an insert whose answer was lost ended well"
    yield Grant(privileges="SELECT", on="system.query_log", why=log, optional=True)
    yield Grant(
        privileges="SYSTEM FLUSH LOGS",
        on="*.*",
        why="for the same tables: nine seconds less to wait for that",
        optional=True,
    )
    replicated = "for replicated tables: whether this replica takes inserts, and the blocks of all writers"
    yield Grant(privileges="SELECT", on="system.replicas", why=replicated, optional=True)
    for settings in ("merge_tree_settings", "replicated_merge_tree_settings"):
        why = "for tables that do not name their deduplication window: the server's own"
        yield Grant(privileges="SELECT", on=f"system.{settings}", why=why, optional=True)
    if any("UUID" in type_ for type_ in needs.columns.values()):
        why = "how the server reads UUIDs is tried out"
        yield Grant(privileges="CREATE TEMPORARY TABLE", on="*.*", why=why, optional=True)


def _migrator_grants(on: str) -> Iterator[Grant]:
    yield Grant(privileges="CREATE TABLE", on=on, why="table create")
    yield Grant(
        privileges="TABLE ENGINE", on="MergeTree", why="table create; name another engine where --engine does"
    )
    yield Grant(privileges="ALTER ADD COLUMN", on=on, why="schema apply")
    yield Grant(privileges="ALTER MODIFY COLUMN", on=on, why="schema apply")
    yield Grant(
        privileges="ALTER SETTINGS", on=on, why="the deduplication window, where check asks for a larger one"
    )


def _reader_grant(needs: Needs, on: str) -> Grant:
    """Batches and ids can be counted without a look at anybody's data."""
    own = [quote(name) for name in (needs.batch_column, needs.id_column) if name is not None]
    return Grant(privileges=f"SELECT({', '.join(own)})", on=on, why="verify counts rows and ids by batch")
