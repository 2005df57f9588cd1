"""`oncehouse repair`: what is damaged in the ledger, from what it can be made again, and the making of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from oncehouse.cli.arguments import DEFAULT_FILE, AsJson, File
from oncehouse.cli.output import format_time, print_note, say, show_json
from oncehouse.cli.pipeline.verify import DIFFERENCE_EXIT_CODE
from oncehouse.common.json_documents import Answer
from oncehouse.config.file_loader import load_pipeline
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncehouse.config.pipeline import Pipeline
    from oncehouse.ledger.models import OffsetRange
    from oncehouse.pipeline.repair.catalog_restore import CatalogRepair
    from oncehouse.pipeline.repair.repair import RepairPlan, RepairResult
    from oncehouse.pipeline.repair.repair_plan import Repair


@dataclass(frozen=True, kw_only=True)
class PlannedRepair(Answer, of=("repair",)):
    pipeline: str
    ok: bool
    plan: RepairPlan


@dataclass(frozen=True, kw_only=True)
class DoneRepair(Answer, of=("repair",)):
    pipeline: str
    ok: bool
    result: RepairResult


def repair(
    file: File = DEFAULT_FILE,
    *,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show what is damaged and what would be done (the default).")
    ] = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="Do it; the pipeline must not run meanwhile.")
    ] = False,
    user_rewrites: Annotated[
        bool,
        typer.Option(
            "--given-again",
            help="Rows of DataFrames and imports that a lost catalog does not know will be given again.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find damage in catalog and files; with --apply, restore what exists elsewhere. Exit 3 if damage is left."""
    if plan and apply:
        raise ConfigurationError("--plan and --apply contradict each other; choose one")
    pipeline = load_pipeline(file)
    act = _apply if apply else _plan
    if not act(pipeline, user_rewrites=user_rewrites, as_json=as_json):
        raise typer.Exit(DIFFERENCE_EXIT_CODE)


def _plan(pipeline: Pipeline, *, user_rewrites: bool, as_json: bool) -> bool:
    from oncehouse.pipeline.repair.repair import plan_repair

    found = plan_repair(pipeline, print_note, user_rewrites=user_rewrites)
    if as_json:
        show_json(PlannedRepair(pipeline=pipeline.pipeline, ok=found.is_clean, plan=found))
    else:
        _show_plan(found)
    return found.is_clean


def _show_plan(found: RepairPlan) -> None:
    if found.catalog is not None:
        _show_catalog(found.catalog)
    _show_repairs(found.files)
    if found.is_clean:
        say(f"nothing is damaged: the catalog and {found.files_checked} files are as they were written")
    elif found.catalog is not None:
        say("the files are looked at when the catalog is back")
    if not found.is_clean:
        say("nothing was changed; stop the pipeline and let --apply do it")


def _show_catalog(planned: CatalogRepair) -> None:
    say(f"the catalog: {planned.problem}")
    _show_reasons(planned)
    if planned.snapshot is not None:
        say(
            f"  from: the snapshot of {format_time(planned.snapshot.taken_at)} (epoch {planned.snapshot.epoch})"
        )
    elif planned.begins_anew:
        say("  from: Kafka, every record from the first on, for there is no snapshot")
    for table, rows in planned.strange_rows.items():
        say(f"  {table}: the ids of {rows} rows whose batches it does not know enter the key index")
    if come := len(planned.arrived_batches) + len(planned.arrived_parts) + len(planned.resent_batches):
        say(f"  {come} batches and open parts that it would send, or send again, have come and are settled")
    say(f"  cost: {planned.records} records are read again{_format_offsets(planned.reads)}")


def _show_reasons(planned: CatalogRepair) -> None:
    for reason in planned.refused:
        say(f"  cannot be brought back exactly: {reason}")


def _show_repairs(repairs: Sequence[Repair]) -> None:
    def alike(repair: Repair) -> tuple[str, str, str]:
        return repair.kind, repair.file.path, repair.why or ""

    for _, group in groupby(sorted(repairs, key=alike), key=alike):
        members = list(group)
        first = members[0]
        more = f" and {len(members) - 1} more in one file" if members[1:] else ""
        say(f"{first.kind} {first.name}{more}: {first.problem}")
        if first.source is None:
            say(f"  cannot be made again: {first.why}{_format_offsets(first.ranges)}")
            say("  lost: " + "; ".join(dict.fromkeys(member.lost for member in members[:3])))
            continue
        records = sum(member.records for member in members)
        what = "offsets are read" if first.source == "Kafka" else "events are read"
        say(f"  from: {first.source}; cost: {records} {what}{_format_offsets(first.ranges)}")
        say("  until then: " + "; ".join(dict.fromkeys(member.lost for member in members[:3])))


def _format_offsets(ranges: Sequence[OffsetRange]) -> str:
    if not ranges:
        return ""
    texts = [f"{span.topic}/{span.partition} {span.start} to {span.end - 1}" for span in ranges[:4]]
    return f" ({', '.join(texts)}{' …' if ranges[4:] else ''})"


def _apply(pipeline: Pipeline, *, user_rewrites: bool, as_json: bool) -> bool:
    from oncehouse.pipeline.repair.repair import apply_repair

    result = apply_repair(pipeline, print_note if as_json else say, user_rewrites=user_rewrites)
    whole = not result.refused and (result.catalog is None or not result.catalog.refused)
    if as_json:
        show_json(DoneRepair(pipeline=pipeline.pipeline, ok=whole, result=result))
    else:
        _show_result(result)
    return whole


def _show_result(result: RepairResult) -> None:
    if result.catalog is not None and result.catalog.refused:
        _show_reasons(result.catalog)
        say("nothing was changed")
        return
    if result.catalog is not None:
        say(
            f"the catalog is back, as of epoch {result.catalog.epoch}; `oncehouse run` reads the rest "
            f"({result.catalog.records} records) again"
        )
    if result.put_aside is not None:
        say(f"the damaged catalog was kept as {result.put_aside}")
    released = [batch_id for done in result.done for batch_id in done.released]
    for batch_id in released:
        say(f"batch {batch_id} is tried again by the next run")
    made = sum(len(done.repairs) for done in result.done)
    left = sum(len(refusal.repairs) for refusal in result.refused)
    say(f"{made} files were made again, {left} could not be")
