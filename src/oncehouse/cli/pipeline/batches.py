"""`oncehouse batches`: what waits for ClickHouse, what was refused and why, and another try for it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from oncehouse.cli.arguments import DEFAULT_FILE, AsJson, File
from oncehouse.cli.open_ledger import open_ledger
from oncehouse.cli.output import format_time, say, show_facts, show_json, show_table
from oncehouse.cli.pager import paged
from oncehouse.common.json_documents import Answer, Inlined
from oncehouse.config.file_loader import load_pipeline
from oncehouse.ledger.models import BatchStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from oncehouse.clickhouse.view_rebuild import ViewRebuild
    from oncehouse.ledger.models import LedgerBatch
    from oncehouse.monitoring.batches import BatchDetail, BatchView

app = typer.Typer(no_args_is_help=True, help="Batches: list them, show one, retry a parked one.")


@dataclass(frozen=True, kw_only=True)
class UnprovenViews(Answer, of=("batches views",)):
    batches: tuple[LedgerBatch, ...]
    rebuilds: dict[str, tuple[ViewRebuild, ...]]
    """By table: how each of its views is rebuilt."""
    settled: bool


_Status = Annotated[
    list[BatchStatus] | None, typer.Option("--status", help="Only batches of this status; may be repeated.")
]
_Table = Annotated[str | None, typer.Option("--table", help="Only batches of this table.")]
_BatchId = Annotated[
    str, typer.Argument(metavar="BATCH", help="Id of the batch, as `batches list` shows it.")
]


@dataclass(frozen=True, kw_only=True)
class BatchList(Answer, of=("batches list",)):
    batches: tuple[BatchView, ...]


@dataclass(frozen=True, kw_only=True)
class OneBatch(Answer, of=("batches show",)):
    detail: Inlined[BatchDetail]


@dataclass(frozen=True, kw_only=True)
class ReleasedBatch(Answer, of=("batches retry",)):
    batch: LedgerBatch


@app.command("list")
@paged()
def list_(
    file: File = DEFAULT_FILE, *, status: _Status = None, table: _Table = None, as_json: AsJson = False
) -> None:
    """List batches, oldest first."""
    from oncehouse.monitoring.batches import list_batches

    with open_ledger(load_pipeline(file)) as catalog:
        found = list_batches(catalog, statuses=status or None, table=table)
    if as_json:
        show_json(BatchList(batches=found))
        return
    show_table(
        ["batch", "table", "status", "rows", "attempts", "made (UTC)", "loaded (UTC)", "reason"],
        [_row(view.batch) for view in found],
        empty="no such batch" if status or table else "no batches yet",
    )


@app.command()
@paged()
def show(batch: _BatchId, file: File = DEFAULT_FILE, *, as_json: AsJson = False) -> None:
    """Show one batch: its parts, every attempt, and why it is where it is."""
    from oncehouse.monitoring.batches import read_batch

    with open_ledger(load_pipeline(file)) as catalog:
        detail = read_batch(catalog, batch)
    if as_json:
        show_json(OneBatch(detail=detail))
    else:
        _show(detail)


@app.command()
@paged()
def views(
    file: File = DEFAULT_FILE,
    *,
    done: Annotated[
        list[str] | None,
        typer.Option(
            "--done",
            metavar="BATCH",
            help="The views of this batch of the list were rebuilt or found right; may be repeated.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show batches whose materialized views may lack their rows, and the statements that rebuild those views."""
    from oncehouse.monitoring.actions import list_unproven, plan_view_rebuilds, settle_views

    pipeline = load_pipeline(file)
    with open_ledger(pipeline) as catalog:
        found = settle_views(catalog, done) if done else list_unproven(catalog)
    rebuilds = {} if done else plan_view_rebuilds(pipeline, {batch.table for batch in found})
    if as_json:
        show_json(UnprovenViews(batches=found, rebuilds=rebuilds, settled=bool(done)))
    elif done:
        say(f"{len(found)} batches: their views count as rebuilt")
    else:
        _show_views(file, found, rebuilds)


@app.command()
def retry(batch: _BatchId, file: File = DEFAULT_FILE, *, as_json: AsJson = False) -> None:
    """Retry a parked batch: a running pipeline does so at once, else the next run."""
    from oncehouse.monitoring.actions import retry_batch

    with open_ledger(load_pipeline(file)) as catalog:
        found = retry_batch(catalog, batch)
    if as_json:
        show_json(ReleasedBatch(batch=found))
    else:
        say(f"batch {batch} of {found.table} will be tried again by `oncehouse run`")


def _row(batch: LedgerBatch) -> tuple[object, ...]:
    made, loaded = format_time(batch.created_at), format_time(batch.loaded_at)
    reason = (batch.reason or "").partition("\n")[0]
    return batch.batch_id, batch.table, batch.status, batch.rows, batch.attempts, made, loaded, reason


def _show_views(
    file: Path, found: Sequence[LedgerBatch], rebuilds: Mapping[str, Sequence[ViewRebuild]]
) -> None:
    show_table(
        ["batch", "table", "rows", "loaded (UTC)"],
        [(batch.batch_id, batch.table, batch.rows, format_time(batch.loaded_at)) for batch in found],
        empty="no batch's views are in doubt",
    )
    for table, planned in rebuilds.items():
        for rebuild in planned:
            say("")
            if rebuild.refused is not None:
                say(
                    f"{rebuild.view} of {table} cannot be rebuilt by statements of this kind: {rebuild.refused}"
                )
                continue
            say(
                f"-- {rebuild.view} of {table}: stop all that insert into {table}, and compare before the EXCHANGE"
            )
            for statement in rebuild.statements:
                say(f"{statement};")
    if found:
        done = (option for batch in found for option in ("--done", batch.batch_id))
        say("")
        say("When the views have the rows of these batches, run:")
        say(shlex.join(["oncehouse", "batches", "views", str(file), *done]))


def _show(detail: BatchDetail) -> None:
    batch = detail.view.batch
    show_facts(
        {
            "batch": batch.batch_id,
            "table": batch.table,
            "status": batch.status,
            "rows": batch.rows,
            "bytes": batch.size_bytes,
            "made (UTC)": format_time(batch.created_at),
            "loaded (UTC)": format_time(batch.loaded_at),
            "outcome unknown": detail.outcome_unknown,
            "reason": batch.reason,
        }
    )
    say("")
    show_table(
        ["attempt", "started (UTC)", "finished (UTC)", "outcome", "query id", "detail"],
        [
            (
                x.attempt,
                format_time(x.started_at),
                format_time(x.finished_at),
                x.outcome,
                x.query_id,
                x.detail,
            )
            for x in detail.attempts
        ],
        empty="not tried yet",
    )
    say("")
    show_table(
        ["part", "epoch", "rows", "live rows", "file"],
        [(part.part, part.epoch, part.rows, part.live_rows, part.file.path) for part in detail.parts],
        empty="no parts",
    )
