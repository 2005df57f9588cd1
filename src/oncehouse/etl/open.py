"""Opens what the scheduler's commands and views work on: settings, lineage, ClickHouse, offsets. Makes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from oncehouse.clickhouse.error_codes import ErrorCode
from oncehouse.config.problems import nearest
from oncehouse.errors import ConfigurationError, PermanentError
from oncehouse.etl.lineage.files import load_lineage
from oncehouse.etl.lineage.topic import Topic
from oncehouse.etl.settings import EtlSettings, load_settings
from oncehouse.ledger.open import may_exist

if TYPE_CHECKING:
    from oncehouse.clickhouse.client import Client
    from oncehouse.etl.state.transitions import OffsetSnapshot, OffsetStore


@dataclass(frozen=True, kw_only=True)
class Etl:
    settings: EtlSettings
    lineage: tuple[Topic, ...]
    """All lines, sources among them."""
    client: Client
    store: OffsetStore

    @property
    def built_topics(self) -> tuple[Topic, ...]:
        """The topics that are built here."""
        return tuple(topic for topic in self.lineage if not topic.is_source)

    @property
    def folder(self) -> Path:
        return Path(self.settings.lineage)


@contextmanager
def open_etl(file: Path) -> Iterator[Etl]:
    """Settings and lineage, read and checked; servers are asked nothing yet."""
    from oncehouse.clickhouse.client import connect

    settings = load_settings(file)
    client = connect(settings.clickhouse, "oncehouse etl check")
    with open_store(settings, client) as store:
        lineage = name_transforms(load_lineage(settings.lineage), settings.database)
        yield Etl(settings=settings, lineage=lineage, client=client, store=store)


def name_transforms(lineage: Sequence[Topic], database: str) -> tuple[Topic, ...]:
    """Every topic with its transform spelt out: the view in the scheduler's own database when left out."""
    return tuple(
        topic
        if topic.is_source or topic.transform is not None or topic.template_file is not None
        else replace(topic, transform=f"{database}.{topic.topic}Transform")
        for topic in lineage
    )


@contextmanager
def open_store(settings: EtlSettings, client: Client) -> Iterator[OffsetStore]:
    offsets = settings.offsets
    match offsets.store:
        case "keepermap":
            from oncehouse.etl.state.clickhouse_store import KeeperMapOffsets

            yield KeeperMapOffsets(client, f"{settings.database}.Offsets", offsets.path)
        case "rocksdb":
            from oncehouse.etl.state.clickhouse_store import RocksDbOffsets

            yield RocksDbOffsets(client, f"{settings.database}.OffsetsLocal")
        case "catalog":
            from oncehouse.common.network_disk import refuse_network_disk
            from oncehouse.etl.state.sql_store import CatalogOffsets
            from oncehouse.ledger.catalog.database import Catalog

            url = offsets.catalog.get_secret_value() if offsets.catalog else ""
            refuse_network_disk(url, setting="offsets.catalog")
            catalog = Catalog(url, "etl")
            try:
                yield CatalogOffsets(catalog)
            finally:
                catalog.close()


def read_offsets(etl: Etl) -> OffsetSnapshot:
    """All offsets; a ConfigurationError when nothing was made yet. None are made by looking."""
    where = "the catalog" if etl.settings.offsets.store == "catalog" else etl.settings.database
    absent = ConfigurationError(f"There are no offsets in {where} yet; `oncehouse etl init --yes` makes them")
    catalog = etl.settings.offsets.catalog
    if catalog is not None and not may_exist(catalog.get_secret_value()):
        raise absent
    try:
        return etl.store.read_all()
    except (PermanentError, ConfigurationError) as error:
        if _is_absence(error):
            raise absent from error
        raise


def _is_absence(error: PermanentError | ConfigurationError) -> bool:
    from oncehouse.clickhouse.client import failure_of

    in_catalog = "oncehouse_etl_offsets" in str(error)
    missing = any(word in str(error) for word in ("no such table", "does not exist"))
    return failure_of(error).code in {ErrorCode.UNKNOWN_TABLE, ErrorCode.UNKNOWN_DATABASE} or (
        in_catalog and missing
    )


def find_topic(etl: Etl, name: str) -> Topic:
    """A topic that is built here, by its name."""
    return _find(etl.built_topics, name, "that is built here")


def find_source(etl: Etl, name: str) -> Topic:
    """A topic that only declares a source, by its name."""
    return _find([topic for topic in etl.lineage if topic.is_source], name, "that is a source")


def _find(topics: Sequence[Topic], name: str, which: str) -> Topic:
    names = {topic.topic: topic for topic in topics}
    if name in names:
        return names[name]
    lowered = {known.lower(): known for known in names}
    meant = nearest(name, lowered)
    advice = f'did you mean "{lowered[meant]}"?' if meant else f"known: {', '.join(names)}"
    raise ConfigurationError(f"the lineage has no topic {name!r} {which}; {advice}")
