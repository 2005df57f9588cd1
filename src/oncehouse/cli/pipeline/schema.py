"""`oncehouse schema`: the versions that the ledger knows, and what they mean for the tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oncehouse.cli.arguments import DEFAULT_FILE, AsJson, File
from oncehouse.cli.open_ledger import open_catalog
from oncehouse.cli.output import format_time, say, show_json, show_table
from oncehouse.cli.pager import paged
from oncehouse.common.json_documents import Answer
from oncehouse.config.file_loader import load_pipeline
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from oncehouse.clickhouse.alter_table import ColumnChange
    from oncehouse.config.pipeline import Pipeline
    from oncehouse.ledger.catalog.database import Catalog
    from oncehouse.ledger.models import LearnedField, Schema
    from oncehouse.pipeline.schema.plan import FieldChange, SchemaPlan

app = typer.Typer(no_args_is_help=True, help="Schema versions, and what they mean for the tables.")

Version = Annotated[str, typer.Argument(metavar="VERSION", help="The name of the version.")]
Only = Annotated[
    str | None, typer.Option("--version", help="Only this version; without it, all that are known.")
]


@dataclass(frozen=True, kw_only=True)
class SchemaList(Answer, of=("schema list",)):
    schemas: tuple[Schema, ...]
    fields: tuple[LearnedField, ...]


@dataclass(frozen=True, kw_only=True)
class OneSchema(Answer, of=("schema show",)):
    version: Schema
    fields: dict[str, str | None]


@dataclass(frozen=True, kw_only=True)
class AddedSchemas(Answer, of=("schema add",)):
    added: tuple[Schema, ...]


@dataclass(frozen=True, kw_only=True)
class PlannedSchema(Answer, of=("schema plan",)):
    fields: tuple[FieldChange, ...]
    columns: tuple[ColumnChange, ...]


@dataclass(frozen=True, kw_only=True)
class AppliedSchema(Answer, of=("schema apply",)):
    run: tuple[str, ...]
    learned: tuple[FieldChange, ...]
    left: list[ColumnChange]


@app.command("list")
@paged()
def list_versions(file: File = DEFAULT_FILE, *, as_json: AsJson = False) -> None:
    """The versions and the fields that the ledger knows beyond FILE."""
    from oncehouse.ledger.catalog.learned_fields import list_fields
    from oncehouse.pipeline.formats.schema_fields import fields_of
    from oncehouse.pipeline.schema.discovery import known_schemas

    pipeline = load_pipeline(file)
    with open_catalog(pipeline) as catalog:
        schemas = known_schemas(pipeline, catalog)
        learned = list_fields(catalog) if catalog.exists() else ()
    if as_json:
        show_json(SchemaList(schemas=schemas, fields=learned))
        return
    show_table(
        ["version", "format", "fields", "first seen"],
        [
            (schema.schema, schema.format, len(fields_of(schema)), format_time(schema.first_seen_at))
            for schema in schemas
        ],
        empty="no schema version is known",
    )
    show_table(
        ["field", "type", "declared then", "learnt"],
        [
            (field.field, field.type or "left out", field.instead_of, format_time(field.learned_at))
            for field in learned
        ],
        empty="no field is known beyond the pipeline file",
    )


@app.command()
@paged()
def show(version: Version, file: File = DEFAULT_FILE, *, as_json: AsJson = False) -> None:
    """The fields of one version, with the ClickHouse types that they have by themselves."""
    from oncehouse.column_types.types import clickhouse_name
    from oncehouse.pipeline.formats.schema_fields import fields_of

    pipeline = load_pipeline(file)
    with open_catalog(pipeline) as catalog:
        schema = _choose(pipeline, catalog, version)[0]
    fields = {
        name: None if fact.type is None else clickhouse_name(fact.type)
        for name, fact in fields_of(schema).items()
    }
    if as_json:
        show_json(OneSchema(version=schema, fields=fields))
        return
    show_table(
        ["field", "type"],
        [(name, type_ or "of several types, or without end") for name, type_ in fields.items()],
        empty="it has no fields",
    )


@app.command()
def add(
    version: Version,
    file: File = DEFAULT_FILE,
    *,
    avsc: Annotated[Path | None, typer.Option("--avsc", help="Avro: the schema file.")] = None,
    proto: Annotated[list[Path] | None, typer.Option("--proto", help="Protobuf: a .proto file.")] = None,
    include: Annotated[
        list[Path] | None,
        typer.Option("--include", help="Protobuf: a folder of imported files."),
    ] = None,
    descriptor: Annotated[
        Path | None, typer.Option("--descriptor", help="Protobuf: a descriptor set.")
    ] = None,
    message: Annotated[
        str | None,
        typer.Option("--message", help="Protobuf: full name of the message, if not the file's own."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add a version, from a file or the registry; records that waited for it are decoded."""
    from oncehouse.ledger.catalog.known_schemas import add_schemas

    pipeline = load_pipeline(file)
    schema = _read(
        pipeline,
        version,
        avsc=avsc,
        proto=proto or [],
        include=include or [],
        descriptor=descriptor,
        message=message,
    )
    if schema.format != pipeline.source.format:
        raise ConfigurationError(
            f"Pipeline {pipeline.pipeline} reads {pipeline.source.format}; a schema of {schema.format} is of no use"
        )
    catalog = _make_ledger(pipeline)
    try:
        added = add_schemas(catalog, [schema])
        lacking = _lacking(pipeline, catalog, version)
    finally:
        catalog.close()
    if as_json:
        show_json(AddedSchemas(added=added))
    else:
        say(f"version {version} is in the ledger" if added else f"the ledger knew version {version} already")
        for line in lacking:
            say(line)


