"""`oncehouse sync`: rows of models in ClickHouse. Run the syncs, see how they stand, make their tables.

`backfill.py` and `verify.py` hold the commands that go through all keys.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from oncehouse.cli.arguments import AsJson, Logs
from oncehouse.cli.output import print_note, say, show_error, show_json, show_table
from oncehouse.cli.pager import paged
from oncehouse.cli.pipeline.run import INTERRUPTED_EXIT_CODE, UNMET_EXIT_CODE, Stop, in_thread
from oncehouse.cli.sync.backfill import backfill, replay
from oncehouse.cli.sync.options import Modules, Names, find, find_enabled
from oncehouse.cli.sync.verify import verify
from oncehouse.common import structured_logging
from oncehouse.common.json_documents import Answer, Inlined

if TYPE_CHECKING:
    from oncehouse.sync.model.model_sync import SyncRunResult
    from oncehouse.sync.rounds.runner import RunOutcome
    from oncehouse.sync.status import SyncStatus
    from oncehouse.sync.table.ddl import TablePlan

app = typer.Typer(no_args_is_help=True, help="Rows of Django and SQLAlchemy models in ClickHouse.")


@dataclass(frozen=True, kw_only=True)
class SyncFailed(Answer, of=("sync run",)):
    event: Literal["failure"] = "failure"
    sync: str
    error: str


@dataclass(frozen=True, kw_only=True)
class Synced(Answer, of=("sync run",)):
    event: Literal["synced"] = "synced"
    result: Inlined[SyncRunResult]


@dataclass(frozen=True, kw_only=True)
class SyncList(Answer, of=("sync status",)):
    syncs: list[SyncStatus]


@dataclass(frozen=True, kw_only=True)
class SyncPlans(Answer, of=("sync plan", "sync apply")):
    plans: dict[str, TablePlan]


@dataclass(frozen=True, kw_only=True)
class SyncDatabase:
    database: str
    statements: list[str]


@dataclass(frozen=True, kw_only=True)
class SyncStatements(Answer, of=("sync init",)):
    databases: list[SyncDatabase]
    ran: bool


app.command()(backfill)
app.command()(verify)
app.command()(replay)


@app.command()
def run(
    names: Names = None,
    *,
    module: Modules = None,
    once: Annotated[bool, typer.Option("--once", help="Sync what waits, then end.")] = False,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Syncs at a time.")] = 4,
    as_json: AsJson = False,
    log_format: Logs = None,  # noqa: ARG001 - its callback acts
) -> None:
    """Sync changed rows until stopped. Several processes may share the syncs."""
    from oncehouse.sync.rounds.runner import FailedRun, run_once, run_until_stopped

    syncs = find_enabled(module, names)
    failed = False

    def report(outcome: RunOutcome) -> None:
        nonlocal failed
        failed = failed or isinstance(outcome, FailedRun)
        _print_outcome(outcome, as_json=as_json)

    try:
        with Stop(print_note) as stop:
            if once:
                for outcome in in_thread(lambda: run_once(syncs, threads=threads)):
                    report(outcome)
            else:
                in_thread(lambda: run_until_stopped(syncs, stop.requested, report=report, threads=threads))
    except KeyboardInterrupt:
        os._exit(INTERRUPTED_EXIT_CODE)  # the second signal asked not to wait for what is under way
    if stop.interrupted:
        raise typer.Exit(INTERRUPTED_EXIT_CODE)
    if once and failed:
        raise typer.Exit(UNMET_EXIT_CODE)


def _print_outcome(outcome: RunOutcome, *, as_json: bool) -> None:
    from oncehouse.sync.rounds.runner import FailedRun

    if isinstance(outcome, FailedRun):
        if as_json:
            show_json(SyncFailed(sync=outcome.sync, error=str(outcome.error)))
        else:
            with structured_logging.bound(sync=outcome.sync):
                show_error(outcome.text)
    elif as_json:
        show_json(Synced(result=outcome))
    elif outcome.operations and structured_logging.is_started():
        print_note("synced", **vars(outcome))
    elif outcome.operations:
        say(f"{outcome.sync}: {outcome.operations:,} operations, {outcome.rows:,} rows")


@app.command()
@paged()
def status(names: Names = None, *, module: Modules = None, as_json: AsJson = False) -> None:
    """Show what waits in each sync and for how long, when it last ran, and its last error."""
    from oncehouse.sync.status import read_status

    found = read_status(find(module, names))
    if as_json:
        show_json(SyncList(syncs=found))
        return
    show_table(
        [
            "sync",
            "model",
            "table",
            "enabled",
            "running",
            "waiting",
            "lag, s",
            "rows synced",
            "synced, s ago",
            "failures",
        ],
        [
            (
                one.sync,
                one.model,
                one.table,
                one.enabled,
                one.running,
                one.waiting,
                one.lag_seconds,
                one.rows_synced,
                one.synced_seconds_ago,
                one.failures,
            )
            for one in found
        ],
        empty="there is no sync",
    )
    for one in found:
        if one.pipeline_file:
            say(f"{one.sync}: by CDC, pipeline file {one.pipeline_file}")
        if one.backfilled is not None:
            say(f"{one.sync}: its backfill is unfinished, about {one.backfilled:.0%} of the keys are done")
        if one.last_error:
            say(f"{one.sync}: {one.last_error}")


@app.command()
@paged()
def plan(names: Names = None, *, module: Modules = None, as_json: AsJson = False) -> None:
    """Print the statements that the tables in ClickHouse need for the syncs. Runs none."""
    from oncehouse.sync.table.ddl import plan_table

    plans = {
        sync.declaration().name: plan_table(sync.open_clickhouse(), sync.declaration())
        for sync in find(module, names)
    }
    if as_json:
        show_json(SyncPlans(plans=plans))
        return
    for name, one in plans.items():
        _show_plan(name, one)


@app.command()
def apply(
    names: Names = None,
    *,
    module: Modules = None,
    risky: Annotated[
        bool, typer.Option("--risky", help="Also run what could change stored values or be refused.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run the statements of `plan`. All tables are checked before the first statement runs."""
    from oncehouse.sync.table.ddl import apply_plan, check_plan, plan_table

    syncs = find(module, names)
    plans = [(sync, plan_table(sync.open_clickhouse(), sync.declaration())) for sync in syncs]
    for _sync, one in plans:
        check_plan(one, risky=risky)
    run: dict[str, TablePlan] = {}
    for sync, one in plans:
        apply_plan(sync.open_clickhouse(), one, risky=risky)
        run[sync.declaration().name] = one
        if not as_json:
            count = len(one.statements) + len(one.risky)
            say(f"{sync.declaration().name}: {count} statements run on {one.table}")
    if as_json:
        show_json(SyncPlans(plans=run))


@app.command()
def init(
    *,
    module: Modules = None,
    yes: Annotated[bool, typer.Option("--yes", help="Run the statements.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the statements that create the tables of model sync in the source databases, as Django's `migrate` does."""
    from oncehouse.common.database import begin
    from oncehouse.sync.tables import create_tables, ddl

    engines = {sync.open_source(): sync for sync in find(module, None)}
    databases = []
    for engine in engines:
        place, statements = engine.url.render_as_string(hide_password=True), ddl(engine.dialect)
        if yes:
            with begin(engine, whose="Model sync") as connection:
                create_tables(connection)
        databases.append(SyncDatabase(database=place, statements=statements))
        if not as_json:
            say(f"the tables of model sync are in {place}" if yes else ";\n\n".join(statements) + ";")
    if as_json:
        show_json(SyncStatements(databases=databases, ran=yes))


def _show_plan(name: str, one: TablePlan) -> None:
    if one.is_empty:
        say(f"{name}: {one.table} is as it should be")
    for statement in one.statements:
        say(f"{name}:\n{statement};")
    for statement in one.risky:
        say(f"{name}, only with --risky:\n{statement};")
    for text in (*one.problems, *one.notes):
        say(f"{name}: {text}")
