"""The ClickHouse table of a sync: what has to be run so that it takes the sync's rows, first as a plan.

A missing table is created. Of one that exists, missing columns are added and types widened; what would change stored
values is planned apart and runs only with --risky. Another engine or sorting key cannot be altered: that needs
a new table and a backfill.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from oncehouse.clickhouse.alter_table import ChangeKind, plan_columns
from oncehouse.clickhouse.create_table import batch_index, widen_window_ddl
from oncehouse.clickhouse.identifiers import quote, quote_table
from oncehouse.clickhouse.insert.dedup_window import WindowNeeds, blocks_needed, seconds_needed
from oncehouse.clickhouse.preflight.finding import Level
from oncehouse.clickhouse.preflight.requirements import Needs
from oncehouse.clickhouse.preflight.table import PARTITIONS_AN_INSERT, spread_window
from oncehouse.clickhouse.preflight.views import check_views, read_views
from oncehouse.clickhouse.table_info import TableFacts, describe_table
from oncehouse.column_types.types import clickhouse_name
from oncehouse.errors import ConfigurationError
from oncehouse.sync.model.declaration import BATCH_COLUMN, Declaration
from oncehouse.sync.model.model_sync import ModelSync

if TYPE_CHECKING:
    from oncehouse.clickhouse.client import Client

# A batch may be sent again after days (a process that was killed on a Friday), but none of the same sync comes between.
_WINDOW = WindowNeeds(min_interval_seconds=3600.0, retry_horizon_seconds=7 * 86_400.0)
# What a pipeline file asks for that says nothing else.
_PIPELINE_WINDOW = WindowNeeds(min_interval_seconds=1.0, retry_horizon_seconds=600.0)


@dataclass(frozen=True, kw_only=True)
class TablePlan:
    table: str
    statements: tuple[str, ...] = ()
    """Harmless to stored values."""
    risky: tuple[str, ...] = ()
    """Stored values could change or be refused."""
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """What no statement can mend."""

    @property
    def is_empty(self) -> bool:
        return not (self.statements or self.risky or self.problems)


def create_table_ddl(declared: Declaration) -> str:
    engine = declared.engine
    lines = [f"{quote(name)} {clickhouse_name(type_)}" for name, type_ in declared.all_columns.items()]
    if declared.pipeline is not None:
        lines.append(batch_index(BATCH_COLUMN))
    body = ",\n".join(f"    {line}" for line in lines)
    partition = f"PARTITION BY {engine.partition_by}\n" if engine.partition_by else ""
    sorting_key = ", ".join(quote(name) for name in engine.sorting_key(declared.key))
    return (
        f"CREATE TABLE {quote_table(declared.table)}\n(\n{body}\n)\nENGINE = {engine.clause()}\n{partition}"
        f"ORDER BY ({sorting_key})\nSETTINGS {_window_settings(declared)}"
    )


def plan_table(client: Client, declared: Declaration) -> TablePlan:
    facts = describe_table(client, declared.table)
    if facts is None:
        return TablePlan(table=declared.table, statements=(create_table_ddl(declared),))
    return _compare_all(client, facts, declared)


def _compare_all(client: Client, facts: TableFacts, declared: Declaration) -> TablePlan:
    plan = compare_table(facts, declared)
    return replace(plan, problems=(*plan.problems, *_find_view_problems(client, facts, declared)))


def _find_view_problems(client: Client, facts: TableFacts, declared: Declaration) -> Iterator[str]:
    """Views that would take a batch twice which the table itself takes once."""
    if declared.engine.is_idempotent:
        return
    needs = Needs(table=declared.table, columns={}, batch_column="", id_column=None, window=_WINDOW)
    for found in check_views(read_views(client, facts), needs):
        if found.level is Level.ERROR:
            yield f"{found.where}: {found.what}; {found.advice}"


def compare_table(facts: TableFacts, declared: Declaration) -> TablePlan:
    """Pure: from what the table is to what the sync needs."""
    types = {name: clickhouse_name(type_) for name, type_ in declared.all_columns.items()}
    needs = Needs(table=declared.table, columns=types, batch_column="", id_column=None, window=_WINDOW)
    changes = list(plan_columns(facts, needs))
    added = [change.column for change in changes if change.kind is ChangeKind.ADD]
    notes = [
        f"{change.column}: no column of {declared.label} fills it; new rows get its default"
        for change in changes
        if change.kind is ChangeKind.NOTE
    ]
    if added:
        notes.append(
            f"rows that are there already have defaults in {', '.join(added)} until they are synced again, which "
            "`oncehouse sync backfill` does for all of them"
        )
    return TablePlan(
        table=declared.table,
        statements=(
            *(
                change.statement
                for change in changes
                if change.kind in {ChangeKind.ADD, ChangeKind.WIDEN} and change.statement
            ),
            *_prepare_for_pipeline(facts, declared),
        ),
        risky=tuple(
            change.statement for change in changes if change.kind is ChangeKind.NARROW and change.statement
        ),
        notes=tuple(notes),
        problems=tuple(_find_problems(facts, declared)),
    )


def _prepare_for_pipeline(facts: TableFacts, declared: Declaration) -> Iterator[str]:
    """What a table that rounds have filled lacks besides columns."""
    if declared.pipeline is None:
        return
    table = quote_table(declared.table)
    if facts.column(BATCH_COLUMN) is None:
        yield f"ALTER TABLE {table} ADD {batch_index(BATCH_COLUMN)}"
    blocks = blocks_needed(spread_window(facts, _PIPELINE_WINDOW))
    if facts.window_blocks < blocks:
        yield widen_window_ddl(facts.name, facts.window_setting, blocks)


def check_plan(plan: TablePlan, *, risky: bool) -> None:
    """Refuse what no statement can mend, and what was not confirmed."""
    if plan.problems:
        raise ConfigurationError(f"{plan.table}: {plan.problems[0]}")
    if plan.risky and not risky:
        raise ConfigurationError(
            f"{plan.table}: `{plan.risky[0]}` could change stored values or be refused. Run it only if you mean it "
            "(--risky), or make a new table and fill it."
        )


def apply_plan(client: Client, plan: TablePlan, *, risky: bool = False) -> None:
    check_plan(plan, risky=risky)
    for statement in (*plan.statements, *plan.risky):
        client.command(statement)


def check_sync_table(sync: type[ModelSync]) -> None:
    """Before the first round of a process: raises ConfigurationError where the table does not fit."""
    if not sync.is_table_checked:
        check_table(sync.open_clickhouse(), sync.declaration())
        sync.is_table_checked = True


def check_table(client: Client, declared: Declaration) -> None:
    """Refuse a table that cannot take the sync's rows, or would take a batch twice that has to be sent again."""
    facts = describe_table(client, declared.table)
    if facts is None:
        raise ConfigurationError(
            f"Sync {declared.name}: the table {declared.table} does not exist at {client.address}, or the user may not "
            "see it. `oncehouse sync plan` shows the statement that makes it, `oncehouse sync apply` runs it."
        )
    plan = _compare_all(client, facts, declared)
    if plan.problems:
        raise ConfigurationError(f"Sync {declared.name}: {declared.table}: {plan.problems[0]}")
    if plan.statements or plan.risky:
        raise ConfigurationError(
            f"Sync {declared.name}: {declared.table} does not fit the model: {(*plan.statements, *plan.risky)[0]!r} is "
            "missing. `oncehouse sync plan` shows all of it, `oncehouse sync apply` runs it."
        )


