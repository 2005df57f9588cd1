"""What schema versions mean for the fields of a pipeline and the columns of its tables: the plan, and its doing.

Pure but for `plan_tables` and `apply`. A field that a version brings is learnt as Nullable, because other
versions lack it; a field that a version takes away, or brings with a wider type, widens what was declared.
What would change the identity rule is refused: that is `oncehouse rekey`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncehouse.clickhouse.alter_table import ChangeKind, ColumnChange, plan_columns
from oncehouse.clickhouse.client import connect
from oncehouse.clickhouse.preflight.finding import Level
from oncehouse.clickhouse.preflight.requirements import needs_of
from oncehouse.clickhouse.table_info import describe_table
from oncehouse.clickhouse.type_compatibility import widens
from oncehouse.column_types import types as c
from oncehouse.column_types.parser import parse_type
from oncehouse.errors import ConfigurationError
from oncehouse.ledger.catalog.learned_fields import learn_fields, list_fields
from oncehouse.ledger.models import LearnedField, Schema
from oncehouse.pipeline.formats.schema_fields import FieldFact, fields_of, linked_names, make_nullable
from oncehouse.pipeline.schema.discovery import known_schemas
from oncehouse.pipeline.schema.evolution import new_fields, with_learned
from oncehouse.pipeline.schema.identity_guard import identity_of
from oncehouse.pipeline.schema.required_fields import check_versions
from oncehouse.pipeline.schema.table_merge_fields import with_tables

if TYPE_CHECKING:
    from oncehouse.clickhouse.table_info import TableFacts
    from oncehouse.config.pipeline import Pipeline
    from oncehouse.ledger.catalog.database import Catalog


@dataclass(frozen=True, kw_only=True)
class FieldChange:
    field: str
    kind: ChangeKind
    why: str
    type: str | None = None
    """The type that the field has from then on."""


@dataclass(frozen=True, kw_only=True)
class SchemaPlan:
    fields: tuple[FieldChange, ...]
    columns: tuple[ColumnChange, ...]

    def statements(self, *, allow_narrowing: bool) -> tuple[str, ...]:
        wanted = {ChangeKind.ADD, ChangeKind.WIDEN} | ({ChangeKind.NARROW} if allow_narrowing else set())
        return tuple(
            change.statement for change in self.columns if change.statement and change.kind in wanted
        )

    @property
    def learned(self) -> tuple[FieldChange, ...]:
        return tuple(change for change in self.fields if change.type is not None)


def plan_fields(
    pipeline: Pipeline, learned: Sequence[LearnedField], schemas: Sequence[Schema]
) -> tuple[FieldChange, ...]:
    """What the versions mean for the pipeline's fields, oldest version first. Pure."""
    schemas = [schema for schema in schemas if schema.format == pipeline.source.format]
    now = dict(with_learned(pipeline, learned).source.fields)
    left_out = [field for field in learned if field.type is None]
    changes: list[FieldChange] = []
    before: dict[str, FieldFact] = {}
    tied = linked_names(schemas, pipeline.source)
    given = {name for schema in schemas for name, fact in fields_of(schema).items() if fact.has_default}
    for schema in schemas:
        facts = _under_known_names(fields_of(schema), now, tied)
        found = new_fields(pipeline, [*_as_learned(now), *left_out], schemas, {})
        changes += [_bring(name, type_, schema) for name, type_ in found.items() if name in facts]
        changes += _compare(now, before, facts, schema, given)
        now |= {change.field: change.type for change in changes if change.type is not None}
        before |= facts
    return (*changes, *_renames(schemas, tied))


def _under_known_names(
    facts: Mapping[str, FieldFact], now: Mapping[str, str], tied: Mapping[str, frozenset[str]]
) -> dict[str, FieldFact]:
    """The fields of a version under the names that the pipeline has for them."""
    return {
        next((known for known in tied.get(name, ()) if known in now and known not in facts), name): fact
        for name, fact in facts.items()
    }


