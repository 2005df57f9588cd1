"""What every writer of a pipeline does first: check everything, then create or upgrade its ledger.

Used by `run`, by the sink for DataFrames and by the import of files.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncehouse.common.network_disk import refuse_network_disk
from oncehouse.common.redaction import reveal
from oncehouse.errors import OncehouseError
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.known_schemas import add_schemas
from oncehouse.pipeline.checks.preflight import require_ready, with_merging_fields
from oncehouse.pipeline.ingest.kafka_source import KafkaTopics
from oncehouse.pipeline.schema.discovery import declared_schemas
from oncehouse.pipeline.schema.identity_guard import adopt

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline


def ignore(_message: object) -> None:
    """A callback for progress and messages that drops them."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    pipeline: Pipeline
    """It knows by which fields its tables merge rows, where they were seen."""
    tables_seen: bool


def prepare(
    pipeline: Pipeline,
    catalog: Catalog,
    topics: KafkaTopics | None,
    *,
    may_wait: bool = False,
    say: Callable[[str], None] = ignore,
) -> Prepared:
    """Check everything, then create or upgrade the ledger; raises before any data moves.

    With `may_wait`, ClickHouse may be down. A catalog of an older version is upgraded first, because the checks read
    it; a ledger that does not exist is created last.
    """
    # Before anything is asked of a file that two machines may have open.
    refuse_network_disk(reveal(pipeline.ledger.catalog), setting="ledger.catalog")
    # If the version cannot be read, the checks below say what is wrong.
    version = 0
    with suppress(OncehouseError):
        version = catalog.version()
    if version and (upgrade := catalog.prepare()) is not None:
        say(f"The catalog was upgraded from version {upgrade.before} to {upgrade.after}.")
    there = require_ready(pipeline, catalog, topics, may_wait=may_wait)
    catalog.prepare()
    adopt(pipeline, catalog)
    add_schemas(catalog, declared_schemas(pipeline))
    return Prepared(pipeline=with_merging_fields(pipeline) if there else pipeline, tables_seen=there)
