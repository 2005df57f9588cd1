"""Plans a repair: finds damage and says what can be done about it; applies the plan when asked.

Planning changes nothing and may run while the pipeline runs. Repairing takes the leases of all stages, so that no
other process decides meanwhile, and goes from the catalog to raw bytes, ids, duplicates, parts, dead letters and the
key index: each needs those before it. Every step is a transaction of its own, so an end in the middle leaves less
damage and never more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from oncehouse.clickhouse.client import Client, connect
from oncehouse.errors import (
    ConfigurationError,
    FencedError,
    OncehouseError,
    PermanentError,
    TransientError,
)
from oncehouse.ledger.catalog import epochs, leases
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.requests import list_requests
from oncehouse.ledger.lease_holder import describe_holder
from oncehouse.ledger.marks import read_marks
from oncehouse.ledger.models import Lease, RequestKind, Stage
from oncehouse.ledger.stats.ledger_state import read_state
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.ledger.take_lease import take_lease
from oncehouse.pipeline.checks.preflight import open_catalog
from oncehouse.pipeline.checks.stale_catalog import describe_age
from oncehouse.pipeline.checks.startup import ignore
from oncehouse.pipeline.ingest.kafka_source import KafkaTopics
from oncehouse.pipeline.maintenance.verify_files import NamedFile, check_files, list_files
from oncehouse.pipeline.repair.catalog_restore import (
    CatalogRepair,
    catch_up,
    plan_lost,
    plan_older,
    restore_lost,
)
from oncehouse.pipeline.repair.file_restorer import Done, Restorer
from oncehouse.pipeline.repair.kafka_availability import KafkaFacts
from oncehouse.pipeline.repair.repair_plan import FileKind, Repair, plan_repairs
from oncehouse.pipeline.repair.sqlite_catalog_file import inspect_catalog_file
from oncehouse.pipeline.repair.table_diff import read_gaps, require_quiet
from oncehouse.pipeline.schema.identity_guard import check_rule

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline


@dataclass(frozen=True, kw_only=True)
class RepairPlan:
    catalog: CatalogRepair | None
    """None: the catalog is as it should be."""
    files: tuple[Repair, ...]
    """Empty also where the catalog has to be brought back first."""
    files_checked: int | None
    """None: the files were not looked at, because the catalog does not say which there are."""

    @property
    def is_clean(self) -> bool:
        return self.catalog is None and not self.files


@dataclass(frozen=True, kw_only=True)
class Refusal:
    repairs: tuple[Repair, ...]
    reason: str


@dataclass(frozen=True, kw_only=True)
class RepairResult:
    catalog: CatalogRepair | None
    put_aside: Path | None
    done: tuple[Done, ...]
    refused: tuple[Refusal, ...]


def plan_repair(
    pipeline: Pipeline, say: Callable[[str], None] = ignore, *, user_rewrites: bool = False
) -> RepairPlan:
    """Inspect everything; nothing is changed. `user_rewrites`: the user will write rows again that are not in Kafka."""
    if (found := _find_problem(pipeline, say)) is not None:
        planned = _plan_catalog(pipeline, found, say, user_rewrites=user_rewrites)
        return RepairPlan(catalog=planned, files=(), files_checked=None)
    catalog = open_catalog(pipeline, report=say)
    try:
        repairs, checked = _plan_files(pipeline, catalog)
        return RepairPlan(catalog=None, files=repairs, files_checked=checked)
    finally:
        catalog.close()


def apply_repair(
    pipeline: Pipeline, say: Callable[[str], None], *, user_rewrites: bool = False
) -> RepairResult:
    """Do what the plan says; raises LeaseHeldError while a pipeline runs."""
    planned, damaged_file = None, None
    if (found := _find_problem(pipeline, say)) is not None:
        say(f"the catalog: {found.problem}")
        planned, damaged_file = _bring_back(pipeline, found, say, user_rewrites=user_rewrites)
        if planned.refused:
            return RepairResult(catalog=planned, put_aside=None, done=(), refused=())
    catalog = open_catalog(pipeline, report=say)
    try:
        with _all_leases(pipeline, catalog) as held:
            check_rule(pipeline, catalog)
            done, refused = _restore_files(pipeline, catalog, held[Stage.INGEST].token, say)
    finally:
        catalog.close()
    return RepairResult(catalog=planned, put_aside=damaged_file, done=tuple(done), refused=tuple(refused))


# -- the catalog --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Problem:
    problem: str
    is_lost: bool
    """Nothing of it can be used; otherwise it is sound, but older than the tables."""


def _find_problem(pipeline: Pipeline, say: Callable[[str], None]) -> _Problem | None:
    client = connect(pipeline.clickhouse)
    if (problem := inspect_catalog_file(pipeline)) is not None:
        with _needing_servers(pipeline, problem):
            _require_ledger(pipeline, client, problem)
        return _Problem(problem=problem, is_lost=True)
    catalog = open_catalog(pipeline, report=say)
    try:
        store = FileStore(pipeline.ledger.files)
        age = describe_age(catalog, store) or _describe_excess(client, pipeline, catalog)
        if age is not None:
            catalog.require_primary()
    finally:
        catalog.close()
    if age is not None:
        return _Problem(problem=f"it is older than the tables: {age}", is_lost=False)
    for mark in read_marks(store, pipeline.pipeline).damaged:
        text = f"it may be older than the tables: {mark.path}, which would say so, is damaged ({mark.damage})"
        return _Problem(problem=text, is_lost=False)
    return None


@contextmanager
def _needing_servers(pipeline: Pipeline, problem: str) -> Iterator[None]:
    """Say what is wrong with the catalog also when it is not known yet what can be done about it."""
    try:
        yield
    except TransientError as error:
        raise TransientError(
            f"Pipeline {pipeline.pipeline}: the catalog has to be brought back ({problem}), which needs ClickHouse and "
            f"Kafka: {error} Nothing was changed."
        ) from error


def _plan_catalog(
    pipeline: Pipeline, found: _Problem, say: Callable[[str], None], *, user_rewrites: bool
) -> CatalogRepair:
    client, ask = connect(pipeline.clickhouse), partial(_ask_kafka, pipeline)
    with _needing_servers(pipeline, found.problem):
        if found.is_lost:
            return plan_lost(pipeline, client, found.problem, ask, user_rewrites=user_rewrites)
        catalog = open_catalog(pipeline, report=say)
        try:
            return plan_older(pipeline, client, catalog, found.problem, ask, user_rewrites=user_rewrites)
        finally:
            catalog.close()


def _bring_back(
    pipeline: Pipeline, found: _Problem, say: Callable[[str], None], *, user_rewrites: bool
) -> tuple[CatalogRepair, Path | None]:
    """Planned once more, because the leases are held only now; a plan that is refused is returned without effect."""
    client = connect(pipeline.clickhouse)
    if found.is_lost:
        require_quiet(client, pipeline)
        planned = _plan_catalog(pipeline, found, say, user_rewrites=user_rewrites)
        return planned, None if planned.refused else restore_lost(pipeline, client, planned, say)
    catalog = open_catalog(pipeline, report=say)
    try:
        with _all_leases(pipeline, catalog, may_be_behind=True) as held:
            require_quiet(client, pipeline)
            planned = _plan_catalog(pipeline, found, say, user_rewrites=user_rewrites)
            if not planned.refused:
                catch_up(pipeline, client, catalog, held[Stage.INGEST].token, planned)
    finally:
        catalog.close()
    return planned, None


def _require_ledger(pipeline: Pipeline, client: Client, problem: str) -> None:
    """A pipeline that has never run has nothing to be repaired."""
    catalog = Catalog("sqlite://", pipeline.pipeline)
    try:
        catalog.prepare()
        files = describe_age(catalog, FileStore(pipeline.ledger.files))
        if files is None and not any(gap.unknown for gap in read_gaps(client, pipeline, catalog)):
            raise ConfigurationError(
                f"Pipeline {pipeline.pipeline} has no ledger: {problem}, there are no files of it, and its tables hold "
                "no batch. `oncehouse run` makes one."
            )
    finally:
        catalog.close()


def _describe_excess(client: Client, pipeline: Pipeline, catalog: Catalog) -> str | None:
    try:
        found = [gap for gap in read_gaps(client, pipeline, catalog) if gap.excess]
    except TransientError:
        return None  # ClickHouse is away; files can be made again without it
    if not found:
        return None
    return ", ".join(
        f"{gap.table.name} holds {gap.excess} rows of batches that it does not know" for gap in found
    )


def _ask_kafka(pipeline: Pipeline, known_ids: dict[str, str]) -> KafkaFacts:
    if pipeline.source.kafka is None:
        return KafkaFacts()
    topics = KafkaTopics(pipeline.source.kafka)
    found = topics.describe()
    places = [(topic, number) for topic, facts in found.items() for number in range(facts.partitions)]
    unfit = {topic: f"topic {topic} is not in the pipeline file any more" for topic in known_ids}
    for topic, facts in found.items():
        unfit.pop(topic, None)
        if known_ids.get(topic, facts.topic_id) != facts.topic_id:
            unfit[topic] = f"topic {topic} was deleted and created again, so its offsets mean something else"
    return KafkaFacts(earliest=topics.earliest(places), latest=topics.latest(places), unfit=unfit)


# -- files --------------------------------------------------------------------------------------------------


def _plan_files(pipeline: Pipeline, catalog: Catalog) -> tuple[tuple[Repair, ...], int]:
    state = read_state(catalog)
    # By path: several files may belong to one epoch.
    named = tuple(NamedFile(where=found.file.path, file=found.file) for found in list_files(state))
    wanting = check_files(FileStore(pipeline.ledger.files), named, every_byte=True)
    damaged = {finding.where: finding.message for finding in wanting}
    if not damaged:
        return (), len(named)
    facts = _ask_kafka(pipeline, epochs.read_topic_ids(catalog))
    rekeyed = [r.done_at for r in list_requests(catalog) if r.kind is RequestKind.REKEY and not r.is_refused]
    repairs = plan_repairs(
        state, damaged, facts, rekeyed_at=max((at for at in rekeyed if at is not None), default=None)
    )
    return repairs, len(named)


def _restore_files(
    pipeline: Pipeline, catalog: Catalog, token: int, say: Callable[[str], None]
) -> tuple[list[Done], list[Refusal]]:
    done: list[Done] = []
    refused: list[Refusal] = []
    repairs, _ = _plan_files(pipeline, catalog)
    for kind in FileKind:
        for group in _groups([repair for repair in repairs if repair.kind is kind]):
            text = f"{group[0].kind} {group[0].name}" + (f" and {len(group) - 1} more" if group[1:] else "")
            try:
                # What was restored before is in the catalog by now, so each group reads it again.
                done.append(_restore(pipeline, catalog, token, group))
                say(f"made again: {text}")
            except FencedError:
                raise
            except OncehouseError as error:
                refused.append(Refusal(repairs=group, reason=str(error)))
                say(f"not made again: {text}: {error}")
    return done, refused


def _restore(pipeline: Pipeline, catalog: Catalog, token: int, group: tuple[Repair, ...]) -> Done:
    first = group[0]
    if first.source is None:
        raise PermanentError(f"{first.why}; {first.lost}")
    return Restorer(pipeline, catalog, token).restore(group)


def _groups(repairs: Sequence[Repair]) -> Iterator[tuple[Repair, ...]]:
    """What is made again together: files of one kind and epoch that have the same fate."""

    def fate(repair: Repair) -> tuple[int, str]:
        return repair.epoch, repair.why or ""

    for _, group in groupby(sorted(repairs, key=fate), key=fate):
        yield tuple(group)


@contextmanager
def _all_leases(
    pipeline: Pipeline, catalog: Catalog, *, may_be_behind: bool = False
) -> Iterator[dict[Stage, Lease]]:
    holder = describe_holder()
    held: list[Lease] = []
    lost: list[Exception] = []
    try:
        for stage in Stage:
            held += [take_lease(pipeline, catalog, stage, holder, may_be_behind=may_be_behind)]
        heartbeat = leases.Heartbeat(catalog, tuple(held), lease_seconds=pipeline.lease, on_lost=lost.append)
        try:
            yield {lease.stage: lease for lease in held}
        finally:
            heartbeat.stop()
    finally:
        for lease in held:
            leases.release(catalog, lease)
