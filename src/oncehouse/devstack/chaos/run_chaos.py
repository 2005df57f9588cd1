"""`oncehouse chaos` from its pipeline file to its report: events, a private stack, a calm run, and the scenarios.

The stack lives in a temporary folder and is taken down however it ends. When something did not hold, the folders of the
runs (file, ledger, what processes said) are kept for those who want to look.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oncehouse.devstack.chaos.event_factory import EventMaker, event_maker
from oncehouse.devstack.chaos.load_plan import Traffic, plan_sample, plan_traffic, read_sample
from oncehouse.devstack.chaos.oracle import Reference, evaluate, evaluate_calm_run, take_reference
from oncehouse.devstack.chaos.pipeline_rewrite import RunPlace, load_there
from oncehouse.devstack.chaos.scenario_run import ChaosEnvironment, NoFaultError, NotHeldError, ScenarioRun
from oncehouse.devstack.chaos.scenarios import SCENARIOS, Scenario
from oncehouse.devstack.chaos.validate_events import empty_tables, find_poison, require_valid
from oncehouse.devstack.jars import connector_jars
from oncehouse.devstack.proxies.fault_proxy import FaultProxy
from oncehouse.devstack.stack import Stack
from oncehouse.errors import ConfigurationError, OncehouseError, PermanentError

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline

_LEAST_EVENTS = 200
_MOST_EVENTS = 200_000
_TRIED_EVENTS = 2000
# Of so many records one is a different event; the rest are repeats.
_RECORDS_AN_EVENT = 1.45

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ScenarioResult:
    scenario: str
    faults_row: int
    held: bool
    seed: int
    seconds: float
    differences: tuple[str, ...] = ()
    """What did not hold."""
    defect: str = ""
    """What was put in on purpose."""
    defect_caught: bool | None = None
    """None where it was not asked for."""
    defect_alone: tuple[str, ...] = ()
    """What the defect does even where nothing happens: then nothing is shown when it is caught."""
    folder: Path | None = None
    """Where the run lies that did not hold."""


@dataclass(frozen=True, kw_only=True)
class ChaosReport:
    pipeline: str
    seed: int
    records: int
    rows: int
    """In all tables, after every run."""
    results: tuple[ScenarioResult, ...]
    notes: tuple[str, ...] = ()

    @property
    def went_well(self) -> bool:
        return all(result.held and result.defect_caught is not False for result in self.results)


@dataclass(frozen=True, kw_only=True)
class ChaosPlan:
    """All that can be wrong before a server is started."""

    file: Path
    traffic: Traffic
    poison: int
    maker: EventMaker | None
    keep_registry: bool
    seed: int
    notes: tuple[str, ...]


def choose(names: Sequence[str]) -> tuple[Scenario, ...]:
    """The named scenarios, in the order of the list; all when none is named."""
    known = {scenario.name: scenario for scenario in SCENARIOS}
    for name in names:
        if name not in known:
            raise ConfigurationError(
                f"There is no scenario {name!r}; `oncehouse chaos --list` shows those there are"
            )
    return tuple(scenario for scenario in SCENARIOS if not names or scenario.name in names)


def make_plan(file: Path, *, events: int, seed: int, sample: Path | None) -> ChaosPlan:
    """What will be sent; refuses files and samples for which nothing can be."""
    if not _LEAST_EVENTS <= events <= _MOST_EVENTS:
        raise ConfigurationError(f"--events is {events}; choose {_LEAST_EVENTS} to {_MOST_EVENTS}")
    place = RunPlace(folder=Path(tempfile.gettempdir()))
    pipeline = load_there(file, place, keep_registry=sample is not None)
    if sample is not None:
        return _plan_sample(file, pipeline, sample, events=events, seed=seed)
    return _plan_events(file, pipeline, events=events, seed=seed)


def _plan_events(file: Path, pipeline: Pipeline, *, events: int, seed: int) -> ChaosPlan:
    maker = event_maker(pipeline, wanted=int(events / _RECORDS_AN_EVENT), seed=seed)
    records = [maker.record([number]) for number in range(min(maker.events, _TRIED_EVENTS))]
    require_valid(pipeline, records, made=True)
    poison = find_poison(pipeline, maker.writer.headers)
    traffic = plan_traffic(
        maker.record,
        unique=maker.events,
        several=maker.writer.several,
        topics=len(pipeline.source.topics),
        poison=poison,
        seed=seed,
        poison_headers=maker.writer.headers,
    )
    notes = [
        f"no event made up goes to the table {table.partition('.')[2]}: its route or `shape` asks for values that "
        "were not guessed; a sample of your own (--records) may have them"
        for table in empty_tables(pipeline, records)
    ]
    return ChaosPlan(
        file=file,
        traffic=traffic,
        poison=_count_poison(traffic, poison),
        maker=maker,
        keep_registry=False,
        seed=seed,
        notes=(*notes, *_describe_poison(poison)),
    )


def _plan_sample(file: Path, pipeline: Pipeline, sample: Path, *, events: int, seed: int) -> ChaosPlan:
    records = read_sample(sample, pipeline, most=int(events / _RECORDS_AN_EVENT))
    require_valid(pipeline, records, made=False)
    poison = find_poison(pipeline, records[0].headers)
    traffic = plan_sample(records, poison=poison, seed=seed, least=events)
    return ChaosPlan(
        file=file,
        traffic=traffic,
        poison=_count_poison(traffic, poison),
        maker=None,
        keep_registry=True,
        seed=seed,
        notes=_describe_poison(poison),
    )


def _count_poison(traffic: Traffic, poison: Sequence[bytes]) -> int:
    return sum(sent.record.value in poison for wave in traffic.waves for sent in wave)


def _describe_poison(poison: Sequence[bytes]) -> tuple[str, ...]:
    return () if poison else ("the pipeline takes any bytes for an event, so that no poison is sent",)


def play_all(
    plan: ChaosPlan,
    scenarios: Sequence[Scenario],
    *,
    with_defects: bool,
    say: Say,
    on_result: Callable[[ScenarioResult], None],
) -> ChaosReport:
    """Everything on a private stack, which is taken down at the end."""
    folder = Path(tempfile.mkdtemp(prefix="oncehouse-chaos-"))
    kept: list[Path] = []
    with ExitStack() as at_end:
        at_end.callback(_clear, folder, kept)
        stack = Stack(folder=folder / "stack")
        at_end.callback(stack.discard)
        say("starting a private Kafka and ClickHouse; yours are not touched")
        stack.up(say=say)
        proxy = at_end.enter_context(FaultProxy(server_port=stack.clickhouse.place.ports["http"]))
        environment = ChaosEnvironment(
            file=plan.file,
            folder=folder,
            stack=stack,
            proxy=proxy,
            traffic=plan.traffic,
            jars=connector_jars(say),
            keep_registry=plan.keep_registry,
            seed=plan.seed,
        )
        environment.scratch.mkdir()
        say(f"a calm run of {plan.traffic.records} records, which all others are held to")
        name, reference = _play_calm(environment, plan)
        results = []
        defects: dict[str, list[str]] = {}
        if with_defects:
            names = sorted({scenario.defect for scenario in scenarios})
            say(f"calm runs with {len(names)} defects, none of which may show without a fault")
            defects = {
                name: play_calm_defect(environment, name, reference, number=2 * len(scenarios) + at + 1)
                for at, name in enumerate(names)
            }
        for number, scenario in enumerate(scenarios):
            say(f"{number + 1} of {len(scenarios)}: {scenario.name}")
            result = _play(environment, scenario, reference, number=2 * number + 1, defects=defects)
            results.append(result)
            kept += [result.folder] if result.folder else []
            on_result(result)
        return ChaosReport(
            pipeline=name,
            seed=plan.seed,
            records=plan.traffic.records,
            rows=reference.rows,
            results=tuple(results),
            notes=plan.notes,
        )


def _clear(folder: Path, kept: Sequence[Path]) -> None:
    if not kept:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for inside in folder.iterdir():
        if inside not in kept:
            shutil.rmtree(inside, ignore_errors=True)


def _play_calm(environment: ChaosEnvironment, plan: ChaosPlan) -> tuple[str, Reference]:
    run = ScenarioRun(environment, 0)
    try:
        run.send(len(plan.traffic.waves))
        run.drain()
        differences = evaluate_calm_run(
            run, identities=plan.traffic.identities, poison=plan.poison, maker=plan.maker
        )
        if differences:
            lines = "\n  ".join(differences)
            raise PermanentError(f"Even without any fault the run did not come to what was sent:\n  {lines}")
        return run.pipeline.pipeline, take_reference(run)
    except NotHeldError as error:
        raise PermanentError(f"Even without any fault: {error}") from error
    finally:
        run.close()


def play_calm_defect(
    environment: ChaosEnvironment, defect: str, reference: Reference, *, number: int
) -> list[str]:
    """What a defect does where nothing happens."""
    calm = Scenario(name="calm", row=0, what="", defect=defect, run=_send_and_drain)
    found, _ = _act(ScenarioRun(environment, number, defect=defect), calm, reference)
    return found


def _send_and_drain(run: ScenarioRun) -> None:
    run.send(len(run.environment.traffic.waves))
    run.drain()


def _play(
    environment: ChaosEnvironment,
    scenario: Scenario,
    reference: Reference,
    *,
    number: int,
    defects: Mapping[str, Sequence[str]],
) -> ScenarioResult:
    """`defects`: what each does where nothing happens; without any the scenario is played as it is alone."""
    started = time.monotonic()
    run = ScenarioRun(environment, number, clickhouse=dict(scenario.clickhouse))
    differences, _ = _act(run, scenario, reference)
    caught, alone = None, defects.get(scenario.defect, ())
    if defects:
        worse = ScenarioRun(
            environment, number + 1, defect=scenario.defect, clickhouse=dict(scenario.clickhouse)
        )
        found, happened = _act(worse, scenario, reference)
        caught = bool(found) and happened and not alone
    return ScenarioResult(
        scenario=scenario.name,
        faults_row=scenario.row,
        held=not differences,
        seed=environment.seed,
        seconds=round(time.monotonic() - started, 1),
        differences=tuple(differences),
        defect=scenario.defect,
        defect_caught=caught,
        defect_alone=tuple(alone),
        folder=run.folder if differences else None,
    )


def _act(run: ScenarioRun, scenario: Scenario, reference: Reference) -> tuple[list[str], bool]:
    """What did not hold, and whether the fault happened at all."""
    try:
        scenario.run(run)
        return evaluate(run, reference), True
    except NotHeldError as error:
        # What is in the tables says more than that the pipeline did not end well.
        return [str(error), *evaluate(run, reference)], True
    except NoFaultError as error:
        return [f"the fault did not happen: {error}"], False
    except OncehouseError as error:
        return [f"the run broke off: {error}"], False
    finally:
        run.environment.proxy.take_back()
        run.close()
