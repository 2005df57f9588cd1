"""`oncehouse chaos`: the faults that the pipeline must survive, played over the user's own file on a private stack."""

from __future__ import annotations

import random
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oncehouse.cli.arguments import DEFAULT_FILE, AsJson, File
from oncehouse.cli.output import open_console, say, show_error, show_json, show_table, visible
from oncehouse.common.json_documents import Answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncehouse.devstack.chaos.run_chaos import ChaosReport, ScenarioResult

NOT_HELD_EXIT_CODE = 3
EVENTS = 2000

_GREATEST_SEED = 999_999


@dataclass(frozen=True, kw_only=True)
class OneScenario:
    scenario: str
    faults_row: int
    what: str
    defect: str


@dataclass(frozen=True, kw_only=True)
class ScenarioList(Answer, of=("chaos",)):
    scenarios: list[OneScenario]


@dataclass(frozen=True, kw_only=True)
class Played(Answer, of=("chaos",)):
    ok: bool
    pipeline: str
    seed: int
    records: int
    rows: int
    notes: tuple[str, ...]
    scenarios: tuple[ScenarioResult, ...]


def chaos(
    file: File = DEFAULT_FILE,
    *,
    scenario: Annotated[
        list[str] | None,
        typer.Option("--scenario", help="Only this scenario; may be repeated. Default: all."),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the scenarios and run none.")] = False,
    events: Annotated[
        int, typer.Option("--events", help="About how many records each run reads, repeats included.")
    ] = EVENTS,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Generate the same events again. Default: a random seed.")
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(
            "--records", help="A sample of your own records, one per line, instead of generated ones."
        ),
    ] = None,
    with_defects: Annotated[
        bool,
        typer.Option("--with-defects", help="Repeat each with an injected defect, which must be noticed."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Inject faults into the pipeline of FILE, on its own Kafka and ClickHouse; exit 3 if a guarantee did not hold."""
    from oncehouse.devstack.chaos.run_chaos import choose, make_plan, play_all

    chosen = choose(scenario or ())
    if listed:
        _list(as_json=as_json)
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    number = random.randint(1, _GREATEST_SEED) if seed is None else seed  # noqa: S311 - printed, to be repeated
    plan = make_plan(file, events=events, seed=number, sample=records)
    print_line = _make_printer()
    for note in plan.notes:
        print_line(f"note: {note}")
    report = play_all(
        plan,
        chosen,
        with_defects=with_defects,
        say=print_line,
        on_result=lambda result: print_line(_line(result)),
    )
    if as_json:
        show_json(_answer(report))
    else:
        _show(report)
    if not report.went_well:
        raise typer.Exit(NOT_HELD_EXIT_CODE)


def _make_printer() -> Callable[[str], None]:
    """Progress goes to standard error, so that the table and JSON can be taken by themselves."""
    console = open_console(sys.stderr)
    started = time.monotonic()

    def print_line(text: str) -> None:
        console.print(f"{time.monotonic() - started:6.1f} s  {visible(text)}")

    return print_line


def _line(result: ScenarioResult) -> str:
    held = "held" if result.held else "DID NOT HOLD"
    caught = {None: "", True: "; the defect was caught", False: "; THE DEFECT WAS NOT CAUGHT"}
    return f"  {held}{caught[result.defect_caught]} ({result.seconds:.1f} s)"


def _list(*, as_json: bool) -> None:
    from oncehouse.devstack.chaos.scenarios import SCENARIOS

    if as_json:
        listed = [
            OneScenario(scenario=found.name, faults_row=found.row, what=found.what, defect=found.defect)
            for found in SCENARIOS
        ]
        show_json(ScenarioList(scenarios=listed))
        return
    show_table(
        ("scenario", "fault", "what happens", "defect of --with-defects"),
        [(found.name, found.row, found.what, found.defect) for found in SCENARIOS],
        empty="no scenarios",
    )


def _answer(report: ChaosReport) -> Played:
    return Played(
        ok=report.went_well,
        pipeline=report.pipeline,
        seed=report.seed,
        records=report.records,
        rows=report.rows,
        notes=report.notes,
        scenarios=report.results,
    )


def _show(report: ChaosReport) -> None:
    headings = ["scenario", "fault", "held", "seed", "seconds"]
    with_defects = any(result.defect_caught is not None for result in report.results)
    if with_defects:
        headings[3:3] = ["defect", "caught"]
    show_table(
        headings, [_row(result, with_defects=with_defects) for result in report.results], empty="nothing"
    )
    for result in report.results:
        for difference in result.differences:
            show_error(f"{result.scenario}: {difference}")
        if result.folder is not None:
            say(f"{result.scenario}: file, ledger and log of the run are in {result.folder}")
        if result.defect_alone:
            show_error(
                f"{result.scenario}: the defect {result.defect!r} shows without any fault, so that catching it "
                f"shows nothing: {result.defect_alone[0]}"
            )
        elif result.defect_caught is False:
            show_error(f"{result.scenario}: the injected defect {result.defect!r} was not noticed")
    held = sum(result.held for result in report.results)
    say(
        f"\n{held} of {len(report.results)} scenarios held: {report.records} records of pipeline {report.pipeline} "
        f"each time, {report.rows} rows, none lost, none doubled (seed {report.seed})"
        if held == len(report.results)
        else f"\n{len(report.results) - held} of {len(report.results)} scenarios did not hold; "
        f"`--scenario NAME --seed {report.seed}` plays one again"
    )


def _row(result: ScenarioResult, *, with_defects: bool) -> list[object]:
    caught = [result.defect, result.defect_caught] if with_defects else []
    return [
        result.scenario,
        result.faults_row,
        "yes" if result.held else "NO",
        *caught,
        str(result.seed),
        f"{result.seconds:.1f}",
    ]
