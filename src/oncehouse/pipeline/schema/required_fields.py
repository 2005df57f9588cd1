"""Fields that every version of a schema must have: without them a default would make different events one.

These are the fields of the identity, and those by which a table merges rows. A version that lacks one is refused
where the pipeline file lists it; where records bring it, they become dead letters and can be replayed once the file
says how the field is found, or that it is optional. Pure but for the schemas' own texts.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from oncehouse.clickhouse.preflight.finding import Finding, Level
from oncehouse.column_types import types as c
from oncehouse.column_types.parser import parse_type
from oncehouse.pipeline.convert.rejection import Reason, Rejection, RejectionCause
from oncehouse.pipeline.dedup.identity_rule import rule_of
from oncehouse.pipeline.formats.avro.field_lookup import has_field, parse_versions, split_path
from oncehouse.pipeline.formats.base import reject_rows
from oncehouse.pipeline.formats.protobuf.schema_sources import number_paths
from oncehouse.protobuf.definition import describe_all, describe_text
from oncehouse.protobuf.fields import find_mismatch, find_obstacle, has_steps, numbers_of, renamed_members

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline
    from oncehouse.ledger.models import Schema
    from oncehouse.pipeline.dedup.identity_rule import Rule
    from oncehouse.pipeline.formats.base import Decoded

_IDENTITY = "belongs to the identity"
_REPLAY = "`oncehouse dead-letters replay` then reads again what has become a dead letter"
_OBSTACLE = (
    "declare fields that all versions have as single messages; else leave the version out of the file and let its "
    f"producers keep the field as it was. {_REPLAY}"
)
_MISMATCH = (
    "declare the field with a type that holds what every version brings; else leave the version out of the file and "
    f"let its producers keep the field as it was. {_REPLAY}"
)


@dataclass(frozen=True, kw_only=True)
class RequiredField:
    steps: tuple[str, ...]
    """The declared field, and from there through Tuples."""
    reason: str

    @property
    def name(self) -> str:
        return ".".join(self.steps)


@dataclass(frozen=True, kw_only=True)
class LackingVersion:
    """A version of the schema without a required field."""

    schema: str
    field: RequiredField

    @property
    def what(self) -> str:
        return f"schema version {self.schema} has no field {self.field.name}, which {self.field.reason}"


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """What is wrong with a version in which a declared field cannot be found as in the others."""

    what: str
    advice: str


def required_fields(pipeline: Pipeline, rule: Rule) -> tuple[RequiredField, ...]:
    """All that the pipeline file does not call optional."""
    wanted = [RequiredField(steps=steps, reason=_IDENTITY) for steps in rule.fields]
    wanted += [
        RequiredField(steps=(field,), reason=f"decides which rows {table} merges")
        for table, field in pipeline.merging_fields
    ]
    optional = pipeline.source.optional_fields
    first = {field.steps: field for field in reversed(wanted) if field.name not in optional}
    return tuple(field for field in wanted if first.get(field.steps) is field)


def find_lacking(
    pipeline: Pipeline, schemas: Sequence[Schema], required: Sequence[RequiredField]
) -> tuple[LackingVersion, ...]:
    """Each version without one of the fields, with the first that it lacks."""
    found: dict[str, LackingVersion] = {}
    for schema, field in _all_lacking(pipeline, schemas, required):
        found.setdefault(schema, LackingVersion(schema=schema, field=field))
    return tuple(found.values())


def _all_lacking(
    pipeline: Pipeline, schemas: Sequence[Schema], required: Sequence[RequiredField]
) -> Iterator[tuple[str, RequiredField]]:
    if not required:
        return
    source = pipeline.source
    numbers = {} if source.protobuf is None else number_paths(source.protobuf, schemas, source.fields)
    aliases = {} if source.avro is None else source.avro.aliases
    records = parse_versions(schemas)
    newest = next(reversed(records.values()), None)
    for schema in schemas:
        for field in required:
            match schema.format:
                case "protobuf":
                    there = has_steps(describe_text(schema.definition), field.steps, numbers)
                case "avro" if newest is not None:
                    first, *inner = field.steps
                    steps = (*split_path(first, newest), *inner)
                    there = has_field(records[schema.schema], newest, steps, aliases)
                case "frame":
                    types = {name: parse_type(text) for name, text in json.loads(schema.definition)}
                    there = c.find_path(field.name, types) is not None
                case _:
                    there = True
            if not there:
                yield schema.schema, field


def find_unreadable(pipeline: Pipeline, schemas: Sequence[Schema]) -> dict[str, Unreadable]:
    """The versions of protobuf in which a declared field is not where, or not what, the others have."""
    section, fields = pipeline.source.protobuf, pipeline.source.fields
    if section is None:
        return {}
    types = {name: parse_type(text) for name, text in fields.items()}
    numbers = number_paths(section, schemas, fields)
    open_names = [name for name in fields if section.match == "number" and name not in section.numbers]
    found: dict[str, Unreadable] = {}
    for schema in schemas:
        if schema.format != "protobuf":
            continue
        descriptor = describe_text(schema.definition)
        for name in open_names:
            own = numbers_of(descriptor, name)
            if own is not None and own != numbers[name]:
                found.setdefault(schema.schema, _contradiction(schema.schema, name, own, numbers[name]))
        for name in fields:
            if obstacle := find_obstacle(descriptor, name, numbers.get(name, ())):
                unreadable = Unreadable(what=f"schema version {schema.schema}, {obstacle}", advice=_OBSTACLE)
                found.setdefault(schema.schema, unreadable)
            elif misfit := find_mismatch(descriptor, name, types[name], numbers.get(name, ())):
                unreadable = Unreadable(
                    what=f"schema version {schema.schema}, field {misfit}", advice=_MISMATCH
                )
                found.setdefault(schema.schema, unreadable)
    return found


def _contradiction(version: str, name: str, own: Sequence[int], agreed: Sequence[int]) -> Unreadable:
    here, before = (".".join(map(str, numbers)) for numbers in (own, agreed))
    return Unreadable(
        what=f"schema version {version} gives field {name} the number {here}, versions before it {before}, and "
        "source.protobuf.match is number",
        advice=f"name the number that counts under source.protobuf.numbers ({name}: …); else leave the version out of "
        f"the file. {_REPLAY}",
    )


def refused_versions(pipeline: Pipeline, schemas: Sequence[Schema], rule: Rule) -> dict[str, str]:
    """The versions whose records become dead letters, each with what it lacks or what cannot be read."""
    found = {
        lacking.schema: lacking.what
        for lacking in find_lacking(pipeline, schemas, required_fields(pipeline, rule))
    }
    return found | {
        version: unreadable.what for version, unreadable in find_unreadable(pipeline, schemas).items()
    }


def is_optional(pipeline: Pipeline, rule: Rule) -> bool:
    """Whether the file allows an event of which no field of the identity has a value."""
    return not identity_fields(pipeline, rule)


def identity_fields(pipeline: Pipeline, rule: Rule) -> tuple[tuple[str, ...], ...]:
    """The fields of the identity that the file does not call optional, each as the steps that lead to it."""
    optional = pipeline.source.optional_fields
    return tuple(steps for steps in rule.fields if ".".join(steps) not in optional)


# -- before data moves ------------------------------------------------------------------------------------


def check_versions(
    pipeline: Pipeline, schemas: Sequence[Schema], only: Collection[str] | None = None
) -> Iterator[Finding]:
    """An error for each known version that lacks a required field, or for those of `only`; a warning for enums."""
    own = [schema for schema in schemas if schema.format == pipeline.source.format]
    if not own:
        return
    rule = rule_of(pipeline, schemas)
    yield from _check_members(pipeline, own, rule)
    unreadable_versions = find_unreadable(pipeline, own)
    for version, unreadable in unreadable_versions.items():
        if only is None or version in only:
            yield Finding(
                level=Level.ERROR,
                where="schemas",
                what=f"{unreadable.what}: its records become dead letters",
                advice=unreadable.advice,
            )
    for lacking in find_lacking(pipeline, own, required_fields(pipeline, rule)):
        if lacking.schema in unreadable_versions or (only is not None and lacking.schema not in only):
            continue
        yield Finding(
            level=Level.ERROR,
            where="schemas",
            what=f"{lacking.what}: different events would be taken for one, so its records become dead letters",
            advice=_advise(pipeline, lacking.field),
        )


def _check_members(pipeline: Pipeline, schemas: Sequence[Schema], rule: Rule) -> Iterator[Finding]:
    """A warning where versions rename a member of an enum that counts by its name."""
    if (section := pipeline.source.protobuf) is None:
        return
    numbers = number_paths(section, schemas, pipeline.source.fields)
    descriptors = describe_all(schema.definition for schema in schemas)
    for name in (steps[0] for steps in rule.fields if len(steps) == 1):
        if isinstance(c.bare(parse_type(pipeline.source.decoded_fields[name])), c.Integer):
            continue
        if called := renamed_members(descriptors, name, numbers.get(name, ())):
            yield Finding(
                level=Level.WARNING,
                where="schemas",
                what=f"versions of the schema call one member of {name}, which {_IDENTITY}, {' and '.join(called)}: "
                "the same event of two versions would be two",
                advice=f"declare {name} as an integer, which counts the member by its number (`oncehouse rekey` "
                "changes a ledger that has events)",
            )


def _advise(pipeline: Pipeline, field: RequiredField) -> str:
    name = field.name
    if pipeline.source.format != "protobuf":
        found = f"if it was renamed, give its other name under source.avro.aliases ({name}: […])"
    elif len(field.steps) > 1:
        found = (
            f"if it was renamed and kept its number, declare {name} in source.fields as a field of its own, not "
            f"as a part of a Tuple, because parts are found by name, and give the numbers of its path under "
            f"source.protobuf.numbers ({name}: […]) (`oncehouse rekey` changes a ledger that has events)"
        )
    else:
        found = (
            f"if it was renamed and kept its number, give that under source.protobuf.numbers ({name}: …) or set "
            "source.protobuf.match to number"
        )
    return (
        f"{found}; if its records may all count with the default, list it under source.optional_fields; else leave the "
        f"version out of the file. {_REPLAY}"
    )


def reject_versions(decoded: Decoded, refused: Mapping[str, str]) -> Decoded:
    """For records that were decoded once, under another rule."""
    if decoded.schemas is None or not refused:
        return decoded
    found: list[Rejection] = []
    for name in pc.unique(decoded.schemas).to_pylist():
        if name in refused:
            problem = RejectionCause(reason=Reason.MISSING_FIELD, detail=refused[name])
            mine = pc.equal(decoded.schemas, name).fill_null(fill_value=False)
            places = decoded.taken[mine.to_numpy(zero_copy_only=False)].tolist()
            found += [problem.at(place) for place in places]
    return reject_rows(decoded, found)
