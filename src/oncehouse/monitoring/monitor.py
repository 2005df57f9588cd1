"""Everything that is looked at, in one place: pipelines, the scheduler, messaging, consumers and syncs.

Part of the read model (`insights.py`), and what dashboard and metrics stand on. Ledgers stay open
from look to look; servers that may be slow are asked beside the looker (`insights_hearing.py`). Methods raise
OncehouseError, or answer NoAnswer where somebody is asked who may be away. Nothing is changed anywhere.
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
from oncehouse.monitoring import overview
from oncehouse.monitoring import pipelines as insights_road
from oncehouse.monitoring.background_probe import Hearing
from oncehouse.monitoring.dead_letters import LetterPage, declared_fields, list_dead_letters
from oncehouse.monitoring.etl import EtlView
from oncehouse.monitoring.kafka import EndQuestion, GroupQuestion
from oncehouse.monitoring.message_trace import NoAnswer
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
    from oncehouse.monitoring.overview import BatchDetail, LeaseView
    from oncehouse.monitoring.pipelines import BatchPage, EpochDetail, EpochPage, IndexAge, Road
    from oncehouse.sync.status import SyncStatus

__all__ = ["EtlView", "HealthView", "Inboxes", "Lookout", "VerifyReport", "Watched"]

KAFKA_SECONDS = 5.0
SERVER_SECONDS = 2.0
"""How old an answer of ClickHouse or of a sync's database may be."""
HEALTH_SECONDS = 60.0
"""A health file that is older tells of a consumer that is gone or stuck."""


@dataclass(frozen=True, kw_only=True)
class Watched:
    """Which files and names are looked at."""

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
    """What `once` remembers."""


@dataclass(frozen=True, kw_only=True)
class HealthView:
    file: str
    health: Health | NoAnswer


