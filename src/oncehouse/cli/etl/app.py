"""`oncehouse etl`: Fact tables built from Stage tables inside ClickHouse. This module: init, check, sync, graph."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oncehouse.cli.arguments import AsJson
from oncehouse.cli.etl import log
from oncehouse.cli.etl.options import DEFAULT_SETTINGS, Etl, SettingsFile, open_etl, open_store
from oncehouse.cli.etl.run import plan, run
from oncehouse.cli.etl.status import status
from oncehouse.cli.etl.topic_commands import backfill, declare, pause, resume, seek, unlock
from oncehouse.cli.output import open_console, say, show_json, show_table
from oncehouse.cli.pager import paged
from oncehouse.clickhouse.identifiers import quote
from oncehouse.common.json_documents import Answer
from oncehouse.errors import ConfigurationError
from oncehouse.etl.lineage.graph import LineageChange, compare_lineage
from oncehouse.etl.lineage.svg import draw_svg
from oncehouse.etl.lineage.tree import draw_tree
from oncehouse.etl.status_text import format_decision

if TYPE_CHECKING:
    from oncehouse.clickhouse.preflight.check import Finding
    from oncehouse.etl.lineage.topic import Topic

app = typer.Typer(
    no_args_is_help=True, help="Fact tables out of Stage tables, step by step, inside ClickHouse."
)

Yes = Annotated[bool, typer.Option("--yes", help="Do it, instead of only showing it.")]


@dataclass(frozen=True, kw_only=True)
class EtlStatements(Answer, of=("etl init",)):
    statements: list[str]
    ran: bool


@dataclass(frozen=True, kw_only=True)
class EtlChecked(Answer, of=("etl check",)):
    ok: bool
    findings: tuple[Finding, ...]
    changes: tuple[LineageChange, ...]


@dataclass(frozen=True, kw_only=True)
class LineageChanges(Answer, of=("etl sync",)):
    changes: tuple[LineageChange, ...]
    written: bool


@dataclass(frozen=True, kw_only=True)
class LineageGraph(Answer, of=("etl graph",)):
    topics: tuple[Topic, ...]
    states: dict[str, str]
    svg: Path | None


@app.command()
def init(file: SettingsFile = DEFAULT_SETTINGS, *, yes: Yes = False, as_json: AsJson = False) -> None:
    """Print the statements that create the scheduler's own tables; with --yes, run them."""
    with open_etl(file) as etl:
        statements = plan_init(etl)
        if yes:
            etl.store.prepare()  # first: it can say why a store cannot be made here
            for statement in statements:
                etl.client.command(statement)
    if as_json:
        show_json(EtlStatements(statements=statements, ran=yes))
        return
    for statement in statements:
        say(f"{statement};\n")
    if etl.settings.offsets.store == "catalog":
        say("-- and the table oncehouse_etl_offsets in the catalog")
    say("-- done" if yes else "-- nothing was changed; --yes runs these statements")


def plan_init(etl: Etl) -> list[str]:
    """Every statement, in the order in which they run."""
    from oncehouse.cli.etl.statement_recorder import Recorder
    from oncehouse.etl.lineage.table import lineage_ddl
    from oncehouse.etl.quality.check_log import check_log_ddl
    from oncehouse.etl.step_log import log_ddl

    database = etl.settings.database
    statements = [f"CREATE DATABASE IF NOT EXISTS {quote(database)}"]
    if etl.settings.offsets.store != "catalog":
        recorder = Recorder(etl.client)
        with open_store(etl.settings, recorder) as store:
            store.prepare()
        statements += [statement for statement in recorder.statements if statement not in statements]
    return [*statements, lineage_ddl(database), *log_ddl(database), *check_log_ddl(database)]


@app.command()
@paged()
def check(file: SettingsFile = DEFAULT_SETTINGS, *, as_json: AsJson = False) -> None:
    """Check the files, the tables and the views; exit 2 if something must be fixed first."""
    from oncehouse.clickhouse.preflight.check import Level
    from oncehouse.clickhouse.preflight.replica_reads import inspect_reads
    from oncehouse.etl.preflight.lineage_check import inspect_lineage
    from oncehouse.etl.preflight.server_check import evaluate_declarations, inspect_server

    with open_etl(file) as etl:
        named = {table for topic in etl.built_topics for table in (topic.dst, *topic.depends_on)}
        has_local_offsets = etl.settings.offsets.store == "rocksdb"
        findings = (
            *inspect_server(etl.client, etl.lineage, has_local_offsets=has_local_offsets),
            *inspect_lineage(etl.client, etl.lineage, etl.settings.database),
            *inspect_reads(etl.client, named),
            *inspect_offsets(etl),
        )
        changes = find_changes(etl)
        made = is_made(etl)
        if made:
            findings = (*findings, *evaluate_declarations(etl.lineage, etl.store.read_all().offsets))
    ok = all(finding.level is not Level.ERROR for finding in findings)
    if as_json:
        show_json(EtlChecked(ok=ok, findings=findings, changes=changes))
    else:
        show_findings(etl, findings, changes, made=made, ok=ok)
    raise typer.Exit(0 if ok else ConfigurationError.exit_code)


