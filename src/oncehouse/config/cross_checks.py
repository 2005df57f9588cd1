"""What must hold between the sections of a pipeline, as problems with their keys.

Pure, and patient: a section that is not sound by itself has problems of its own and is left out here, so that
one look at a file shows everything that is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from oncehouse.config.problems import Path, Problem, nearest
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from oncehouse.column_types.types import ColumnType
    from oncehouse.config.pipeline import Identity, Table

_WITH_NEW_FIELDS = ("json", "jsonl", "protobuf", "avro")
_WITHOUT_SCHEMAS = ("json", "jsonl", "csv", "text", "debezium")
# Formats that say by themselves what makes an event unique.
_WITH_IDENTITY = ("debezium",)
# Of what says how declared fields are found, what the parts of a Tuple cannot have.
_BY_NUMBER: Path = ("protobuf", "numbers")


def find_contradictions(
    *,
    fields: Any,
    computed: Iterable[str] | None = (),
    format_: Any,
    identity: Any,
    rule: Identity | None,
    new_fields: Any,
    matched: Mapping[Path, Any],
    tables: Sequence[Table | None],
) -> list[Problem]:
    """What does not fit together; what is not sound by itself has its own problem and is left out here."""
    known = [name for name in fields if isinstance(name, str)] if isinstance(fields, Mapping) else None
    found: list[Problem] = []
    if known is not None:
        found += [
            Problem(path=("identity", "fields", at), text=_not_decoded(name, known, computed or ()))
            for at, name in enumerate(items(identity))
            if isinstance(name, str) and name not in known and not _is_path(name, fields)
        ]
        found += [
            Problem(path=("source", *place, key), text=_unknown_field(name, known))
            for place, names in matched.items()
            for key, name in _named_fields(names)
            if name not in known and not _is_path(name, fields)
        ]
        found += [
            Problem(path=("source", *_BY_NUMBER, key), text=_part_by_number(name))
            for key, name in _named_fields(matched.get(_BY_NUMBER))
            if name not in known and _is_path(name, fields)
        ]
    if rule is not None:
        found += _check_rule(rule, format_ or "json")
    if new_fields in {"add", "stop"}:
        found += _check_new_fields(new_fields, format_ or "json", tables)
    if known is not None and computed is not None:
        known += [name for name in computed if name not in known]
    else:
        known = None
    seen: dict[str, int] = {}
    declared: dict[tuple[str, str], int] = {}
    for at, table in enumerate(tables):
        if table is None:
            continue
        if table.name in seen:
            found.append(
                Problem(
                    path=("tables", at, "name"), text=f"{table.name!r} is already tables[{seen[table.name]}]"
                )
            )
        seen.setdefault(table.name, at)
        if table.declare is not None:
            source = (table.declare.offsets, table.declare.topic)
            if source in declared:
                text = f"{table.declare.topic!r} is declared for tables[{declared[source]}] already"
                text += (
                    "; what one table has says nothing of another's rows, so give each a source of its own"
                )
                found.append(Problem(path=("tables", at, "declare", "topic"), text=text))
            declared.setdefault(source, at)
        found += [
            Problem(path=("tables", at, *problem.path), text=problem.text)
            for problem in _check_table(table, known)
        ]
    return found


def _part_by_number(name: str) -> str:
    return (
        f"is a part of a Tuple, and parts are found by name; declare {name!r} in source.fields as a field of its own, "
        "and not in the Tuple (`oncehouse rekey` changes a ledger that has events, where the identity names it)"
    )


def _named_fields(names: Any) -> list[tuple[str | int, str]]:
    """The fields that keys of a mapping or items of a list name, each with its key."""
    listed = [(name, name) for name in names] if isinstance(names, Mapping) else enumerate(items(names))
    return [(key, name) for key, name in listed if isinstance(name, str)]


def _is_path(name: str, fields: Mapping[Any, Any]) -> bool:
    # Arrow comes with it, which few commands need.
    from oncehouse.column_types.parser import parse_type
    from oncehouse.column_types.types import find_path

    types: dict[str, ColumnType] = {}
    for field, text in fields.items():
        if isinstance(field, str) and isinstance(text, str):
            with suppress(ConfigurationError):
                types[field] = parse_type(text)
    return find_path(name, types) is not None


def _check_rule(rule: Identity, format_: str) -> list[Problem]:
    found = []
    named = rule.fields or rule.headers or rule.key or rule.from_schema is not False
    if not named and format_ not in _WITH_IDENTITY:
        text = "is missing; name the fields that make an event unique"
        found.append(Problem(path=("identity", "fields"), text=text))
    if rule.fields and rule.from_schema is not False:
        text = "stands next to identity.fields; let either the file or the schemas name the fields"
        found.append(Problem(path=("identity", "from_schema"), text=text))
    for key in ("from_schema", "schema_version"):
        if getattr(rule, key) is not False and format_ in _WITHOUT_SCHEMAS:
            text = f"{format_} has no schemas; use it with protobuf or avro"
            found.append(Problem(path=("identity", key), text=text))
    return found


def _check_new_fields(policy: str, format_: str, tables: Sequence[Table | None]) -> list[Problem]:
    path = ("source", "new_fields")
    if format_ not in _WITH_NEW_FIELDS:
        return [Problem(path=path, text=f"{format_} does not report new fields; leave it at ignore")]
    if policy == "add" and not any(table is None or table.columns is None for table in tables):
        text = "no table takes new fields, because all of them list their columns; leave `columns` out of one"
        return [Problem(path=path, text=text)]
    return []


def _check_table(table: Table, known: list[str] | None) -> list[Problem]:
    found: list[Problem] = []
    if known is not None:
        found += [
            Problem(path=("columns", column), text=_unknown_field(field, known))
            for column, field in (table.columns or {}).items()
            if field not in known
        ]
        if table.route is not None and table.route.field is not None and table.route.field not in known:
            found.append(Problem(path=("route", "field"), text=_unknown_field(table.route.field, known)))
    taken = set(table.columns or known or ())
    if table.declare is not None and table.declare.pos == "inserted" and "pos" in taken:
        text = "is `inserted`, but the pipeline sends the column `pos`; say `event` with a `lateness`"
        found.append(Problem(path=("declare", "pos"), text=text))
    for key, column in (("batch_column", table.batch_column), ("id_column", table.id_column)):
        if column is not None and column in taken:
            found.append(Problem(path=(key,), text=f"column {column!r} is already filled by another value"))
        taken.add(column or "")
    return found


def _unknown_field(name: str, known: list[str]) -> str:
    hint = nearest(name, known)
    return f"{name!r} is not declared in source.fields" + (f"; did you mean {hint!r}?" if hint else "")


def _not_decoded(name: str, known: list[str], computed: Iterable[str]) -> str:
    if name in computed:
        return f"{name!r} is computed; an event is known by its own fields alone, so name those it comes from"
    return _unknown_field(name, known)


def sound_types(fields: Any) -> dict[str, str] | None:
    """The declared types, when all of them can be read."""
    from oncehouse.column_types.parser import parse_type

    if not isinstance(fields, Mapping):
        return None
    types = {name: text for name, text in fields.items() if isinstance(name, str) and isinstance(text, str)}
    try:
        for text in types.values():
            parse_type(text)
    except ConfigurationError:
        return None
    return types if len(types) == len(fields) else None


def items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()