class Lookout:
    def __init__(self, watched: Watched, *, wait_seconds: float = 1.0) -> None:
        """Reads the files, so that a wrong one is told at once; asks nobody yet.

        `wait_seconds`: how long a first answer is waited for.
        """
        self.watched = watched
        self.pipelines = _load_pipelines(watched.pipelines)
        _read_other_files(watched)
        self._wait_seconds = wait_seconds
        self._ledgers = {name: KeptLedger(pipeline) for name, pipeline in self.pipelines.items()}
        self._ends = {
            name: Hearing(EndQuestion(pipeline.source.kafka), every_seconds=KAFKA_SECONDS)
            for name, pipeline in self.pipelines.items()
            if pipeline.source.kafka is not None
        }
        self._etl = Hearing(self._read_etl, every_seconds=SERVER_SECONDS)
        self._groups = Hearing(self._read_groups, every_seconds=KAFKA_SECONDS)
        self._group_question: GroupQuestion | None = None
        self._syncs = Hearing(self._read_syncs, every_seconds=SERVER_SECONDS)

    # Pipelines.

    def road(self, name: str) -> Road:
        pipeline = self.pipeline(name)
        heard = self._ends[name].hear(wait_seconds=self._wait_seconds) if name in self._ends else None
        known = None if heard is None or isinstance(heard, NoAnswer) else heard
        with self.open(name) as catalog:
            return insights_road.read_road(
                pipeline,
                catalog,
                end_offsets=known,
                lag_trouble=heard.why if isinstance(heard, NoAnswer) else None,
            )

    def epochs(self, name: str, *, before: int | None = None, limit: int = 50) -> EpochPage:
        with self.open(name) as catalog:
            return insights_road.list_epoch_page(catalog, before=before, limit=limit)

    def epoch(self, name: str, epoch: int) -> EpochDetail:
        with self.open(name) as catalog:
            return insights_road.read_epoch(catalog, epoch)

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
            return insights_road.list_batch_page(
                catalog, status=status, table=table, after=after, limit=limit
            )

    def batch(self, name: str, batch_id: str) -> BatchDetail:
        with self.open(name) as catalog:
            return overview.read_batch(catalog, batch_id)

    def index_ages(self, name: str) -> tuple[IndexAge, ...]:
        with self.open(name) as catalog:
            return insights_road.read_index_ages(catalog)

    def letters(
        self, name: str, *, reason: str | None = None, after: str | None = None, limit: int = 50
    ) -> LetterPage:
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
        # Not the one that lookers share: what it asks may take longer than anybody looks.
        with open_ledger(pipeline) as catalog:
            return verify(pipeline, catalog, FileStore(pipeline.ledger.files), client, files=files)

    def pipeline(self, name: str) -> Pipeline:
        if name not in self.pipelines:
            known = ", ".join(self.pipelines) or "none"
            raise ConfigurationError(f"There is no pipeline {name!a} here; there are: {known}")
        return self.pipelines[name]

    @contextmanager
    def open(self, name: str) -> Iterator[Catalog]:
        """The catalog, which stays open for the next look."""
        self.pipeline(name)
        yield self._ledgers[name].open()

    def close(self) -> None:
        for ledger in self._ledgers.values():
            ledger.close()

    # The scheduler.

    def etl(self) -> EtlView | NoAnswer:
        return self._etl.hear(wait_seconds=self._wait_seconds)

    @contextmanager
    def open_etl(self) -> Iterator[Etl]:
        from oncehouse.etl.open import open_etl

        with open_etl(_named(self.watched.etl, "--etl")) as etl:
            yield etl

    def demand_topic(self, name: str) -> None:
        """Raises ConfigurationError where the lineage has no such topic."""
        from oncehouse.etl.open import find_topic

        with self.open_etl() as etl:
            find_topic(etl, name)

    def forget_etl(self) -> None:
        """After a change by hand: the next look waits for a new answer."""
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

        settings = load_messaging(_named(self.watched.messaging, "--messaging"))
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

        settings = load_messaging(_named(self.watched.messaging, "--messaging"))
        database = settings.require_database()
        with open_inbox_database(database, settings.inbox, patience=LOOKING) as opened:
            yield opened

    def groups(self) -> tuple[GroupStatus, ...] | NoAnswer:
        if not self.watched.groups:
            return ()
        return self._groups.hear(wait_seconds=self._wait_seconds)

    def _read_groups(self) -> tuple[GroupStatus, ...]:
        from oncehouse.messaging.settings import load_messaging

        if self._group_question is None:
            kafka = load_messaging(_named(self.watched.messaging, "--messaging")).require_kafka()
            self._group_question = GroupQuestion(self.watched.groups, kafka)
        return self._group_question()

    def health(self) -> tuple[HealthView, ...]:
        from oncehouse.messaging.consumer.health import read_health
        from oncehouse.monitoring.message_trace import ask

        now = time.time()
        return tuple(
            HealthView(
                file=str(file),
                health=ask(partial(read_health, file, max_age_seconds=HEALTH_SECONDS, now=now)),
            )
            for file in self.watched.health_files
        )

    # Model sync.

    def syncs(self) -> tuple[SyncStatus, ...] | NoAnswer:
        return self._syncs.hear(wait_seconds=self._wait_seconds)

    def _read_syncs(self) -> tuple[SyncStatus, ...]:
        from oncehouse.sync.discovery import find_syncs
        from oncehouse.sync.status import read_status

        return tuple(read_status(find_syncs(self.watched.modules)))


def _load_pipelines(files: Iterable[Path]) -> dict[str, Pipeline]:
    found: dict[str, Pipeline] = {}
    for file in files:
        pipeline = load_pipeline(file)
        if pipeline.pipeline in found:
            raise ConfigurationError(f"{file}: another file has a pipeline {pipeline.pipeline!r} already")
        found[pipeline.pipeline] = pipeline
    return found


def _read_other_files(watched: Watched) -> None:
    from oncehouse.etl.settings import load_settings
    from oncehouse.messaging.settings import load_messaging

    if watched.etl is not None:
        load_settings(watched.etl)
    if watched.messaging is not None:
        load_messaging(watched.messaging)


def _named(file: Path | None, option: str) -> Path:
    if file is None:
        raise ConfigurationError(f"nothing is looked at there; name its file with {option}")
    return file
