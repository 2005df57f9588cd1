"""The read model of everything that oncehouse runs: pipelines, etl, outbox, inboxes, consumers and syncs.

The dashboard and the metrics read it. Ledgers stay open between reads; servers that may be slow are asked by a
background probe (`background_probe.py`). Methods raise OncehouseError, or return NoAnswer if a server is unavailable.
Nothing is changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from oncehouse.config.file_loader import load_pipeline
from oncehouse.errors import ConfigurationError
from oncehouse.ledger.open import KeptLedger, open_ledger
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.monitoring import batches, overview, pipelines
from oncehouse.monitoring.background_probe import BackgroundProbe
from oncehouse.monitoring.dead_letters import DeadLetterPage, declared_fields, list_dead_letters
from oncehouse.monitoring.etl import EtlView
from oncehouse.monitoring.kafka import EndOffsetReader, GroupReader
from oncehouse.monitoring.unavailable import NoAnswer
from oncehouse.pipeline.dead_letters.filter import Selection
from oncehouse.pipeline.maintenance.verify_report import VerifyReport

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline
    from oncehouse.etl.open import Etl
    from oncehouse.ledger.catalog.database import Catalog
    from oncehouse.ledger.models import BatchStatus
    from oncehouse.messaging.consumer.group_lag import GroupStatus
    from oncehouse.messaging.consumer.health import Health
    from oncehouse.messaging.inbox.admin import ConsumerStatus, InboxStatus
    from oncehouse.messaging.inbox.open import InboxDatabase
    from oncehouse.messaging.outbox.open import OpenedOutbox
    from oncehouse.messaging.outbox.status import OutboxStatus
    from oncehouse.monitoring.batches import BatchDetail, BatchPage
    from oncehouse.monitoring.overview import LeaseView
    from oncehouse.monitoring.pipelines import EpochDetail, EpochPage, IndexAge, PipelineActivity
    from oncehouse.sync.status import SyncStatus

__all__ = ["EtlView", "HealthView", "Inboxes", "Monitor", "MonitorTargets", "VerifyReport"]

KAFKA_SECONDS = 5.0
SERVER_SECONDS = 2.0
"""How old an answer of ClickHouse or of a sync's database may be."""
HEALTH_SECONDS = 60.0
"""If a health file is older, its consumer has stopped or is stuck."""


@dataclass(frozen=True, kw_only=True)
class MonitorTargets:
    """The files, consumer groups and modules to monitor."""

    pipelines: tuple[Path, ...] = ()
    etl: Path | None = None
    messaging: Path | None = None
    groups: tuple[str, ...] = ()
    """Consumer groups, in the Kafka of the messaging file."""
    health_files: tuple[Path, ...] = ()
    modules: tuple[str, ...] = ()
    """Modules that declare syncs."""


@dataclass(frozen=True, kw_only=True)
class Inboxes:
    inboxes: tuple[InboxStatus, ...]
    consumers: tuple[ConsumerStatus, ...]
    """The ids that `once` keeps, by consumer."""


@dataclass(frozen=True, kw_only=True)
class HealthView:
    file: str
    health: Health | NoAnswer