def _as_learned(fields: Mapping[str, str]) -> list[LearnedField]:
    return [LearnedField(field=name, type=type_) for name, type_ in fields.items()]


def _bring(name: str, type_: str | None, schema: Schema) -> FieldChange:
    if type_ is None:
        why = f"version {schema.schema} brings it; it is nested or of several types, so declare it by hand"
        return FieldChange(field=name, kind=ChangeKind.NOTE, why=why)
    return FieldChange(field=name, kind=ChangeKind.ADD, why=f"version {schema.schema} brings it", type=type_)


def _compare(
    now: Mapping[str, str],
    before: Mapping[str, FieldFact],
    facts: Mapping[str, FieldFact],
    schema: Schema,
    given: set[str],
) -> Iterator[FieldChange]:
    """What became of known fields; `given` have a default where they are missing.

    Types are held against those of earlier versions: what the file makes of the first one is its own business.
    """
    for name, declared in now.items():
        if "." in name:
            continue  # an inner field: `check` says how it is converted
        type_, fact = parse_type(declared), facts.get(name)
        if fact is None:
            # Protobuf keeps an absent field apart where the column can: null, which is worth a note.
            if name in given and (schema.format == "avro" or not c.is_nullable(type_)):
                continue
            yield from _drop(name, type_, schema, was_there=name in before)
        elif fact.members and isinstance(c.bare(type_), c.Enum):
            yield from _widen_enum(name, type_, fact.members, schema)
        elif name in before and fact.type not in {None, before[name].type}:
            yield from _widen(name, type_, fact.type, schema)


def _drop(name: str, type_: c.ColumnType, schema: Schema, *, was_there: bool) -> Iterator[FieldChange]:
    wider = make_nullable(type_)
    why = f"version {schema.schema} has it no more" if was_there else f"version {schema.schema} lacks it"
    if wider is None or wider == type_:
        if was_there:
            why = f"{why}; its records leave the column empty"
            yield FieldChange(field=name, kind=ChangeKind.NOTE, why=why)
    else:
        why = f"{why}; its records have null there"
        yield FieldChange(field=name, kind=ChangeKind.WIDEN, why=why, type=c.clickhouse_name(wider))


def _widen(name: str, declared: c.ColumnType, own: c.ColumnType, schema: Schema) -> Iterator[FieldChange]:
    bare = c.bare(own)
    if widens(bare, c.bare(declared)):
        return
    wider: c.ColumnType | None = make_nullable(bare) if c.is_nullable(declared) else bare
    if wider is not None and widens(declared, wider):
        why = f"version {schema.schema} has {c.clickhouse_name(own)}"
        yield FieldChange(field=name, kind=ChangeKind.WIDEN, why=why, type=c.clickhouse_name(wider))
        return
    why = (
        f"version {schema.schema} has {c.clickhouse_name(own)}, declared is {c.clickhouse_name(declared)}: "
        "values that do not fit become dead letters"
    )
    yield FieldChange(field=name, kind=ChangeKind.NOTE, why=why)


def _widen_enum(
    name: str, declared: c.ColumnType, members: Iterable[str], schema: Schema
) -> Iterator[FieldChange]:
    enum = c.bare(declared)
    known = dict(enum.members) if isinstance(enum, c.Enum) else {}
    fresh = [member for member in members if member not in known]
    if not fresh:
        return
    first = max(known.values(), default=0) + 1
    added = tuple((member, first + at) for at, member in enumerate(fresh))
    bits = 8 if first + len(fresh) <= 128 else 16
    wider = c.Enum(bits=max(bits, getattr(enum, "bits", 8)), members=(*known.items(), *added))
    type_ = c.Nullable(inner=wider) if c.is_nullable(declared) else wider
    why = f"version {schema.schema} has new values: {', '.join(fresh[:5])}"
    yield FieldChange(field=name, kind=ChangeKind.WIDEN, why=why, type=c.clickhouse_name(type_))


