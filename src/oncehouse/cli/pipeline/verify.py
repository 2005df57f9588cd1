"""`oncehouse verify`: compares the ledger with itself, its files and ClickHouse, and prints all findings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from oncehouse.cli.arguments import DEFAULT_FILE, AsJson, File
from oncehouse.cli.open_ledger import open_ledger
from oncehouse.cli.output import say, show_facts, show_json
from oncehouse.cli.pager import paged
from oncehouse.common.json_documents import Answer
from oncehouse.config.file_loader import load_pipeline

if TYPE_CHECKING:
    from oncehouse.pipeline.maintenance.verify_report import VerifyReport

DIFFERENCE_EXIT_CODE = 3


@dataclass(frozen=True, kw_only=True)
class Verified(Answer, of=("verify",)):
    pipeline: str
    ok: bool
    report: VerifyReport


@paged()
def verify(
    file: File = DEFAULT_FILE,
    *,
    files: Annotated[
        bool, typer.Option("--files", help="Also read every byte of the ledger's files.")
    ] = False,
    ledger_only: Annotated[bool, typer.Option("--ledger-only", help="Do not ask ClickHouse.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare offsets, counts, files and rows; exit 3 when anything differs. Changes nothing."""
    from oncehouse.clickhouse.client import connect
    from oncehouse.ledger.storage.file_store import FileStore
    from oncehouse.pipeline.maintenance.verify import verify as compare

    pipeline = load_pipeline(file)
    client = None if ledger_only else connect(pipeline.clickhouse)
    with open_ledger(pipeline) as catalog:
        report = compare(pipeline, catalog, FileStore(pipeline.ledger.files), client, files=files)
    if as_json:
        show_json(Verified(pipeline=pipeline.pipeline, ok=report.is_clean, report=report))
    else:
        _show(report)
    if not report.is_clean:
        raise typer.Exit(DIFFERENCE_EXIT_CODE)


def _show(report: VerifyReport) -> None:
    from oncehouse.pipeline.maintenance.verify_report import Subject

    for finding in report.findings:
        say(f"difference in {finding.kind}: {finding.where}: {finding.message}")
    for note in report.notes:
        say(f"not compared: {note.kind}: {note.where}: {note.message}")
    show_facts(
        {
            "epochs": report.epochs,
            "parts": report.parts,
            "batches": report.batches,
            "files": report.files,
            "rows in ClickHouse": report.rows_in_clickhouse,
            "differences": len(report.findings),
        }
    )
    if any(finding.kind is Subject.ROWS for finding in report.findings):
        say(
            "\nrows that are gone: `oncehouse replay --table TABLE` fills an emptied table again from the ledger"
        )