class Monitor:
    def __init__(self, targets: MonitorTargets, *, wait_seconds: float = 1.0) -> None:
        """Reads the files, so that an invalid file is reported at once; connects to no server yet.

        `wait_seconds`: how long to wait for the first answer of a server.
        """
        self.targets = targets
        self.pipelines = _load_pipelines(targets.pipelines)
        _read_other_files(targets)
        self._wait_seconds = wait_seconds
        self._ledgers = {name: KeptLedger(pipeline) for name, pipeline in self.pipelines.items()}
        self._ends = {
            name: BackgroundProbe(EndOffsetReader(pipeline.source.kafka), refresh_seconds=KAFKA_SECONDS)
            for name, pipeline in self.pipelines.items()
            if pipeline.source.kafka is not None
        }
        self._etl = BackgroundProbe(self._read_etl, refresh_seconds=SERVER_SECONDS)
        self._groups = BackgroundProbe(self._read_groups, refresh_seconds=KAFKA_SECONDS)
        self._group_reader: GroupReader | None = None
        self._syncs = BackgroundProbe(self._read_syncs, refresh_seconds=SERVER_SECONDS)

    # Pipelines.

    def activity(self, name: str) -> PipelineActivity:
        pipeline = self.pipeline(name)
        answer = self._ends[name].read(wait_seconds=self._wait_seconds) if name in self._ends else None
        known = None if answer is None or isinstance(answer, NoAnswer) else answer
        with self.open(name) as catalog:
            return pipelines.read_activity(
                pipeline,
                catalog,
                end_offsets=known,
                lag_trouble=answer.why if isinstance(answer, NoAnswer) else None,
            )

    def epochs(self, name: str, *, before: int | None = None, limit: int = 50) -> EpochPage:
        with self.open(name) as catalog:
            return pipelines.list_epoch_page(catalog, before=before, limit=limit)

    def epoch(self, name: str, epoch: int) -> EpochDetail:
        with self.open(name) as catalog:
            return pipelines.read_epoch(catalog, epoch)

    def batches(
        self,
        name: str,
        *,
        status: BatchStatus | None = None,
        table: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> BatchPage:
        with self.open(name) as catalog:
            return batches.list_batch_page(catalog, status=status, table=table, after=after, limit=limit)

    def batch(self, name: str, batch_id: str) -> BatchDetail:
        with self.open(name) as catalog:
            return batches.read_batch(catalog, batch_id)

    def index_ages(self, name: str) -> tuple[IndexAge, ...]:
        with self.open(name) as catalog:
            return pipelines.read_index_ages(catalog)

    def dead_letters(
        self, name: str, *, reason: str | None = None, after: str | None = None, limit: int = 50
    ) -> DeadLetterPage:
        pipeline = self.pipeline(name)
        with self.open(name) as catalog:
            return list_dead_letters(
                catalog,
                FileStore(pipeline.ledger.files),
                selection=Selection(reason=reason),
                limit=limit,
                after=after,
                fields=declared_fields(pipeline),
            )

    def leases(self, name: str) -> tuple[LeaseView, ...]:
        with self.open(name) as catalog:
            return overview.list_lease_views(catalog)

    def verify(self, name: str, *, files: bool = False, ledger_only: bool = False) -> VerifyReport:
        """Takes as long as `oncehouse verify` does, which it is."""
        from oncehouse.clickhouse.client import connect
        from oncehouse.pipeline.maintenance.verify import verify

        pipeline = self.pipeline(name)
        client = None if ledger_only else connect(pipeline.clickhouse)
        # A connection of its own: its queries may take longer than those of the shared one should.
        with open_ledger(pipeline) as catalog:
            return verify(pipeline, catalog, FileStore(pipeline.ledger.files), client, files=files)

    def pipeline(self, name: str) -> Pipeline:
        if name not in self.pipelines:
            known = ", ".join(self.pipelines) or "none"
            raise ConfigurationError(f"Unknown pipeline {name!a}; known pipelines: {known}")
        return self.pipelines[name]

    @contextmanager
    def open(self, name: str) -> Iterator[Catalog]:
        """The catalog, which stays open for later reads."""
        self.pipeline(name)
        yield self._ledgers[name].open()

    def close(self) -> None:
        for ledger in self._ledgers.values():
            ledger.close()

    # The scheduler.

    def etl(self) -> EtlView | NoAnswer:
        return self._etl.read(wait_seconds=self._wait_seconds)

    @contextmanager
    def open_etl(self) -> Iterator[Etl]:
        from oncehouse.etl.open import open_etl

        with open_etl(_named(self.targets.etl, "--etl")) as etl:
            yield etl

    def require_topic(self, name: str) -> None:
        """Raises ConfigurationError where the lineage has no such topic."""
        from oncehouse.etl.open import find_topic

        with self.open_etl() as etl:
            find_topic(etl, name)

    def forget_etl(self) -> None:
        """After an action of a user: the next read waits for a new answer."""
        self._etl.forget()

    def _read_etl(self) -> EtlView:
        from oncehouse.etl.status import read_status

        with self.open_etl() as etl:
            return EtlView(lineage=etl.lineage, topics=tuple(read_status(etl)))

    # Messaging.

    def outbox(self) -> OutboxStatus:
        with self.open_outbox() as outbox:
            return outbox.status()

    @contextmanager
    def open_outbox(self) -> Iterator[OpenedOutbox]:
        from oncehouse.common.database import LOOKING
        from oncehouse.messaging.outbox.open import open_outbox
        from oncehouse.messaging.settings import load_messaging

        settings = load_messaging(_named(self.targets.messaging, "--messaging"))
        database, table = settings.require_database(), settings.outbox.table
        with open_outbox(database, table, patience=LOOKING) as outbox:
            yield outbox

    def inboxes(self) -> Inboxes:
        from oncehouse.messaging.inbox.admin import read_consumers, read_inboxes

        with self.open_inboxes() as opened, opened.transact("reading its status") as connection:
            return Inboxes(
                inboxes=tuple(read_inboxes(connection)), consumers=tuple(read_consumers(connection))
            )

    @contextmanager
    def open_inboxes(self) -> Iterator[InboxDatabase]:
        from oncehouse.common.database import LOOKING
        from oncehouse.messaging.inbox.open import open_inbox_database
        from oncehouse.messaging.settings import load_messaging

        settings = load_messaging(_named(self.targets.messaging, "--messaging"))
        database = settings.require_database()
        with open_inbox_database(database, settings.inbox, patience=LOOKING) as opened:
            yield opened

    def groups(self) -> tuple[GroupStatus, ...] | NoAnswer:
        if not self.targets.groups:
            return ()
        return self._groups.read(wait_seconds=self._wait_seconds)

    def _read_groups(self) -> tuple[GroupStatus, ...]:
        from oncehouse.messaging.settings import load_messaging

        if self._group_reader is None:
            kafka = load_messaging(_named(self.targets.messaging, "--messaging")).require_kafka()
            self._group_reader = GroupReader(self.targets.groups, kafka)
        return self._group_reader()

    def health(self) -> tuple[HealthView, ...]:
        from oncehouse.messaging.consumer.health import read_health
        from oncehouse.monitoring.unavailable import ask

        now = time.time()
        return tuple(
            HealthView(
                file=str(file),
                health=ask(partial(read_health, file, max_age_seconds=HEALTH_SECONDS, now=now)),
            )
            for file in self.targets.health_files
        )

    # Model sync.

    def syncs(self) -> tuple[SyncStatus, ...] | NoAnswer:
        return self._syncs.read(wait_seconds=self._wait_seconds)

    def _read_syncs(self) -> tuple[SyncStatus, ...]:
        from oncehouse.sync.discovery import find_syncs
        from oncehouse.sync.status import read_status

        return tuple(read_status(find_syncs(self.targets.modules)))


def _load_pipelines(files: Iterable[Path]) -> dict[str, Pipeline]:
    found: dict[str, Pipeline] = {}
    for file in files:
        pipeline = load_pipeline(file)
        if pipeline.pipeline in found:
            raise ConfigurationError(f"{file}: another file already defines a pipeline {pipeline.pipeline!r}")
        found[pipeline.pipeline] = pipeline
    return found


def _read_other_files(targets: MonitorTargets) -> None:
    from oncehouse.etl.settings import load_settings
    from oncehouse.messaging.settings import load_messaging

    if targets.etl is not None:
        load_settings(targets.etl)
    if targets.messaging is not None:
        load_messaging(targets.messaging)


def _named(file: Path | None, option: str) -> Path:
    if file is None:
        raise ConfigurationError(f"no file is given; name one with {option}")
    return file