def _lacking(pipeline: Pipeline, catalog: Catalog, version: str) -> list[str]:
    """What the version lacks for ids, and what to do; a rule that the versions contradict each other about."""
    from oncehouse.pipeline.schema.discovery import known_schemas
    from oncehouse.pipeline.schema.required_fields import check_versions

    try:
        found = list(check_versions(pipeline, known_schemas(pipeline, catalog), {version}))
    except ConfigurationError as error:
        return [str(error)]
    return [text for finding in found for text in (finding.what, f"  {finding.advice}")]


def _make_ledger(pipeline: Pipeline) -> Catalog:
    """A schema may be known before the first run, so the catalog is made where there is none."""
    from oncehouse.ledger.catalog.database import Catalog

    catalog = Catalog(pipeline.ledger.catalog.get_secret_value(), pipeline.pipeline)
    try:
        if not catalog.exists():
            catalog.prepare()
    except BaseException:
        catalog.close()
        raise
    return catalog


def _own_message(pipeline: Pipeline) -> str:
    """The message that the pipeline file names for all versions."""
    section = pipeline.source.protobuf
    if section is None:
        raise ConfigurationError(
            f"Pipeline {pipeline.pipeline} reads {pipeline.source.format}; a schema of protobuf is of no use"
        )
    if section.message is None:
        raise ConfigurationError("name the message with --message, such as --message shop.Order")
    return section.message


def _read(
    pipeline: Pipeline,
    version: str,
    *,
    avsc: Path | None,
    proto: list[Path],
    include: list[Path],
    descriptor: Path | None,
    message: str | None,
) -> Schema:
    from oncehouse.pipeline.formats.avro.schema_sources import read_file
    from oncehouse.pipeline.formats.protobuf.schema_sources import make_schema
    from oncehouse.pipeline.schema.discovery import find_schemas

    if avsc is not None and not (proto or descriptor):
        return read_file(str(avsc), version)
    if (proto or descriptor) and avsc is None:
        return make_schema(
            version,
            files=[str(path) for path in proto],
            include=[str(path) for path in include],
            descriptor_set=None if descriptor is None else str(descriptor),
            message=message or _own_message(pipeline),
        )
    found = None if avsc is not None else next(find_schemas(pipeline, [version]), None)
    if found is None:
        raise ConfigurationError(
            f"version {version!r} cannot be had; give --avsc, or --proto or --descriptor with --message, "
            "or name a registry that has it in the pipeline file"
        )
    return found


def _choose(pipeline: Pipeline, catalog: Catalog, version: str | None) -> tuple[Schema, ...]:
    from oncehouse.pipeline.schema.discovery import known_schemas

    schemas = known_schemas(pipeline, catalog)
    if version is None:
        return schemas
    chosen = tuple(schema for schema in schemas if schema.schema == version)
    if not chosen:
        names = ", ".join(schema.schema for schema in schemas) or "none"
        raise ConfigurationError(
            f"Pipeline {pipeline.pipeline}: version {version!r} is not known; known: {names}"
        )
    return chosen


@app.command()
@paged()
def plan(file: File = DEFAULT_FILE, *, version: Only = None, as_json: AsJson = False) -> None:
    """Show what the known versions, and the fields of FILE, mean for the tables; changes nothing."""
    from oncehouse.pipeline.schema.plan import make_plan

    pipeline = load_pipeline(file)
    with open_catalog(pipeline) as catalog:
        found = make_plan(pipeline, catalog, _choose(pipeline, catalog, version))
    if as_json:
        show_json(PlannedSchema(fields=found.fields, columns=found.columns))
        return
    _show(found)
    say("-- nothing was changed; `oncehouse schema apply` runs what is additive")


@app.command()
def apply(
    file: File = DEFAULT_FILE,
    *,
    version: Only = None,
    allow_narrowing: Annotated[
        bool, typer.Option("--allow-narrowing", help="Also run what may change stored values.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run the plan: only additive changes by default. A running pipeline uses the result."""
    from oncehouse.pipeline.schema.plan import apply as perform
    from oncehouse.pipeline.schema.plan import make_plan

    pipeline = load_pipeline(file)
    catalog = _make_ledger(pipeline)
    try:
        found = make_plan(pipeline, catalog, _choose(pipeline, catalog, version))
        run = perform(pipeline, catalog, found, allow_narrowing=allow_narrowing)
    finally:
        catalog.close()
    left = [change for change in found.columns if change.statement and change.statement not in run]
    if as_json:
        show_json(AppliedSchema(run=run, learned=found.learned, left=left))
        return
    for statement in run:
        say(f"{statement};")
    say(f"-- {len(run)} statements were run, {len(found.learned)} fields learnt")
    for change in left:
        say(f"-- left alone ({change.why}); --allow-narrowing would run: {change.statement}")


def _show(found: SchemaPlan) -> None:
    for field in found.fields:
        say(f"-- {_describe_field(field)}")
    for column in found.columns:
        say(_describe_column(column))


def _describe_field(change: FieldChange) -> str:
    type_ = f" {change.type}" if change.type else ""
    return f"field {change.field}{type_} ({change.kind}): {change.why}"


def _describe_column(change: ColumnChange) -> str:
    note = f"-- {change.table}.{change.column} ({change.kind}): {change.why}"
    return note if change.statement is None else f"{note}\n{change.statement};"
