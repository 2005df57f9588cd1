"""`oncehouse table create`: the DDL of tables that are safe to load, shown first and run only when asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from oncehouse.cli.arguments import DEFAULT_FILE, AsJson, File
from oncehouse.cli.open_ledger import load_current
from oncehouse.cli.output import say, show_json
from oncehouse.common.json_documents import Answer
from oncehouse.config.file_loader import load_pipeline

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline

app = typer.Typer(no_args_is_help=True, help="Destination tables.")


@dataclass(frozen=True, kw_only=True)
class OneTable:
    table: str
    statement: str
    outcome: str


@dataclass(frozen=True, kw_only=True)
class TableList(Answer, of=("table create",)):
    tables: list[OneTable]


@app.callback()
def keep_group() -> None:
    # With a callback typer keeps `create` as a word of its own although it is the only command.
    pass


@app.command()
def create(
    file: File = DEFAULT_FILE,
    *,
    yes: Annotated[
        bool, typer.Option("--yes", help="Run the statements. Tables that exist are kept.")
    ] = False,
    engine: Annotated[str, typer.Option("--engine", help="Engine of the MergeTree family.")] = "MergeTree",
    order_by: Annotated[
        str,
        typer.Option(
            "--order-by", help="Columns to sort by, with commas between; else those of the identity."
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Print the CREATE TABLE of each table of FILE; with --yes, run those whose table is missing."""
    from oncehouse.clickhouse.create_table import ddl_of

    pipeline = load_current(load_pipeline(file))
    keys = tuple(name.strip() for name in order_by.split(",")) if order_by else None
    statements = {
        table.name: ddl_of(pipeline, table, engine=engine, order_by=keys) for table in pipeline.tables
    }
    outcomes = _run(pipeline, statements) if yes else dict.fromkeys(statements, "not run")
    if as_json:
        listed = [
            OneTable(table=name, statement=ddl, outcome=outcomes[name]) for name, ddl in statements.items()
        ]
        show_json(TableList(tables=listed))
        return
    for name, statement in statements.items():
        say(f"-- {name}: {outcomes[name]}\n{statement};\n")
    if not yes:
        say("-- nothing was changed; --yes runs these statements")


def _run(pipeline: Pipeline, statements: dict[str, str]) -> dict[str, str]:
    from oncehouse.clickhouse.client import connect
    from oncehouse.clickhouse.table_info import describe_table

    client = connect(pipeline.clickhouse)
    outcomes = {}
    for name, statement in statements.items():
        if describe_table(client, name) is not None:
            outcomes[name] = "exists already, kept as it is"
            continue
        client.command(statement)
        outcomes[name] = "created"
    return outcomes
