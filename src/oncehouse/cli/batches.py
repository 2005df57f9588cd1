"""`oncehouse batches`: what waits for ClickHouse, what was refused and why, and another try for it."""

from __future__ import annotations

from typing import Annotated

import typer

from oncehouse.cli.arguments import DEFAULT_FILE, AsJson, File
from oncehouse.cli.ledger import open_ledger
from oncehouse.cli.output import say, show_facts, show_json, show_table, spell_time
from oncehouse.config_file import load_pipeline
from oncehouse.ledger.records import Batch, BatchStatus

app = typer.Typer(no_args_is_help=True, help="Batches: list them, look at one, try a parked one again.")

_Status = Annotated[
    list[BatchStatus] | None, typer.Option("--status", help="Only batches of this status; may be repeated.")
]
_Table = Annotated[str | None, typer.Option("--table", help="Only batches of this table.")]
_BatchId = Annotated[
    str, typer.Argument(metavar="BATCH", help="Id of the batch, as `batches list` shows it.")
]


@app.command("list")
def list_(
    file: File = DEFAULT_FILE, *, status: _Status = None, table: _Table = None, as_json: AsJson = False
) -> None:
    """List batches, oldest first."""
    from oncehouse.ledger.batches import list_batches

    with open_ledger(load_pipeline(file)) as catalog:
        found = list_batches(catalog, statuses=status or None, table=table)
    if as_json:
        show_json({"batches": found})
        return
    show_table(
        ["batch", "table", "status", "rows", "attempts", "made", "loaded", "reason"],
        [
            (
                b.batch_id,
                b.table,
                b.status,
                b.rows,
                b.attempts,
                *_times(b),
                (b.reason or "").partition("\n")[0],
            )
            for b in found
        ],
        empty="no such batch" if status or table else "no batches yet",
    )


@app.command()
def show(batch: _BatchId, file: File = DEFAULT_FILE, *, as_json: AsJson = False) -> None:
    """Show one batch: its parts, every attempt, and why it is where it is."""
    from oncehouse.ledger.batches import find_batch, list_attempts, load_parts

    with open_ledger(load_pipeline(file)) as catalog:
        found = find_batch(catalog, batch)
        attempts = list_attempts(catalog, batch)
        parts = [loaded.part for loaded in load_parts(catalog, batch)]
    if as_json:
        show_json({"batch": found, "attempts": attempts, "parts": parts})
        return
    made, loaded = _times(found)
    show_facts(
        {
            "batch": found.batch_id,
            "table": found.table,
            "status": found.status,
            "rows": found.rows,
            "bytes": found.size_bytes,
            "made": made,
            "loaded": loaded,
            "reason": found.reason,
        }
    )
    say("")
    show_table(
        ["attempt", "started", "finished", "outcome", "query id", "detail"],
        [
            (a.attempt, spell_time(a.started_at), spell_time(a.finished_at), a.outcome, a.query_id, a.detail)
            for a in attempts
        ],
        empty="not tried yet",
    )
    say("")
    show_table(
        ["part", "epoch", "rows", "live rows", "file"],
        [(part.part, part.epoch, part.rows, part.live_rows, part.file.path) for part in parts],
        empty="no parts",
    )


@app.command()
def retry(batch: _BatchId, file: File = DEFAULT_FILE, *, as_json: AsJson = False) -> None:
    """Let a parked batch be tried again: by a running pipeline at once, else by the next run."""
    from oncehouse.ledger.batches import find_batch, retry_parked

    with open_ledger(load_pipeline(file)) as catalog:
        retry_parked(catalog, batch)
        found = find_batch(catalog, batch)
    if as_json:
        show_json({"batch": found})
    else:
        say(f"batch {batch} of {found.table} will be tried again by `oncehouse run`")


def _times(batch: Batch) -> tuple[str, str]:
    return spell_time(batch.created_at), spell_time(batch.loaded_at)
