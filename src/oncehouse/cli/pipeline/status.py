"""`oncehouse status`: where a pipeline stands, from its ledger, and how far behind Kafka it is.

Kafka is asked for its end offsets only; when it is away, everything else is still printed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from oncehouse.cli.arguments import DEFAULT_FILE, AsJson, File
from oncehouse.cli.open_ledger import open_ledger
from oncehouse.cli.output import format_time, say, show_facts, show_json, show_table
from oncehouse.cli.pager import paged
from oncehouse.common.formatting import format_elapsed
from oncehouse.common.json_documents import Answer, Inlined
from oncehouse.config.file_loader import load_pipeline
from oncehouse.ledger.models import format_holder

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline
    from oncehouse.ledger.models import Request
    from oncehouse.monitoring.overview import EpochTotals, Overview
    from oncehouse.pipeline.ingest.backpressure import StorageState

_REQUESTS_SHOWN = 5

EndOffsets = dict[tuple[str, int], int]


@dataclass(frozen=True, kw_only=True)
class LedgerSpace:
    state: Inlined[StorageState]
    max_backlog: int | None


@dataclass(frozen=True, kw_only=True)
class PipelineStatus(Answer, of=("status",)):
    overview: Inlined[Overview]
    kafka: str | None
    """Why the lag is not known."""
    room: LedgerSpace


@paged()
def status(
    file: File = DEFAULT_FILE,
    *,
    ledger_only: Annotated[bool, typer.Option("--ledger-only", help="Do not ask Kafka for the lag.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show counts, lag, batches, dead letters, leases and requests."""
    from oncehouse.monitoring.overview import read_overview
    from oncehouse.pipeline.ingest.backpressure import read_storage_state

    pipeline = load_pipeline(file)
    with open_ledger(pipeline) as catalog:
        ends, trouble = (None, None) if ledger_only else ask_kafka(pipeline)
        overview = read_overview(catalog, end_offsets=ends)
        space = read_storage_state(pipeline, catalog)
    if as_json:
        bounded = LedgerSpace(state=space, max_backlog=pipeline.ledger.max_backlog)
        show_json(PipelineStatus(overview=overview, kafka=trouble, room=bounded))
        return
    _show(overview, _format_space(space, pipeline))
    if trouble is not None:
        say(f"\nthe lag is not known: {trouble}")


def ask_kafka(pipeline: Pipeline) -> tuple[EndOffsets | None, str | None]:
    """Kafka's end offsets, or why they are not known."""
    from oncehouse.monitoring.kafka import ask_kafka

    return ask_kafka(pipeline.source.kafka)


def _format_space(space: StorageState, pipeline: Pipeline) -> dict[str, object]:
    """How full the ledger is, against its bounds."""
    from oncehouse.common.formatting import format_bytes
    from oncehouse.pipeline.ingest.backpressure import least_free

    most, backlog = pipeline.ledger.max_backlog, format_bytes(space.backlog_bytes)
    if most is not None:
        backlog = f"{backlog} of {format_bytes(most)} ({space.backlog_bytes / most:.0%})"
    free = {
        f"free for {disk.holds.partition(' under ')[0]}": f"{format_bytes(disk.free_bytes)}, "
        f"{format_bytes(least_free(disk, pipeline.ledger))} of it kept free"
        for disk in space.disks
    }
    return {"waits for ClickHouse": backlog, **free}


def _show(overview: Overview, space: dict[str, object]) -> None:
    waited = overview.oldest_waiting_seconds
    show_facts(
        {
            "pipeline": overview.pipeline,
            "lag": overview.lag,
            "oldest row not in ClickHouse": None if waited is None else format_elapsed(waited),
            "keys in the index": overview.key_index.keys,
            "one id, two payloads": overview.conflicts,
            **space,
        }
    )
    say("")
    show_table(
        ["epochs", "number", "read", "new", "duplicate", "dead", "skipped", "last (UTC)"],
        [_epoch_row(totals) for totals in overview.epochs],
        empty="nothing was read yet",
    )
    if overview.queries:
        say("")
        show_table(
            ["query", "batches", "last batch"],
            [(found.query, found.batches, found.last_batch) for found in overview.queries],
            empty="",
        )
    _show_tables(overview)
    _show_people(overview)


def _epoch_row(totals: EpochTotals) -> tuple[object, ...]:
    counts, last = totals.counts, format_time(totals.last_registered_at)
    rows = (counts.read, counts.new, counts.duplicate, counts.dead_letter, counts.skipped)
    return totals.kind, totals.epochs, *rows, last


def _show_tables(overview: Overview) -> None:
    rows: list[tuple[str, str, int | None, int]] = [
        (found.table, "not in a batch yet", None, found.rows) for found in overview.open_parts
    ]
    rows += [(found.table, found.status, found.batches, found.rows) for found in overview.batches]
    if rows:
        say("")
        # A stable sort: what has no batch yet stands first of its table.
        rows.sort(key=lambda row: row[0])
        show_table(["table", "status", "batches", "rows"], rows, empty="")
    for table, number in overview.unproven_views.items():
        say(
            f"{table}: nothing shows that its materialized views have the rows of {number} loaded batches; "
            "`oncehouse batches views` says what to do"
        )
    if overview.dead_letters:
        say("")
        show_table(["dead letters", "number"], overview.dead_letters.items(), empty="")
    if overview.waiting:
        say("")
        others = [("(all others)", overview.waiting_others)] if overview.waiting_others else []
        show_table(["waiting for schema", "number"], [*overview.waiting.items(), *others], empty="")
        say(
            "`oncehouse schema add VERSION` makes a version known; the next epoch of a run decodes its records"
        )


def format_request(request: Request) -> str:
    """What was asked for, without what means nothing to people: a name of files, a rule as it is hashed."""
    arguments = {
        name: value
        for name, value in request.arguments.items()
        if name not in {"edits", "fingerprint", "rule"}
    }
    return " ".join([request.kind, *(f"{name}={value}" for name, value in arguments.items())])


def _show_people(overview: Overview) -> None:
    """Who runs it, and what has been asked of it."""
    held = [lease for lease in overview.leases if lease.ends_in_seconds > 0]
    say("")
    show_table(
        ["stage", "held by", "for another"],
        [(x.stage, format_holder(x.holder), format_elapsed(x.ends_in_seconds)) for x in held],
        empty="no process runs it",
    )
    for lease in held:
        if lease.pause is not None:
            say(f"\n{lease.stage} pauses: {lease.pause}")
    if overview.requests:
        say("")
        for request in overview.requests[-_REQUESTS_SHOWN:]:
            say(f"request {request.request}, {format_time(request.created_at)}: {format_request(request)}")
            say(f"  {request.result or 'waits for a run'}")
