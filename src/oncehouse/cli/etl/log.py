"""`oncehouse etl log`: what each step brought, and the view that writes it down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from oncehouse.cli.arguments import AsJson
from oncehouse.cli.etl.options import DEFAULT_SETTINGS, SettingsFile, TopicName, find_topic, open_etl
from oncehouse.cli.output import say, show_json, show_table
from oncehouse.cli.pager import paged
from oncehouse.common.formatting import format_bytes, format_elapsed
from oncehouse.common.json_documents import Answer

if TYPE_CHECKING:
    from oncehouse.etl.quality.check_log import CheckRow
    from oncehouse.etl.step_log import LogRow

app = typer.Typer(invoke_without_command=True, help="Show the result of each step.")


@dataclass(frozen=True, kw_only=True)
class StepLog(Answer, of=("etl log",)):
    log: tuple[LogRow, ...]


@dataclass(frozen=True, kw_only=True)
class CheckLog(Answer, of=("etl log checks",)):
    checks: tuple[CheckRow, ...]


@dataclass(frozen=True, kw_only=True)
class LogView(Answer, of=("etl log create",)):
    topic: str
    statement: str
    ran: bool


@app.callback()
@paged()
def show(
    context: typer.Context,
    file: SettingsFile = DEFAULT_SETTINGS,
    *,
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="How many rows.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the latest rows of LogExt, newest first."""
    from oncehouse.etl.step_log import read_log

    if context.invoked_subcommand is not None:
        return
    with open_etl(file) as etl:
        if topic is not None:
            find_topic(etl, topic)
        rows = read_log(etl.client, etl.settings.database, topic=topic, limit=limit)
    if as_json:
        show_json(StepLog(log=rows))
        return
    show_table(
        ["topic", "at", "rows", "newest row", "lag", "ms", "memory", "notes"],
        [
            (
                row.topic,
                row.ts,
                row.rows,
                row.max_ts,
                format_elapsed(row.max_lag_seconds),
                row.duration_ms,
                format_bytes(row.memory_bytes),
                ", ".join(_list_notes(row)),
            )
            for row in rows
        ],
        empty="nothing was logged yet; `oncehouse etl log create TOPIC` makes the logging view of a table",
    )


def _list_notes(row: LogRow) -> list[str]:
    """A block that was dropped as a repeat, and columns with nulls in it."""
    return [
        *(["repeat"] if row.repeated else []),
        *(f"{name} {count} null" for name, count in row.nulls.items()),
    ]


@app.command()
@paged()
def checks(
    file: SettingsFile = DEFAULT_SETTINGS,
    *,
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="How many rows.")] = 20,
    broken: Annotated[bool, typer.Option("--broken", help="Only failed ones.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the results of expectations, newest first."""
    from oncehouse.etl.quality.check_log import read_checks

    with open_etl(file) as etl:
        if topic is not None:
            find_topic(etl, topic)
        rows = read_checks(etl.client, etl.settings.database, topic=topic, limit=limit, only_broken=broken)
    if as_json:
        show_json(CheckLog(checks=rows))
        return
    show_table(
        ["topic", "at (UTC)", "outcome", "expected", "found"],
        [(row.topic, row.ts, row.outcome, row.expectation, row.figure) for row in rows],
        empty="no expectation was checked yet; `expect` in the lineage says what must hold",
    )


@app.command()
def create(
    topic: TopicName,
    file: SettingsFile = DEFAULT_SETTINGS,
    *,
    id_column: Annotated[
        str | None, typer.Option("--id-column", help="Column of max_id; `id` when left out.")
    ] = None,
    time_column: Annotated[
        str | None, typer.Option("--time-column", help="Column of min_ts and max_ts; `pos` when left out.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it, instead of only showing it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the logging view of the topic's table; with --yes, create it."""
    from oncehouse.etl.step_log import plan_log_view

    with open_etl(file) as etl:
        found = find_topic(etl, topic)
        statement = plan_log_view(
            etl.client, etl.settings.database, found, id_column=id_column, time_column=time_column
        )
        if yes:
            etl.client.command(statement)
    if as_json:
        show_json(LogView(topic=topic, statement=statement, ran=yes))
        return
    say(f"{statement};\n")
    say("-- done" if yes else "-- nothing was changed; --yes runs this statement")
