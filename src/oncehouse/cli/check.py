"""`oncehouse check`: look at everything the pipeline file names, before any data moves.

Kafka, ClickHouse and the ledger are each looked at even when another one is wrong: one look shows all.
Nothing is changed: no table, no catalog, no topic; an empty file is written and removed where the ledger's
files go, because nothing less tells whether they can be written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from oncehouse.cli.arguments import DEFAULT_FILE, AsJson, File
from oncehouse.cli.ledger import open_catalog
from oncehouse.cli.output import say, show_json, show_table
from oncehouse.config_file import load_pipeline
from oncehouse.config_values import hide_credentials
from oncehouse.errors import ConfigurationError, OncehouseError, TransientError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oncehouse.clickhouse.preflight import Finding
    from oncehouse.config import Pipeline


def check(file: File = DEFAULT_FILE, *, as_json: AsJson = False) -> None:
    """Look at the file, Kafka, the tables and the ledger; exit 2 when something has to be put right first."""
    pipeline = load_pipeline(file)
    findings, exit_code = examine(pipeline)
    if as_json:
        show_json({"pipeline": pipeline.pipeline, "ok": exit_code == 0, "findings": findings})
    else:
        _show(pipeline, findings, ok=exit_code == 0)
    raise typer.Exit(exit_code)


def examine(pipeline: Pipeline) -> tuple[list[Finding], int]:
    """Everything found, and the exit code: 0 when nothing stands in the way, 75 when it may pass."""
    from oncehouse.clickhouse.preflight import Finding, Level

    found: list[Finding] = []
    codes: set[int] = set()
    looks = {
        "identity": look_at_identity,
        "kafka": look_at_kafka,
        "clickhouse": look_at_clickhouse,
        "ledger": look_at_ledger,
    }
    for where, look in looks.items():
        try:
            listed = list(look(pipeline))
        except OncehouseError as error:
            what, _, advice = str(error).partition("\n")
            found.append(Finding(level=Level.ERROR, where=where, what=what, advice=advice))
            codes.add(error.exit_code)
        else:
            found += listed
            codes |= {ConfigurationError.exit_code for finding in listed if finding.level is Level.ERROR}
    return found, _worst(codes)


def _worst(codes: set[int]) -> int:
    """What somebody has to put right weighs more than what may pass by itself."""
    lasting = codes - {TransientError.exit_code}
    return min(lasting) if lasting else max(codes, default=0)


def look_at_identity(pipeline: Pipeline) -> Iterable[Finding]:
    from oncehouse.pipeline.prepare import identity_of

    identity_of(pipeline)
    return ()


def look_at_kafka(pipeline: Pipeline) -> Iterable[Finding]:
    """Brokers, topics, and whether Kafka still has what the ledger has not read."""
    from oncehouse.pipeline.prepare import check_source
    from oncehouse.pipeline.source import Topics

    with open_catalog(pipeline) as catalog:
        check_source(catalog, Topics(pipeline.source.kafka))
    return ()


def look_at_clickhouse(pipeline: Pipeline) -> Iterable[Finding]:
    from oncehouse.pipeline.prepare import inspect_tables

    return inspect_tables(pipeline)


def look_at_ledger(pipeline: Pipeline) -> Iterable[Finding]:
    from oncehouse.pipeline.prepare import check_ledger

    with open_catalog(pipeline) as catalog:
        check_ledger(pipeline, catalog)
    return ()


def _show(pipeline: Pipeline, findings: list[Finding], *, ok: bool) -> None:
    for finding in findings:
        say(f"{finding.level}: {finding.where}: {finding.what}")
        if finding.advice:
            say("  " + finding.advice.replace("\n", "\n  "))
    if not ok:
        return
    show_table(
        ["part", "at"],
        [
            (
                "kafka",
                f"{pipeline.source.kafka.bootstrap_servers}: {', '.join(pipeline.source.kafka.topics)}",
            ),
            (
                "clickhouse",
                f"{pipeline.clickhouse.url}: {', '.join(table.name for table in pipeline.tables)}",
            ),
            ("ledger", hide_credentials(pipeline.ledger.files)),
        ],
        empty="",
    )
    say(f"pipeline {pipeline.pipeline} is ready to run")