def inspect_offsets(etl: Etl) -> tuple[Finding, ...]:
    """Whether PostgreSQL may lose offsets that it has confirmed."""
    from oncehouse.etl.state.sql_store import CatalogOffsets
    from oncehouse.pipeline.checks.catalog_durability import inspect_catalog_durability

    if isinstance(etl.store, CatalogOffsets):
        return inspect_catalog_durability(etl.store.catalog, where="offsets.catalog")
    return ()


def show_findings(
    etl: Etl, findings: tuple[Finding, ...], changes: tuple[LineageChange, ...], *, made: bool, ok: bool
) -> None:
    for finding in findings:
        say(f"{finding.level}: {finding.where}: {finding.what}")
        if finding.advice:
            say(f"  {finding.advice}")
    if not made:
        say("the scheduler's own tables are not there yet; `oncehouse etl init --yes` makes them")
    elif changes:
        table = f"{etl.settings.database}.Lineage"
        say(f"{len(changes)} topics differ from the table {table}; `oncehouse etl sync` shows them")
    if ok:
        say(
            f"{len(etl.built_topics)} topics of {len(etl.lineage) - len(etl.built_topics)} sources are ready to run"
        )


@app.command()
def sync(file: SettingsFile = DEFAULT_SETTINGS, *, yes: Yes = False, as_json: AsJson = False) -> None:
    """Show how the table Lineage in ClickHouse differs from the folder; with --yes, make it the same."""
    with open_etl(file) as etl:
        changes = find_changes(etl)
        if yes:
            sync_lineage(etl)
    if as_json:
        show_json(LineageChanges(changes=changes, written=yes))
        return
    show_table(
        ["topic", "change", "keys"],
        [(change.topic, change.kind, ", ".join(change.keys)) for change in changes],
        empty="the table is the same as the folder",
    )
    if changes:
        say("-- written" if yes else "-- nothing was changed; --yes writes the table")


def is_made(etl: Etl) -> bool:
    """Whether `etl init` has made the scheduler's own tables."""
    from oncehouse.etl.lineage.table import read_lineage

    return read_lineage(etl.client, etl.settings.database) is not None


def find_changes(etl: Etl) -> tuple[LineageChange, ...]:
    """How the folder differs from the table; a table that is not there is an empty one."""
    from oncehouse.etl.lineage.table import as_stored, read_lineage

    stored = read_lineage(etl.client, etl.settings.database) or ()
    return compare_lineage(as_stored(etl.lineage, etl.folder), stored)


def sync_lineage(etl: Etl) -> None:
    """Make the table the same as the folder, if it is not."""
    from oncehouse.etl.lineage.table import as_stored, write_lineage

    if find_changes(etl):
        write_lineage(etl.client, etl.settings.database, as_stored(etl.lineage, etl.folder))


@app.command()
@paged()
def graph(
    file: SettingsFile = DEFAULT_SETTINGS,
    *,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="PATH", help="Also write it as an SVG file.")
    ] = None,
    with_status: Annotated[
        bool, typer.Option("--status", help="Show the state of each topic, as the server has it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Draw the lineage: each table that no topic reads, and below it its sources."""
    from oncehouse.etl.status import read_status

    with open_etl(file) as etl:
        lineage = etl.lineage
        states = {one.topic: format_decision(one) for one in read_status(etl)} if with_status else {}
    if svg is not None:
        try:
            svg.write_text(draw_svg(lineage, states), encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"{svg}: cannot be written: {error.strerror}") from None
    if as_json:
        show_json(LineageGraph(topics=lineage, states=states, svg=svg))
        return
    say(draw_tree(lineage, states, width=open_console().width))
    if svg is not None:
        say(f"wrote {svg}")


app.command()(plan)
app.command()(run)
app.command()(status)
app.command()(seek)
app.command()(unlock)
app.command()(pause)
app.command()(resume)
app.command()(backfill)
app.command()(declare)
app.add_typer(log.app, name="log")