def _renames(schemas: Sequence[Schema], tied: Mapping[str, frozenset[str]]) -> Iterator[FieldChange]:
    """Fields that a later version calls otherwise: protobuf by their number, Avro by its aliases."""
    before: dict[int, str] = {}
    for schema in schemas:
        for name, fact in fields_of(schema).items():
            for past in fact.aliases:
                why = f"version {schema.schema} calls it {name}; either name reads both"
                yield FieldChange(field=past, kind=ChangeKind.NOTE, why=why)
            old = before.get(fact.number or 0, name)
            if old != name:
                one = "either name reads both" if old in tied.get(name, ()) else "the two are two columns"
                why = f"version {schema.schema} calls it {name}; {one}"
                yield FieldChange(field=old, kind=ChangeKind.NOTE, why=why)
            if fact.number is not None:
                before[fact.number] = name


def make_plan(pipeline: Pipeline, catalog: Catalog, schemas: Sequence[Schema]) -> SchemaPlan:
    """What the versions mean for fields and tables; asks ClickHouse what the tables have."""
    learned = list_fields(catalog) if catalog.exists() else ()
    changes = plan_fields(pipeline, learned, schemas)
    then = with_learned(pipeline, [*learned, *to_learn(pipeline, changes)])
    facts = _read_facts(pipeline)
    require_fields(with_tables(then, facts), known_schemas(pipeline, catalog), schemas)
    return SchemaPlan(fields=changes, columns=tuple(plan_tables(then, facts)))


def require_fields(pipeline: Pipeline, known: Sequence[Schema], planned: Sequence[Schema]) -> None:
    """Refuse planned versions without a field that ids or tables depend on."""
    findings = check_versions(pipeline, known, {schema.schema for schema in planned})
    if found := [finding for finding in findings if finding.level is Level.ERROR]:
        lines = "\n".join(f"  {finding.what}\n    → {finding.advice}" for finding in found)
        raise ConfigurationError(
            f"Pipeline {pipeline.pipeline}: nothing is planned for these versions:\n{lines}"
        )


def _read_facts(pipeline: Pipeline) -> dict[str, TableFacts]:
    client = connect(pipeline.clickhouse)
    found: dict[str, TableFacts] = {}
    for table in pipeline.tables:
        facts = describe_table(client, table.name)
        if facts is None:
            raise ConfigurationError(
                f"{table.name} does not exist, or the user may not see it; run `oncehouse table create` first"
            )
        found[table.name] = facts
    return found


def plan_tables(pipeline: Pipeline, facts: Mapping[str, TableFacts]) -> Iterator[ColumnChange]:
    for table in pipeline.tables:
        yield from plan_columns(facts[table.name], needs_of(pipeline, table))


def to_learn(pipeline: Pipeline, changes: Iterable[FieldChange]) -> tuple[LearnedField, ...]:
    declared = pipeline.source.fields
    return tuple(
        LearnedField(field=change.field, type=change.type, instead_of=declared.get(change.field))
        for change in changes
        if change.type is not None
    )


def apply(
    pipeline: Pipeline, catalog: Catalog, plan: SchemaPlan, *, allow_narrowing: bool
) -> tuple[str, ...]:
    """Change the tables, then write down the fields, which a running pipeline takes up with its next epoch."""
    learned = to_learn(pipeline, plan.fields)
    then = with_learned(pipeline, [*list_fields(catalog), *learned])
    if identity_of(then, catalog) != identity_of(pipeline, catalog):
        names = ", ".join(change.field for change in plan.learned)
        raise ConfigurationError(
            f"Pipeline {pipeline.pipeline}: a wider type would change the identity rule ({names}). Declare the type "
            "under source.fields and change the ledger with `oncehouse rekey`. Nothing was changed."
        )
    client = connect(pipeline.clickhouse)
    statements = plan.statements(allow_narrowing=allow_narrowing)
    for statement in statements:
        client.command(statement)
    if learned:
        learn_fields(catalog, learned)
    return statements
