"""`oncehouse plan-capacity`: what a load will need, from measured constants. No server is asked, nothing is started."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from oncehouse.cli.arguments import DEFAULT_FILE, AsJson
from oncehouse.cli.output import say, show_facts, show_json
from oncehouse.cli.pager import paged
from oncehouse.common.json_documents import Answer, Inlined
from oncehouse.config.field_types import parse_duration, parse_size

if TYPE_CHECKING:
    from oncehouse.capacity.json_output import PlanFigures
    from oncehouse.config.pipeline import Pipeline

_COUNT = re.compile(r"\s*([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([kKmMbB]?)\s*")
_TIMES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}

_MEMORY_BYTES, _DISK_BYTES = 32 << 30, 1 << 40

Value = TypeVar("Value")


def parse_count(text: str) -> float:
    """From "200000000", "200M" or "1.5B"."""
    found = _COUNT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a number of events; write it like 50000, 200k, 35M or 1.5B")
    return float(re.sub(r"[_,]", "", found[1])) * _TIMES[found[2].lower()]


def _reads(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """A parser of values as an option takes it."""

    def read(text: str | Value) -> Value:
        if not isinstance(text, str):
            return text  # a default
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return read


def _parse_size(text: str) -> float:
    plain = re.fullmatch(r"\s*[0-9]+(\.[0-9]+)?\s*", text)
    return float(text) if plain else float(parse_size(text))  # type: ignore[arg-type]


def _parse_duration(text: str) -> float:
    """With its unit: a bare 60 may mean days, and would plan for a minute."""
    return float(parse_duration(text))  # type: ignore[arg-type]


read_count = _reads(parse_count)
read_duration = _reads(_parse_duration)
read_size = _reads(_parse_size)


@dataclass(frozen=True, kw_only=True)
class PlannedCapacity(Answer, of=("plan-capacity",)):
    plan: Inlined[PlanFigures]
    notes: list[str]


@paged()
def plan_capacity(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="A pipeline file, for window, buckets, tables and limits that are not given."
        ),
    ] = None,
    *,
    events_a_day: Annotated[
        float,
        typer.Option(parser=read_count, help="Records a day, duplicates included: 50000, 200k, 35M, 1.5B."),
    ],
    event_size: Annotated[float, typer.Option(parser=read_size, help="Of one record: 213, 2KB.")],
    window: Annotated[
        float | None,
        typer.Option(
            parser=read_duration, help="How long ids are remembered: 60d; else the file's, else 60d."
        ),
    ] = None,
    duplicates: Annotated[
        float, typer.Option(help="Share of the records that came before, such as 0.1.")
    ] = 0.0,
    peak: Annotated[float, typer.Option(help="The busiest time, in times of the average.")] = 2.0,
    tables: Annotated[int | None, typer.Option(help="How many tables take each event.")] = None,
    partitions: Annotated[int | None, typer.Option(help="Of the topics; else as many as are needed.")] = None,
    buckets: Annotated[
        int | None, typer.Option(help="Of the key index; else the file's, else as many as are needed.")
    ] = None,
    stored_share: Annotated[
        float | None,
        typer.Option(help="What raw bytes and parts take of an event's bytes, where yours was measured."),
    ] = None,
    cores: Annotated[int, typer.Option(help="Of a machine.")] = 8,
    memory: Annotated[
        float, typer.Option(parser=read_size, show_default="32GB", help="Of a machine.")
    ] = _MEMORY_BYTES,
    disk: Annotated[
        float, typer.Option(parser=read_size, show_default="1TB", help="Of a machine.")
    ] = _DISK_BYTES,
    disk_reads: Annotated[
        int,
        typer.Option(
            help="Random reads a second of a machine's disk: 20000 of an SSD, 200 of a spinning one."
        ),
    ] = 20_000,
    machines: Annotated[
        int | None, typer.Option(help="How many there are; else as few as are enough.")
    ] = None,
    outage: Annotated[
        float, typer.Option(parser=read_duration, show_default="1h", help="What has to be caught up with.")
    ] = 3_600.0,
    replicas: Annotated[int, typer.Option(help="How often the ledger is stored.")] = 1,
    price_per_gb: Annotated[float | None, typer.Option(help="Of storage, a month.")] = None,
    price_per_machine: Annotated[float | None, typer.Option(help="A month.")] = None,
    as_json: AsJson = False,
) -> None:
    """Calculate what a load needs: buckets, segments, disk, memory, inserts, machines, cost; exit 2 if impossible."""
    from oncehouse.capacity.find_machines import find_notes
    from oncehouse.capacity.find_machines import plan_capacity as plan_for_inputs
    from oncehouse.capacity.inputs import CapacityInputs, Machine
    from oncehouse.capacity.json_output import describe
    from oncehouse.capacity.text_output import format_plan
    from oncehouse.config.file_loader import load_pipeline

    named = file or (DEFAULT_FILE if DEFAULT_FILE.exists() else None)
    pipeline = load_pipeline(named) if named is not None else None
    inputs = CapacityInputs(
        **_from_file(pipeline, window=window, buckets=buckets, tables=tables),
        events_a_day=events_a_day,
        event_bytes=event_size,
        duplicate_share=duplicates,
        peak=peak,
        partitions=partitions,
        stored_share=stored_share,
        outage_seconds=outage,
        machine=Machine(
            cores=cores, memory_bytes=round(memory), disk_bytes=round(disk), disk_reads_a_second=disk_reads
        ),
        machines=machines,
        replicas=replicas,
        price_a_gigabyte=price_per_gb,
        price_a_machine=price_per_machine,
    )
    plan = plan_for_inputs(inputs)
    notes = list(find_notes(plan))
    if as_json:
        show_json(PlannedCapacity(plan=describe(plan), notes=notes))
        return
    for title, facts in format_plan(plan).items():
        say(title)
        show_facts({f"  {name}": value for name, value in facts.items()})
    for note in notes:
        say(f"note: {note}")


def _from_file(
    pipeline: Pipeline | None, *, window: float | None, buckets: int | None, tables: int | None
) -> dict[str, Any]:
    """What the file says where the command line does not, and the defaults of a file where neither does."""
    from oncehouse.config.pipeline import Identity

    default = Identity.model_fields["window"].default
    if pipeline is None:
        return {
            "window_seconds": default if window is None else window,
            "buckets": buckets,
            "tables": 1 if tables is None else tables,
        }
    routed = [table for table in pipeline.tables if table.route is not None]
    return {
        "window_seconds": pipeline.identity.window if window is None else window,
        "buckets": pipeline.identity.buckets if buckets is None else buckets,
        # Tables with a route share the events; which of them takes how many is not known here.
        "tables": len(pipeline.tables) - len(routed) + bool(routed) if tables is None else tables,
        "epoch": pipeline.epoch,
        "batch": pipeline.batch,
    }
