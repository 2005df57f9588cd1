"""Which field of an Avro record a declared name means: by name, by the pipeline file's aliases, by those of schemas.

The writer's schema says what a message holds; the newest one knows what became of its fields since.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from oncehouse.ledger.records import Schema
from oncehouse.pipeline import avro_schema as s

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
    """Whether every record that a message of this version may hold at the path has its field."""
    known = records_by_name(newest)
    known.setdefault(short_name(record.name), newest)
    open_records = [record]
    for at, step in enumerate(steps):
        own = aliases.get(".".join(steps[: at + 1]), ())
        found = [match_field(each, known.get(short_name(each.name)), step, own) for each in open_records]
        if any(field is None for field in found):
            return False
        open_records = [inner for field in found if field is not None for inner in _records_in(field.node)]
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
    return {known.schema: s.parse_schema(known.definition, where=f"schema {known.schema}") for known in mine}


def _version_order(known: Schema) -> list[tuple[int, str]]:
    """Versions as people count them."""
    pieces = re.split(r"([0-9]+)", known.schema)
    return [(int(piece), "") if piece.isdigit() else (0, piece) for piece in pieces]
