"""Avro values as columns of the declared types, for all bodies of one schema at once.

The declared fields lead: what they name is read, all else is passed over. Each branch of a union is converted to
the declared type by itself (`convert/convert.py`), so that a value's type in Avro may differ from message to message. A
body whose value cannot be converted is rejected; nothing here raises for any bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from oncehouse.column_types import types as c
from oncehouse.pipeline.convert.arrow_buffers import Offsets
from oncehouse.pipeline.convert.convert import convert
from oncehouse.pipeline.convert.rejection import Reason, RejectionCause
from oncehouse.pipeline.convert.value_errors import find_problem
from oncehouse.pipeline.formats.avro import schema as s
from oncehouse.pipeline.formats.avro.cursor import Bodies, Cursor
from oncehouse.pipeline.formats.avro.default_writer import write_default
from oncehouse.pipeline.formats.avro.field_lookup import (
    Aliases,
    match_field,
    newest_node,
    pair_branches,
    split_path,
)
from oncehouse.pipeline.formats.avro.lists import find_items, read_choices, reject_deep, skip, split_branches
from oncehouse.pipeline.formats.avro.values import read_duration, read_enum, read_leaf


@dataclass(frozen=True, kw_only=True)
class Aliased(c.ColumnType):
    """Fields of a record that may have other names in other versions."""

    aliases: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Names that the pipeline file says a field has in other versions."""
    exact: tuple[str, ...] = ()
    """Fields whose enums keep symbols that the newest schema lacks."""

    def aliases_of(self, name: str) -> tuple[str, ...]:
        return dict(self.aliases).get(name, ())


@dataclass(frozen=True, kw_only=True)
class OpenedRecord(Aliased):
    """Fields of a record that are wanted by their paths: the record itself may be missing."""

    fields: tuple[tuple[str, c.ColumnType], ...]


@dataclass(frozen=True, kw_only=True)
class AliasedTuple(Aliased, c.Tuple):
    """A record that is declared whole."""


@dataclass(frozen=True, kw_only=True)
class _Names:
    """What the pipeline file and the identity say of declared paths."""

    aliases: Aliases
    exact: frozenset[str]

    def among(self, names: Sequence[str], above: str) -> dict[str, Any]:
        """Of the fields of one record: `aliases` and `exact` of its type."""
        return {
            "aliases": tuple(
                (name, tuple(self.aliases[above + name])) for name in names if above + name in self.aliases
            ),
            "exact": tuple(name for name in names if above + name in self.exact),
        }


def open_paths(fields: Mapping[str, c.ColumnType], record: s.Record, names: _Names) -> OpenedRecord:
    """The declared fields as a tree of records."""
    tree: dict[Any, Any] = {}
    for name, type_ in fields.items():
        *above, last = split_path(name, record)
        inner = tree
        for step in above:
            inner = inner.setdefault((step,), {})
        inner[last] = type_
    return _freeze(tree, names, "")


def _freeze(tree: Mapping[Any, Any], known: _Names, above: str) -> OpenedRecord:
    """Steps of paths are keyed by tuples, so that `a` and `a.b` may both be wanted."""
    names = [key[0] if isinstance(key, tuple) else key for key in tree]
    return OpenedRecord(
        fields=tuple(
            (
                name,
                _freeze(value, known, f"{above}{name}.")
                if isinstance(key, tuple)
                else _with_names(value, known, f"{above}{name}."),
            )
            for name, (key, value) in zip(names, tree.items(), strict=True)
        ),
        **known.among(names, above),
    )


def _with_names(type_: c.ColumnType, known: _Names, above: str) -> c.ColumnType:
    """A Tuple's parts are found as fields that are declared by their paths are."""
    if isinstance(type_, c.Nullable):
        return c.Nullable(inner=_with_names(type_.inner, known, above))
    if not isinstance(type_, c.Tuple):
        return type_
    return AliasedTuple(
        fields=tuple((name, _with_names(part, known, f"{above}{name}.")) for name, part in type_.fields),
        **known.among([name for name, _ in type_.fields], above),
    )