def _find_problems(facts: TableFacts, declared: Declaration) -> list[str]:
    problems = []
    family = facts.engine.removeprefix("Replicated").removeprefix("Shared")
    if family != declared.engine.family:
        problems.append(
            f"its engine is {facts.engine}, and the sync writes for {declared.engine.family}; name another table, or "
            "change the sync's engine"
        )
    wanted = declared.engine.sorting_key(declared.key)
    # ClickHouse sorts a VersionedCollapsingMergeTree by the version too, by itself.
    if _plain(facts.sorting_key) not in {
        _plain(", ".join(names)) for names in (wanted, (*wanted, *declared.engine.version_columns()))
    }:
        problems.append(
            f"it is sorted by ({facts.sorting_key}), and the sync needs ({', '.join(wanted)}): make a new table"
        )
    if declared.pipeline is None and facts.column(BATCH_COLUMN) is not None:
        problems.append(
            f"a pipeline feeds it (it has the column {BATCH_COLUMN}), whose versions stand above those of rounds: what "
            "these write would never be seen. Name a new table"
        )
    if not declared.engine.is_idempotent and not facts.window_blocks:
        problems.append(
            f"it remembers no tokens, so a batch that is sent again would be taken twice; run: ALTER TABLE "
            f"{facts.name.quoted} MODIFY SETTING {facts.window_setting} = {blocks_needed(_WINDOW)}"
        )
    return problems


def _plain(sorting_key: str) -> str:
    """The columns of a sorting key, whichever way a version of ClickHouse spells them."""
    return ", ".join(part.strip(" ()`") for part in sorting_key.split(","))


def _window_settings(declared: Declaration) -> str:
    window = _WINDOW
    if declared.pipeline is not None:
        partitions = PARTITIONS_AN_INSERT if declared.engine.partition_by else 1
        window = replace(_PIPELINE_WINDOW, partitions_per_insert=partitions)
    if declared.engine.replicated:
        return (
            f"replicated_deduplication_window = {blocks_needed(window)}, "
            f"replicated_deduplication_window_seconds = {seconds_needed(window)}"
        )
    return f"non_replicated_deduplication_window = {blocks_needed(window)}"
