"""Schemas: how records of each version are written, as far as the ledger has learnt of them.

A schema once written down never changes, so that what was decoded with it can be decoded again.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, insert, select

from oncehouse.config.field_types import check_name
from oncehouse.errors import ConfigurationError
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.schema import schemas
from oncehouse.ledger.models import ROW_PREFIX, Schema


def list_schemas(catalog: Catalog) -> tuple[Schema, ...]:
    """In the order in which they became known."""
    query = (
        select(schemas)
        .where(schemas.c.pipeline == catalog.pipeline)
        .order_by(schemas.c.first_seen_at, schemas.c.schema_name)
    )
    with catalog.read() as connection:
        rows = connection.execute(query).all()
    return tuple(
        Schema(
            schema=row.schema_name,
            format=row.format,
            definition=row.definition,
            first_seen_at=row.first_seen_at,
        )
        for row in rows
    )


def list_names(catalog: Catalog, *, format_: str | None = None) -> frozenset[str]:
    """The names alone, without the definitions; of one format, or of all."""
    query = select(schemas.c.schema_name).where(schemas.c.pipeline == catalog.pipeline)
    if format_ is not None:
        query = query.where(schemas.c.format == format_)
    with catalog.read() as connection:
        return frozenset(connection.execute(query).scalars())


def add_schemas(catalog: Catalog, found: Iterable[Schema]) -> tuple[Schema, ...]:
    """Write down those that are new and return them; another definition under a known name is refused."""
    schemas = tuple(found)
    for schema in schemas:
        _require_name(catalog, schema)

    def run(connection: Connection) -> tuple[Schema, ...]:
        return tuple(schema for schema in schemas if _add(connection, catalog, schema))

    return catalog.change(run) if schemas else ()


def _require_name(catalog: Catalog, schema: Schema) -> None:
    try:
        check_name(schema.schema)
    except ValueError as error:
        raise ConfigurationError(
            f"Pipeline {catalog.pipeline}: a schema cannot have the name {schema.schema[:50]!a}: {error}."
        ) from None
    if schema.schema.startswith(ROW_PREFIX) is not (schema.format == "frame"):
        raise ConfigurationError(
            f"Pipeline {catalog.pipeline}: {schema.schema!r} cannot name a schema of {schema.format}: names that begin "
            f"with {ROW_PREFIX!r} are those of rows of DataFrames and imports. Choose another name."
        )


def _add(connection: Connection, catalog: Catalog, schema: Schema) -> bool:
    known = connection.execute(
        select(schemas.c.format, schemas.c.definition).where(
            schemas.c.pipeline == catalog.pipeline, schemas.c.schema_name == schema.schema
        )
    ).first()
    if known is None:
        connection.execute(
            insert(schemas).values(
                pipeline=catalog.pipeline,
                schema_name=schema.schema,
                format=schema.format,
                definition=schema.definition,
                first_seen_at=catalog.clock,
            )
        )
        return True
    if (known.format, known.definition) != (schema.format, schema.definition):
        raise ConfigurationError(
            f"Pipeline {catalog.pipeline}: the ledger knows schema {schema.schema!r} with another definition. "
            "Records were decoded with it, so it stays as it is; give the new definition a new version."
        )
    return False