class AvroReader:
    """Reads bodies of one schema, the writer's; the newest schema gives aliases and defaults.

    The newest is walked next to the writer's, so that each record, enum and field has what it became.
    """

    def __init__(
        self,
        *,
        writer: s.Record,
        newest: s.Record,
        fields: Mapping[str, c.ColumnType],
        max_depth: int,
        aliases: Aliases = MappingProxyType({}),
        exact: Collection[str] = (),
    ) -> None:
        """`exact`: fields whose values no default of the newest schema may replace."""
        self._writer = writer
        self._newest = newest
        self._fields = dict(fields)
        self._wanted = open_paths(fields, newest, _Names(aliases=aliases, exact=frozenset(exact)))
        self._max_depth = max_depth
        self._defaults: dict[tuple[str, str, c.ColumnType], pa.Array | RejectionCause] = {}

    def read(self, bodies: Bodies) -> list[pa.Array]:
        """One array a declared field; rows of bodies that are no longer sound mean nothing."""
        cursor = bodies.open()
        columns = self._read_fields(cursor, self._writer, self._newest, self._wanted, "", 1)
        over = cursor.left > 0
        left = cursor.left
        cursor.reject(
            over,
            lambda slot: RejectionCause(
                reason=Reason.MALFORMED, detail=f"{left[slot]} bytes are left after the record's end"
            ),
        )
        found = dict(_name_paths(self._wanted, columns, ""))
        return [found[name] for name in self._fields]

    # -- nested -------------------------------------------------------------------------------------------

    def _read(  # noqa: PLR0911 - one case a kind
        self,
        cursor: Cursor,
        node: s.Node,
        later: s.Node | None,
        type_: c.ColumnType,
        path: str,
        depth: int,
    ) -> pa.Array:
        """`later` stands at the node's place in the newest schema."""
        if isinstance(node, s.Union):
            return self._read_union(cursor, node, later, type_, path, depth)
        later = pair_branches(node, later)[0][1]
        match node, c.bare(type_):
            case s.Record(), (c.Tuple() | OpenedRecord()) as wanted:
                known = later if isinstance(later, s.Record) else None
                children = self._read_fields(cursor, node, known, wanted, path, depth + 1)
                return _struct(children, wanted, len(cursor))
            case s.AvroArray(), c.Array(item=item):
                below = later.item if isinstance(later, s.AvroArray) else None
                items = find_items(cursor, node, path, depth=depth + 1, max_depth=self._max_depth)
                values = self._read(items.cursor, node.item, below, item, f"{path}[]", depth + 1)
                return pa.ListArray.from_arrays(_bounds(items.counts), values, type=column_arrow_type(type_))
            case s.AvroMap(), c.Map() as map_type:
                below = later.value if isinstance(later, s.AvroMap) else None
                return self._read_map(cursor, node, below, map_type, path, depth + 1)
            case s.Fixed(logical="duration"), c.Tuple():
                return self._convert_values(cursor, read_duration(cursor, path), type_, path)
            case ((s.Record() | s.AvroArray() | s.AvroMap()), _):
                return self._refuse(cursor, node, type_, path, depth)
            case _, OpenedRecord():
                return self._refuse(cursor, node, type_, path, depth)
            case s.AvroEnum(), _:
                known_enum = later if isinstance(later, s.AvroEnum) else None
                return self._convert_values(cursor, read_enum(cursor, node, known_enum, path), type_, path)
            case _:
                return self._convert_values(cursor, read_leaf(cursor, node, type_, path), type_, path)

    def _read_fields(
        self,
        cursor: Cursor,
        record: s.Record,
        newest: s.Record | None,
        record_type: c.Tuple | OpenedRecord,
        path: str,
        depth: int,
    ) -> list[pa.Array]:
        reject_deep(cursor, path, depth, self._max_depth)
        fields = record_type.fields
        wanted: dict[str, list[int]] = {}
        nodes: list[s.Node | None] = []
        for place, (name, _) in enumerate(fields):
            aliases = record_type.aliases_of(name) if isinstance(record_type, Aliased) else ()
            found = match_field(record, newest, name, aliases)
            wanted.setdefault(found.name if found else "", []).append(place)
            exact = isinstance(record_type, Aliased) and name in record_type.exact
            nodes.append(newest_node(found, newest, name, aliases) if found and not exact else None)
        columns: list[pa.Array | None] = [None] * len(fields)
        for field in record.fields:
            below = f"{path}.{field.name}" if path else f"field {field.name}"
            places = wanted.get(field.name, [])
            if not places:
                skip(cursor, field.node, below, depth=depth, max_depth=self._max_depth)
            start = cursor.at
            for place in places:  # wanted twice, as a whole and by a path into it, it is read twice
                cursor.at = start.copy() if len(places) > 1 else start
                columns[place] = self._read(cursor, field.node, nodes[place], fields[place][1], below, depth)
        for place in wanted.get("", []):
            name, type_ = fields[place]
            columns[place] = self._fill(
                cursor, newest, name, type_, f"{path}.{name}" if path else f"field {name}"
            )
        return [column for column in columns if column is not None]

    def _read_union(
        self,
        cursor: Cursor,
        union: s.Union,
        later: s.Node | None,
        type_: c.ColumnType,
        path: str,
        depth: int,
    ) -> pa.Array:
        chosen = read_choices(cursor, len(union.branches), path)
        counterparts = [known for _, known in pair_branches(union, later)]
        taken_slots: list[Offsets] = []
        arrays: list[pa.Array] = []
        for slots, number in split_branches(chosen, len(union.branches)):
            part = cursor.pick(slots)
            taken_slots.append(slots)
            arrays.append(self._read(part, union.branches[number], counterparts[number], type_, path, depth))
            cursor.put_back(slots, part)
        if len(arrays) == 1:
            return arrays[0]
        if not arrays:
            return pa.nulls(0, column_arrow_type(type_))
        order = np.argsort(np.concatenate(taken_slots), kind="stable")
        return pa.concat_arrays(arrays).take(pa.array(order))

    def _read_map(
        self, cursor: Cursor, node: s.AvroMap, later: s.Node | None, type_: c.Map, path: str, depth: int
    ) -> pa.Array:
        items = find_items(cursor, node, path, depth=depth, max_depth=self._max_depth)
        keys = self._read(items.cursor, s.Primitive(name="string"), None, c.String(), f"{path} key", depth)
        values = self._read(items.cursor, node.value, later, type_.value, f"{path}[]", depth)
        pairs = pa.StructArray.from_arrays([keys, values], names=["key", "value"])
        lists = pa.ListArray.from_arrays(_bounds(items.counts), pairs)
        return self._convert_values(cursor, lists, type_, path)

    def _refuse(self, cursor: Cursor, node: s.Node, type_: c.ColumnType, path: str, depth: int) -> pa.Array:
        skip(cursor, node, path, depth=depth, max_depth=self._max_depth)
        named = "a record" if isinstance(type_, OpenedRecord) else c.clickhouse_name(type_)
        if isinstance(node, s.Primitive) and node.name == "null" and isinstance(type_, OpenedRecord):
            return self._missing(cursor, type_, path)
        problem = RejectionCause(
            reason=Reason.WRONG_TYPE, detail=f"{path}: Avro's {s.describe(node)} cannot be {named}"
        )
        cursor.reject(np.ones(len(cursor), dtype=np.bool_), lambda _: problem)
        return pa.nulls(len(cursor), column_arrow_type(type_))

    # -- missing fields -----------------------------------------------------------------------------------

    def _fill(
        self, cursor: Cursor, newest: s.Record | None, name: str, type_: c.ColumnType, path: str
    ) -> pa.Array:
        """The newest schema's default for a field that the writer did not know; null where there is none."""
        known = next((entry for entry in newest.fields if entry.name == name), None) if newest else None
        if known is None or known.default is s.NO_DEFAULT:
            return self._missing(cursor, type_, path)
        key = (newest.name if newest else "", name, type_)
        if key not in self._defaults:
            self._defaults[key] = self._read_default(known, type_, path)
        default = self._defaults[key]
        if isinstance(default, RejectionCause):
            problem = default
            cursor.reject(np.ones(len(cursor), dtype=np.bool_), lambda _: problem)
            return pa.nulls(len(cursor), column_arrow_type(type_))
        return default.take(pa.array(np.zeros(len(cursor), dtype=np.int32)))

    def _read_default(self, field: s.Field, type_: c.ColumnType, path: str) -> pa.Array | RejectionCause:
        """Written as Avro and read back, so that a default means what the same value means in a message."""
        try:
            body = write_default(field.node, field.default)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return RejectionCause(
                reason=Reason.MISSING_FIELD, detail=f"{path}: the schema's default is not of its type"
            )
        bodies = Bodies(pa.array([body], pa.binary()))
        array = self._read(bodies.open(), field.node, field.node, type_, path, 1)
        return bodies.problems.get(0, array)

    def _missing(self, cursor: Cursor, type_: c.ColumnType, path: str) -> pa.Array:
        if isinstance(type_, OpenedRecord):
            children = [self._missing(cursor, inner, f"{path}.{name}") for name, inner in type_.fields]
            return _struct(children, type_, len(cursor))
        return self._convert_values(cursor, pa.nulls(len(cursor)), type_, path)

    # -- scalars ------------------------------------------------------------------------------------------

    def _convert_values(self, cursor: Cursor, array: pa.Array, type_: c.ColumnType, path: str) -> pa.Array:
        converted = convert(array, type_)
        if converted.bad is not None:
            cursor.reject(converted.bad, lambda slot: find_problem(array, slot, type_, path))
        return converted.array


def column_arrow_type(type_: c.ColumnType) -> pa.DataType:
    if isinstance(type_, OpenedRecord):
        return pa.struct([(name, column_arrow_type(inner)) for name, inner in type_.fields])
    return c.arrow_type(type_)


def _struct(children: list[pa.Array], type_: c.ColumnType, rows: int) -> pa.Array:
    fields = list(column_arrow_type(type_))
    if not fields:
        return pa.nulls(rows, pa.struct([]))
    return pa.StructArray.from_arrays(children, fields=fields)


def _bounds(counts: Offsets) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())


def _name_paths(opened: OpenedRecord, columns: list[pa.Array], above: str) -> Iterator[tuple[str, pa.Array]]:
    """The columns under the names that they were declared with."""
    for (name, type_), column in zip(opened.fields, columns, strict=True):
        if isinstance(type_, OpenedRecord):
            inner = [column.field(place) for place in range(len(type_.fields))]
            yield from _name_paths(type_, inner, f"{above}{name}.")
        else:
            yield f"{above}{name}", column
