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
    open_records: list[tuple[s.Record, s.Record | None]] = [(record, newest)]
    for at, step in enumerate(steps):
        own = aliases.get(".".join(steps[: at + 1]), ())
        inner: list[tuple[s.Record, s.Record | None]] = []
        there = False
        for each, later in open_records:
            field = match_field(each, later, step, own)
            if field is not None:
                there = True
                inner += _records_in(field.node, newest_node(field, later, step, own))
            elif later is not None and any(entry.name == step for entry in later.fields):
                return False
        if not there:
            return False
        open_records = inner
    return True


def _records_in(node: s.Node, later: s.Node | None) -> list[tuple[s.Record, s.Record | None]]:
    return [
        (branch, counterpart if isinstance(counterpart, s.Record) else None)
        for branch, counterpart in pair_branches(node, later)
        if isinstance(branch, s.Record)
    ]


# -- what stands at the same place of the newest schema ------------------------------------------------------


def newest_node(
    field: s.Field, newest: s.Record | None, name: str, aliases: Sequence[str] = ()
) -> s.Node | None:
    """What the newest schema has where the writer has this field, which is declared by this name."""
    if newest is None:
        return None
    found = match_field(newest, None, name, aliases) or match_field(newest, None, field.name)
    return None if found is None else found.node


def pair_branches(node: s.Node, later: s.Node | None) -> list[tuple[s.Node, s.Node | None]]:
    """Each branch of a writer's node, itself where it is no union, with what it became in the newest schema.

    Names count in full first, then by aliases, then without namespace, which renaming a package changes.
    """
    mine = node.branches if isinstance(node, s.Union) else (node,)
    theirs = list(later.branches) if isinstance(later, s.Union) else [later] if later is not None else []
    if not isinstance(node, s.Union) and not isinstance(later, s.Union):
        # The place says which type is meant, whatever it is called.
        return [(node, later if type(later) is type(node) else None)]
    found: dict[int, s.Node] = {}
    for same in (_same_name, _same_alias, _same_short_name):
        for place, branch in enumerate(mine):
            known = [one for one in theirs if type(one) is type(branch) and same(branch, one)]
            if place not in found and len(known) == 1:
                found[place] = known[0]
        theirs = [one for one in theirs if not any(one is taken for taken in found.values())]
    return [(branch, found.get(place)) for place, branch in enumerate(mine)]


def _same_name(branch: s.Node, later: s.Node) -> bool:
    return s.describe_branch(branch) == s.describe_branch(later)


def _same_alias(branch: s.Node, later: s.Node) -> bool:
    return isinstance(later, s.Record | s.AvroEnum) and s.describe_branch(branch) in later.aliases


def _same_short_name(branch: s.Node, later: s.Node) -> bool:
    return _short_name(s.describe_branch(branch)) == _short_name(s.describe_branch(later))


def _short_name(name: str) -> str:
    return name.rpartition(".")[2]


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
