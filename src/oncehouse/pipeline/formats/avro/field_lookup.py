"""Which field of an Avro record a declared name means: by name, by the pipeline file's aliases, by those of schemas.

The writer's schema says what a message holds; the newest one knows what became of its fields since.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from oncehouse.ledger.models import Schema
from oncehouse.pipeline.formats.avro import schema as s

Aliases = Mapping[str, Sequence[str]]
"""Declared field or path, and the names that its last step has elsewhere."""


def match_field(
    record: s.Record, newest: s.Record | None, name: str, aliases: Sequence[str] = ()
) -> s.Field | None:
    """The writer's field of this name, or the one that an alias ties to it: the file's, the writer's, the newest's."""
    by_name = {field.name: field for field in record.fields}
    for known in (name, *aliases):
        if known in by_name:
            return by_name[known]
    for field in record.fields:
        if name in field.aliases:
            return field
    later = next((entry for entry in newest.fields if entry.name == name), None) if newest else None
    former = later.aliases if later else ()
    return next((field for field in record.fields if field.name in former), None)


def split_path(name: str, newest: s.Record) -> tuple[str, ...]:
    """The steps of a declared name: a dot leads into a record, unless a field has it in its name."""
    return (name,) if any(entry.name == name for entry in newest.fields) else tuple(name.split("."))


def has_field(record: s.Record, newest: s.Record, steps: Sequence[str], aliases: Aliases) -> bool:
    """Whether a message of this version brings the field of the path itself, whatever default the newest has.

    Of the records of a union one must have it; one without it must not get it from the newest schema either.
    """
    known = records_by_name(newest)
    known.setdefault(short_name(record.name), newest)
    open_records = [record]
    for at, step in enumerate(steps):
        own = aliases.get(".".join(steps[: at + 1]), ())
        inner: list[s.Record] = []
        there = False
        for each in open_records:
            later = known.get(short_name(each.name))
            field = match_field(each, later, step, own)
            if field is not None:
                there = True
                inner += _records_in(field.node)
            elif later is not None and any(entry.name == step for entry in later.fields):
                return False
        if not there:
            return False
        open_records = inner
    return True


def _records_in(node: s.Node) -> list[s.Record]:
    branches = node.branches if isinstance(node, s.Union) else (node,)
    return [branch for branch in branches if isinstance(branch, s.Record)]


def short_name(name: str) -> str:
    return name.rpartition(".")[2]


def records_by_name(record: s.Record) -> dict[str, s.Record]:
    """All records of a schema by their names without namespace, which renaming a package changes."""
    found: dict[str, s.Record] = {}
    open_nodes: list[s.Node] = [record]
    while open_nodes:
        match open_nodes.pop():
            case s.Record() as inner if short_name(inner.name) not in found:
                found[short_name(inner.name)] = inner
                open_nodes += [field.node for field in inner.fields]
            case s.Array(item=node) | s.Map(value=node):
                open_nodes.append(node)
            case s.Union(branches=branches):
                open_nodes += branches
    return found


def parse_versions(schemas: Sequence[Schema]) -> dict[str, s.Record]:
    """The Avro records among the schemas, the newest last: 10 after 9, whichever became known first."""
    mine = sorted((known for known in schemas if known.format == "avro"), key=_version_order)
    return {known.schema: _parse(known.definition, known.schema) for known in mine}


@lru_cache(maxsize=256)
def _parse(definition: str, version: str) -> s.Record:
    """Kept, because the same schemas are asked for before each epoch."""
    return s.parse_schema(definition, where=f"schema {version}")


def _version_order(known: Schema) -> list[tuple[int, str]]:
    """Versions as people count them."""
    pieces = re.split(r"([0-9]+)", known.schema)
    return [(int(piece), "") if piece.isdigit() else (0, piece) for piece in pieces]
