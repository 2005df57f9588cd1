"""Where the driver learns schemas from: the pipeline file and what it names.

Tasks get what is known with their plan and never ask anybody. What is found is written into the ledger first,
so that records stay readable when the place it came from is away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from oncehouse.errors import TransientError
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.known_schemas import add_schemas, list_names, list_schemas
from oncehouse.ledger.models import Schema
from oncehouse.pipeline.formats.avro import schema_sources as avro_sources
from oncehouse.pipeline.formats.factory import require_section
from oncehouse.pipeline.formats.protobuf import schema_sources as protobuf_sources
from oncehouse.pipeline.formats.schema_registry import RegistryClient

if TYPE_CHECKING:
    from oncehouse.config.formats import Avro
    from oncehouse.config.pipeline import Pipeline
    from oncehouse.config.protobuf import Protobuf


def declared_schemas(pipeline: Pipeline) -> tuple[Schema, ...]:
    """All that the pipeline file itself brings along."""
    match pipeline.source.format:
        case "json" | "jsonl" | "csv" | "text" | "debezium" | "frame":
            return ()
        case "avro":
            return avro_sources.read_files(_avro(pipeline))
        case "protobuf":
            return protobuf_sources.read_files(_protobuf(pipeline))
        case _:
            assert_never(pipeline.source.format)


def known_schemas(pipeline: Pipeline, catalog: Catalog | None) -> tuple[Schema, ...]:
    """Those of the ledger, as far as there is one, and after them what only the pipeline file brings along."""
    kept = list_schemas(catalog) if catalog is not None and catalog.exists() else ()
    names = {schema.schema for schema in kept}
    return (*kept, *(schema for schema in declared_schemas(pipeline) if schema.schema not in names))


def find_schemas(pipeline: Pipeline, names: Collection[str]) -> Iterator[Schema]:
    """Those of the names that can be had now; the others are left out. The first are asked for first.

    Raises TransientError when a registry does not answer.
    """
    asked = dict.fromkeys(names)
    declared = {schema.schema: schema for schema in declared_schemas(pipeline) if schema.schema in asked}
    yield from declared.values()
    missing = [name for name in asked if name not in declared]
    match pipeline.source.format:
        case "avro":
            yield from avro_sources.fetch_from_registry(_avro(pipeline), missing)
        case "protobuf":
            yield from protobuf_sources.fetch_from_registry(_protobuf(pipeline), missing)


def check_schemas(pipeline: Pipeline) -> None:
    """Refuse schema files that cannot be read, and a registry that does not answer or takes another user."""
    declared_schemas(pipeline)
    section = pipeline.source.avro or pipeline.source.protobuf
    if section is not None and section.registry is not None:
        RegistryClient(section.registry).check()


def _avro(pipeline: Pipeline) -> Avro:
    return require_section(pipeline.source.avro, "avro")


def _protobuf(pipeline: Pipeline) -> Protobuf:
    return require_section(pipeline.source.protobuf, "protobuf")


@dataclass(frozen=True, kw_only=True)
class Learned:
    schemas: tuple[Schema, ...] = ()
    """Those that the ledger knows now and did not know before."""
    registry_is_away: bool = False
    """Whether a registry did not answer, so that it may have more."""


def learn_schemas(pipeline: Pipeline, catalog: Catalog, names: Collection[str]) -> Learned:
    """Look for schemas that the ledger lacks; the first are asked for first."""
    known = list_names(catalog) if names else ()
    missing = [name for name in names if name not in known]
    if not missing:
        return Learned()
    found: list[Schema] = []
    is_away = False
    try:
        found.extend(find_schemas(pipeline, missing))
    except TransientError:
        is_away = True
    return Learned(schemas=add_schemas(catalog, found), registry_is_away=is_away)
