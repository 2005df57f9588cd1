"""`oncehouse check`: look at everything the pipeline file names, before any data moves.

Kafka, ClickHouse and the ledger are each looked at even when another one is wrong: one look shows all.
Nothing is changed: no table, no catalog, no topic; an empty file is written and removed where the ledger's
files go, because only a write shows that they can be written.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from oncehouse.cli.arguments import DEFAULT_FILE, AsJson, File
from oncehouse.cli.open_ledger import load_current, open_catalog
from oncehouse.cli.output import say, show_json, show_table, text_width
from oncehouse.cli.pager import paged
from oncehouse.common.json_documents import Answer
from oncehouse.common.redaction import hide_credentials
from oncehouse.config.file_loader import load_pipeline
from oncehouse.errors import ConfigurationError, OncehouseError, TransientError, UpgradeNeededError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from oncehouse.clickhouse.preflight.finding import Finding
    from oncehouse.config.pipeline import Pipeline

_STATEMENT = "run: "


@dataclass(frozen=True, kw_only=True)
class Checked(Answer, of=("check",)):
    pipeline: str
    ok: bool
    findings: list[Finding]


@paged()
def check(
    file: File = DEFAULT_FILE,
    *,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also show the checks that passed, with their figures.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check the file, Kafka, the tables and the ledger; exit 2 if something must be fixed first."""
    from oncehouse.clickhouse.preflight.finding import objections

    pipeline = load_current(load_pipeline(file))
    findings, exit_code = examine(pipeline)
    shown = findings if explain else list(objections(findings))
    if as_json:
        show_json(Checked(pipeline=pipeline.pipeline, ok=exit_code == 0, findings=shown))
    else:
        _show(pipeline, shown, ok=exit_code == 0)
    raise typer.Exit(exit_code)


def examine(pipeline: Pipeline) -> tuple[list[Finding], int]:
    """Everything found, and the exit code: 0 when nothing stands in the way, 75 when it may pass."""
    from oncehouse.clickhouse.preflight.finding import Finding, Level

    found: list[Finding] = []
    codes: set[int] = set()
    checks = {
        "schemas": examine_schemas,
        "versions": examine_versions,
        "identity": examine_identity,
        "shape": examine_shape,
        "kafka": examine_kafka,
        "clickhouse": examine_clickhouse,
        "catalog": check_catalog_disk,
        "ledger": examine_ledger,
        "clocks": examine_clocks,
        "sample": examine_sample,
    }
    for where, run_check in checks.items():
        try:
            listed = list(run_check(pipeline))
        except UpgradeNeededError as error:
            # A run upgrades it and then checks for itself, so it prevents no run.
            older = Finding(level=Level.WARNING, where="ledger", what=str(error), advice="")
            found += [] if older in found else [older]
        except OncehouseError as error:
            what, _, advice = str(error).partition("\n")
            failure = Finding(level=Level.ERROR, where=where, what=what, advice=advice)
            # Two checks may meet the same server that is away.
            if not any(failure.what == known.what for known in found):
                found.append(failure)
            codes.add(error.exit_code)
        else:
            found += listed
            codes |= {ConfigurationError.exit_code for finding in listed if finding.level is Level.ERROR}
    return found, _worst(codes)


def _worst(codes: set[int]) -> int:
    """An error that needs a person weighs more than one that may pass by itself."""
    lasting = codes - {TransientError.exit_code}
    return min(lasting) if lasting else max(codes, default=0)


def examine_identity(pipeline: Pipeline) -> Iterable[Finding]:
    from oncehouse.pipeline.schema.identity_guard import identity_of

    if pipeline.identity.from_schema is False:
        identity_of(pipeline)
        return ()
    with open_catalog(pipeline) as catalog:
        identity_of(pipeline, catalog)
    return ()


def examine_shape(pipeline: Pipeline) -> Iterable[Finding]:
    """Look-ups and the function; expressions were compiled when the file was read."""
    from oncehouse.pipeline.transform.plan_builder import check_transform

    check_transform(pipeline)
    return ()


def examine_schemas(pipeline: Pipeline) -> Iterable[Finding]:
    """Schema files, and whether the registry answers."""
    from oncehouse.pipeline.schema.discovery import check_schemas

    check_schemas(pipeline)
    return ()


