"""Evolution: which fields a pipeline has now, and what happens when records bring one that it does not know.

Fields come from the pipeline file and from what the ledger has learnt beyond it; `with_learned` is the one place
where they meet. A field that is learnt gets its column first and is written down after, so that a crash in
between leaves a column that is not filled, never a field without a column. Parts carry their own columns, so what
was made before goes out as it was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from oncehouse.clickhouse.client import connect
from oncehouse.clickhouse.create_table import add_column_ddl
from oncehouse.clickhouse.table_info import describe_table
from oncehouse.clickhouse.type_compatibility import compare_types
from oncehouse.column_types.types import clickhouse_name
from oncehouse.common import failpoints
from oncehouse.config.field_types import check_name
from oncehouse.errors import ConfigurationError
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.known_schemas import list_schemas
from oncehouse.ledger.catalog.learned_fields import learn_fields, list_fields
from oncehouse.ledger.models import LearnedField, Schema
from oncehouse.pipeline.formats.base import EVENT_COLUMN
from oncehouse.pipeline.formats.json.new_fields import NewFields
from oncehouse.pipeline.formats.schema_fields import fields_of, linked_names, make_nullable

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline, Table

# A producer that invents keys must not be able to fill a table with columns.
_MOST_LEARNED = 500


def with_learned(pipeline: Pipeline, learned: Iterable[LearnedField]) -> Pipeline:
    """The pipeline with all its fields. What the file says by now comes before what was learnt against it."""
    fields = dict(pipeline.source.fields)
    for found in {found.field: found for found in learned}.values():
        if found.type is not None and fields.get(found.field) == found.instead_of:
            fields[found.field] = found.type
    if fields == pipeline.source.fields:
        return pipeline
    return pipeline.model_copy(update={"source": pipeline.source.model_copy(update={"fields": fields})})


def current(pipeline: Pipeline, catalog: Catalog) -> Pipeline:
    """The pipeline with all its fields as the ledger knows them now."""
    return with_learned(pipeline, list_fields(catalog)) if catalog.exists() else pipeline


def open_tables(pipeline: Pipeline) -> tuple[Table, ...]:
    """The tables that take every field, and so new ones too."""
    return tuple(table for table in pipeline.tables if table.columns is None)


def new_fields(
    pipeline: Pipeline,
    learned: Iterable[LearnedField],
    schemas: Iterable[Schema],
    noticed: Mapping[str, str | None],
) -> NewFields:
    """Fields that neither file nor ledger knows: those noticed in records, and those of schema versions. Pure."""
    found: NewFields = dict(noticed)
    schemas = tuple(schemas)
    for schema in schemas:
        for name, fact in fields_of(schema).items():
            type_ = None if fact.type is None else make_nullable(fact.type)
            found[name] = None if type_ is None else clickhouse_name(type_)
    declared = {*pipeline.source.decoded_fields, *pipeline.source.unused_fields}
    known = {*declared, *(field.field for field in learned)}
    # A field of which the file names an inner one is known: `user.id` speaks for `user`.
    known |= (
        {name.partition(".")[0] for name in declared}
        if pipeline.source.format in {"avro", "protobuf"}
        else set()
    )
    tied = linked_names(schemas, pipeline.source)
    return {name: type_ for name, type_ in found.items() if not known & tied.get(name, {name})}


def learn_new_fields(
    pipeline: Pipeline, catalog: Catalog, token: int, noticed: Mapping[str, str | None]
) -> bool:
    """Do with new fields what the pipeline file says; whether there are more fields than before."""
    if pipeline.source.new_fields == "ignore":
        return False
    learned = list_fields(catalog)
    found = new_fields(pipeline, learned, list_schemas(catalog), noticed)
    if not found:
        return False
    if pipeline.source.new_fields == "stop":
        raise _stopped(pipeline, found)
    taken = {
        name: type_ for name, type_ in found.items() if type_ is not None and _may_be_column(pipeline, name)
    }
    if len(learned) + len(found) > _MOST_LEARNED:
        raise ConfigurationError(
            f"Pipeline {pipeline.pipeline}: records bring more than {_MOST_LEARNED} fields that the pipeline file does "
            f"not declare, among the last {', '.join(sorted(found)[:5])}. Nothing of this epoch was settled. Set "
            "source.new_fields to ignore, or declare a Map for what has no fixed names."
        )
    add_columns(pipeline, taken)
    failpoints.reach("columns added")
    left = [LearnedField(field=name, type=None) for name in found if name not in taken and _is_sane(name)]
    fresh = [LearnedField(field=name, type=type_) for name, type_ in taken.items()]
    learn_fields(catalog, [*fresh, *left], token=token)
    failpoints.reach("fields learnt")
    return bool(taken)


def _stopped(pipeline: Pipeline, found: NewFields) -> ConfigurationError:
    listed = ", ".join(
        f"{name} ({type_ or 'several types, or nested'})" for name, type_ in sorted(found.items())[:10]
    )
    return ConfigurationError(
        f"Pipeline {pipeline.pipeline}: records have fields that the pipeline file does not declare: {listed}. "
        "source.new_fields is stop, so nothing of this epoch was settled. Declare them under source.fields and run "
        "`oncehouse schema apply`, which adds their columns; or list them under source.unused_fields; or set "
        "source.new_fields to ignore or add."
    )


def _is_sane(name: str) -> bool:
    try:
        check_name(name)
    except ValueError:
        return False
    return True


def _may_be_column(pipeline: Pipeline, name: str) -> bool:
    """Whether a column may have the name: ClickHouse reads dots as nesting, and some names are our own."""
    own = {EVENT_COLUMN}
    for table in pipeline.tables:
        own |= {table.batch_column, table.id_column or table.batch_column}
    return _is_sane(name) and "." not in name and name not in {*own, *pipeline.columns}


def add_columns(pipeline: Pipeline, fields: Mapping[str, str]) -> None:
    """Give every table that takes all fields a column for each; one of another type is refused."""
    if not fields:
        return
    client = connect(pipeline.clickhouse)
    for table in open_tables(pipeline):
        for name, type_ in fields.items():
            client.command(add_column_ddl(table.name, name, type_))
        facts = describe_table(client, table.name)
        for name, type_ in fields.items():
            column = None if facts is None else facts.column(name)
            if column is None or compare_types(type_, column.type) is not None:
                has = "no such column" if column is None else f"a column {name} of type {column.type}"
                raise ConfigurationError(
                    f"Pipeline {pipeline.pipeline}: records bring the new field {name} ({type_}), but {table.name} has "
                    f"{has}. Declare the field under source.fields with a fitting type, or list it under "
                    "source.unused_fields."
                )
