"""`oncehouse sync verify`: the tables of syncs against the database, and `--repair` of what differs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from oncehouse.cli.arguments import AsJson
from oncehouse.cli.output import say, show_json, show_table
from oncehouse.cli.pipeline.run import in_thread
from oncehouse.cli.pipeline.verify import DIFFERENCE_EXIT_CODE
from oncehouse.cli.sync.backfill import DEFAULT_CHUNK, Chunk
from oncehouse.cli.sync.key_progress import KeyProgressView
from oncehouse.cli.sync.options import Modules, Names, find, print_notes
from oncehouse.common.json_documents import Answer, Inlined

if TYPE_CHECKING:
    from oncehouse.sync.model.model_sync import ModelSync
    from oncehouse.sync.verify.verify import Difference, SyncVerifyReport


@dataclass(frozen=True, kw_only=True)
class DifferingKeys:
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SyncVerified:
    sync: str
    table: str
    rows: int
    ranges: int
    differing_ranges: int
    waiting: int
    changing: int
    complete: bool
    pipeline_file: str | None
    ok: bool
    differences: Inlined[dict[Difference, DifferingKeys]]
    repaired: int


@dataclass(frozen=True, kw_only=True)
class SyncsVerified(Answer, of=("sync verify",)):
    event: Literal["verified"] = "verified"
    ok: bool
    syncs: list[SyncVerified]


def verify(
    names: Names = None,
    *,
    module: Modules = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Sync differing rows again, then compare once more.")
    ] = False,
    chunk: Chunk = DEFAULT_CHUNK,
    as_json: AsJson = False,
) -> None:
    """Compare the rows of the database with those in ClickHouse; exit 3 when they differ. Writers may go on."""
    from oncehouse.sync.discovery import select_to_verify

    chosen = select_to_verify(find(module, names), names or (), repair=repair)
    print_notes(chosen.notes)
    reports: list[SyncVerifyReport] = []
    repaired: dict[str, int] = {}
    with KeyProgressView(as_json=as_json) as view:
        for sync in chosen.syncs:
            report, count = _verify_one(sync, chunk, view, repair=repair)
            reports.append(report)
            repaired[report.sync] = count
    ok = all(report.is_clean for report in reports)
    if as_json:
        notes = [_describe(report, repaired[report.sync]) for report in reports]
        show_json(SyncsVerified(ok=ok, syncs=notes))
    else:
        _show(reports, repaired)
    if not ok:
        raise typer.Exit(DIFFERENCE_EXIT_CODE)


def _verify_one(
    sync: type[ModelSync], chunk: int, view: KeyProgressView, *, repair: bool
) -> tuple[SyncVerifyReport, int]:
    """The report, and how many keys were synced again."""
    from oncehouse.sync.verify.repair import verify_and_repair
    from oncehouse.sync.verify.verify import verify as compare

    if repair:
        return in_thread(lambda: verify_and_repair(sync, keys_a_range=chunk, report=view))
    return in_thread(lambda: (compare(sync, keys_a_range=chunk, report=view), 0))


def _describe(report: SyncVerifyReport, repaired: int) -> SyncVerified:
    from oncehouse.sync.verify.advice import EXAMPLES

    known = {name: value for name, value in vars(report).items() if name != "differences"}
    differences = {
        kind: DifferingKeys(count=len(keys), examples=keys[:EXAMPLES])
        for kind, keys in report.differences.items()
    }
    return SyncVerified(**known, ok=report.is_clean, differences=differences, repaired=repaired)


def _show(reports: list[SyncVerifyReport], repaired: dict[str, int]) -> None:
    from oncehouse.sync.verify.advice import describe_differences
    from oncehouse.sync.verify.verify import Difference

    show_table(
        ["sync", "table", "rows", "ranges", "differing ranges", *Difference, "waiting"],
        [
            (
                *(report.sync, report.table, report.rows, report.ranges, report.differing_ranges),
                *(len(report.differences[kind]) for kind in Difference),
                report.waiting,
            )
            for report in reports
        ],
        empty="there is no sync",
    )
    for report in reports:
        if repaired[report.sync]:
            say(f"{report.sync}: {repaired[report.sync]:,} keys were synced again")
        for line in describe_differences(report):
            say(line)