def examine_versions(pipeline: Pipeline) -> Iterable[Finding]:
    """Whether each known version has the fields that ids and tables depend on."""
    from oncehouse.pipeline.checks.preflight import inspect_versions

    with open_catalog(pipeline) as catalog:
        return inspect_versions(pipeline, catalog)


def examine_kafka(pipeline: Pipeline) -> Iterable[Finding]:
    """Brokers, topics, whether Kafka still has what the ledger has not read, and for how long it will."""
    from oncehouse.pipeline.checks.preflight import check_source, inspect_source
    from oncehouse.pipeline.ingest.kafka_source import KafkaTopics, group_of

    if pipeline.source.kafka is None:
        return ()
    topics = KafkaTopics(pipeline.source.kafka, group=group_of(pipeline.pipeline))
    with open_catalog(pipeline) as catalog:
        check_source(catalog, topics)
    return inspect_source(topics)


def examine_clickhouse(pipeline: Pipeline) -> Iterable[Finding]:
    from oncehouse.pipeline.checks.preflight import inspect_tables

    return inspect_tables(pipeline)


def examine_ledger(pipeline: Pipeline) -> Iterable[Finding]:
    from oncehouse.pipeline.checks.catalog_durability import inspect_catalog_durability
    from oncehouse.pipeline.checks.preflight import check_ledger, inspect_storage

    with open_catalog(pipeline) as catalog:
        check_ledger(pipeline, catalog)
        return (*inspect_storage(pipeline, catalog), *inspect_catalog_durability(catalog))


def check_catalog_disk(pipeline: Pipeline) -> Iterable[Finding]:
    """Apart from the ledger itself, which may not even be readable there."""
    from oncehouse.common.network_disk import refuse_network_disk
    from oncehouse.common.redaction import reveal

    refuse_network_disk(reveal(pipeline.ledger.catalog), setting="ledger.catalog")
    return ()


def examine_clocks(pipeline: Pipeline) -> Iterable[Finding]:
    from oncehouse.pipeline.checks.preflight import inspect_clocks

    with open_catalog(pipeline) as catalog:
        return inspect_clocks(pipeline, catalog)


def examine_sample(pipeline: Pipeline) -> Iterable[Finding]:
    """The newest records, as the pipeline would read them."""
    from oncehouse.pipeline.checks.preflight import inspect_sample
    from oncehouse.pipeline.ingest.kafka_source import KafkaTopics

    if pipeline.source.kafka is None:
        return ()
    with open_catalog(pipeline) as catalog:
        return inspect_sample(pipeline, catalog, KafkaTopics(pipeline.source.kafka))


def _source(pipeline: Pipeline) -> tuple[str, str]:
    if (kafka := pipeline.source.kafka) is not None:
        return "kafka", f"{kafka.bootstrap_servers}: {', '.join(kafka.topics)}"
    return "source", "DataFrames and imports"


def _show(pipeline: Pipeline, findings: list[Finding], *, ok: bool) -> None:
    for finding in findings:
        for line in _lines(finding):
            say(line)
    if not ok:
        return
    show_table(
        ["part", "at"],
        [
            _source(pipeline),
            (
                "clickhouse",
                f"{pipeline.clickhouse.url}: {', '.join(table.name for table in pipeline.tables)}",
            ),
            ("ledger", hide_credentials(pipeline.ledger.files)),
        ],
        empty="",
    )
    say(f"pipeline {pipeline.pipeline} is ready to run")


def _lines(finding: Finding) -> Iterator[str]:
    """A finding in lines that fit the screen; a statement stays in one piece, to be copied."""
    yield from _wrap(f"{finding.level}: {finding.where}: {finding.what}", first="")
    for line in finding.advice.splitlines():
        advice, statement, rest = line.partition(_STATEMENT)
        yield from _wrap(f"{advice}{statement}".rstrip(), first="  ")
        if statement:
            yield f"    {rest}"


def _wrap(text: str, *, first: str) -> list[str]:
    return textwrap.wrap(
        text,
        width=text_width(),
        initial_indent=first,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
