"""What a sync's table shows, compared with rows that are sent along: ClickHouse does it, and answers with places.

Both sides are hashed by the server from values of the declared types, so nothing depends on how a driver spells a
value, and rows never come back. Rows "shown" are those of FINAL, and of an Append table each key's newest unless it is
marked as deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oncehouse.clickhouse.identifiers import quote, quote_table
from oncehouse.clickhouse.insert.repeatable_block import encode_block
from oncehouse.clickhouse.replica_sync import read_in_step
from oncehouse.column_types.types import (
    Array,
    ColumnType,
    Integer,
    Map,
    Tuple,
    bare,
    clickhouse_name,
    is_nullable,
    quote_text,
)
from oncehouse.sync.model.arrow_rows import make_block
from oncehouse.sync.model.declaration import Declaration
from oncehouse.sync.model.engines import Append, Collapsing, Row

if TYPE_CHECKING:
    from oncehouse.clickhouse.client import Client

_SENT = "oncehouse_sent"
_PLACE = "oncehouse_place"
_ABSENT = "oncehouse_absent"
# Names that no column of a model has.
_SIDE, _HASH, _COUNT, _SHOWN_HASH, _NUMBER = (
    f"oncehouse_{name}" for name in ("side", "hash", "count", "shown_hash", "number")
)
_OWN: dict[str, ColumnType] = {
    _PLACE: Integer(bits=32, signed=False),
    _ABSENT: Integer(bits=8, signed=False),
}


@dataclass(frozen=True, kw_only=True)
class DifferingKey:
    """A key whose row in the database is not what the table shows."""

    place: int
    """Where it stands among the rows that were sent along, absent ones behind present ones."""
    state: tuple[int, ...]
    """Checksums of both sides, and the number of the reading that the table holds: the same while nothing changed."""
    absent: bool
    """The database has no row."""
    shown: bool
    """The table has one."""


class VisibleRows:
    def __init__(self, client: Client, declared: Declaration) -> None:
        self._client = client
        self._declared = declared
        self._table = quote_table(declared.table)
        self._key = ", ".join(quote(name) for name in declared.key)
        # Of the types that were declared, should the table have wider ones.
        self._columns = ", ".join(
            f"CAST({quote(name)} AS {clickhouse_name(type_)}) AS {quote(name)}"
            for name, type_ in declared.columns.items()
        )
        self._hash = f"cityHash64({', '.join(_hashed(n, t) for n, t in declared.columns.items())})"

    def list_keys(self, after: Row | None, limit: int, *, since: int | None = None) -> list[tuple[Any, ...]]:
        """Of rows behind this one in ClickHouse's order, deleted ones included; of readings from `since` on."""
        conditions = []
        if after is not None:
            # A comparison of tuples alone does not use the primary key.
            first = quote(self._declared.key[0])
            conditions.append(f"{first} >= (SELECT {first} FROM {_SENT})")  # noqa: S608 - identifiers are quoted
            conditions.append(f"({self._key}) > (SELECT {self._key} FROM {_SENT})")  # noqa: S608
        if since is not None:
            conditions.append(f"{quote(self._declared.engine.number_column() or '')} >= {since:d}")
        where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
        return self._ask(
            f"SELECT {self._key} FROM {self._table} {where}"  # noqa: S608 - identifiers are quoted
            f"ORDER BY {self._key} LIMIT 1 BY {self._key} LIMIT {limit:d}",
            [] if after is None else [after],
            [],
        )

    def is_same(self, present: Sequence[Row], absent: Sequence[Row]) -> bool:
        """Whether count and checksum of these rows are those of the rows shown for all these keys."""
        totals = {
            source: (count, checksum)
            for source, count, checksum in self._ask(
                f"SELECT {_SIDE}, count(), sum({_HASH}) FROM ("  # noqa: S608
                f"SELECT 0 AS {_SIDE}, {self._hash} AS {_HASH} FROM {_SENT} WHERE {_ABSENT} = 0 "
                f"UNION ALL SELECT 1, {self._hash} FROM ({self._shown()})) GROUP BY {_SIDE}",
                present,
                absent,
            )
        }
        return totals.get(0) == totals.get(1)

    def find_differing(self, present: Sequence[Row], absent: Sequence[Row]) -> list[DifferingKey]:
        number = self._declared.engine.number_column()
        numbered = f"max({quote(number)})" if number else "0"
        count, checksum = f"ifNull({_COUNT}, 0)", f"ifNull({_SHOWN_HASH}, 0)"
        found = self._ask(
            f"SELECT {_PLACE}, {_ABSENT}, {_HASH}, {count}, {checksum}, ifNull({_NUMBER}, 0) "  # noqa: S608
            f"FROM (SELECT {_PLACE}, {_ABSENT}, {self._key}, {self._hash} AS {_HASH} FROM {_SENT}) AS sent "
            f"LEFT JOIN (SELECT {self._key}, toUInt64(count()) AS {_COUNT}, sum({self._hash}) AS {_SHOWN_HASH}, "
            f"{numbered} AS {_NUMBER} FROM ({self._shown()}) GROUP BY {self._key}) AS shown USING ({self._key}) "
            # A row that is shown twice with the right values is doubled, not stale.
            f"WHERE if({_ABSENT} = 1, {count} != 0, {count} = 0 OR {checksum} != {_HASH} * {count})",
            present,
            absent,
        )
        return [
            DifferingKey(
                place=place, absent=bool(gone), shown=count > 0, state=(gone, ours, count, theirs, read)
            )
            for place, gone, ours, count, theirs, read in found
        ]

    def find_doubled(self, rows: Sequence[Row]) -> list[int]:
        """Places of keys that have a row twice: of one reading, or by the sum of their signs."""
        match self._declared.engine:
            case Append(version=str(version)):
                group, condition = f"{self._key}, {quote(version)}", "count() > 1"
            case Collapsing(sign=sign):
                group, condition = self._key, f"sum({quote(sign)}) NOT IN (0, 1)"
            case _:
                return []
        found = self._ask(
            f"SELECT {_PLACE} FROM {_SENT} WHERE ({self._key}) IN (SELECT {self._key} FROM {self._table} "  # noqa: S608
            f"WHERE {self._among()} GROUP BY {group} HAVING {condition})",
            rows,
            [],
        )
        return [place for (place,) in found]

    def _shown(self) -> str:
        """The rows shown for the keys that are sent along."""
        # Casts stand outside: with them inside, the condition on the key would not use the primary key.
        own = "".join(f", {quote(name)}" for name in self._declared.engine.own_columns())
        match self._declared.engine:
            case Append(version=str(version), deleted=deleted):
                alive = f" WHERE {quote(deleted)} = 0" if deleted else ""
                return (
                    f"SELECT {self._columns}{own} FROM (SELECT * FROM {self._table} WHERE {self._among()} "  # noqa: S608
                    f"ORDER BY {quote(version)} DESC LIMIT 1 BY {self._key}){alive}"
                )
            case _:
                kept = ", ".join(quote(name) for name in self._declared.columns)
                return (
                    f"SELECT {self._columns}{own} FROM "  # noqa: S608
                    f"(SELECT {kept}{own} FROM {self._table} FINAL WHERE {self._among()})"
                )

    def _among(self) -> str:
        return f"({self._key}) IN (SELECT {self._key} FROM {_SENT})"  # noqa: S608

    def _ask(self, sql: str, present: Sequence[Row], absent: Sequence[Row]) -> list[tuple[Any, ...]]:
        types = {**_OWN, **self._declared.columns}
        rows = [*present, *absent]
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(self._declared.columns)
        gone = [0] * len(present) + [1] * len(absent)
        structure = ", ".join(f"{quote(name)} {clickhouse_name(type_)}" for name, type_ in types.items())
        stream = encode_block(make_block(types, [range(len(rows)), gone, *columns]))
        return read_in_step(
            self._client,
            [self._declared.table],
            lambda reader: reader.query_over(sql, name=_SENT, structure=structure, stream=stream),
        )


def _hashed(name: str, type_: ColumnType) -> str:
    """What is hashed of a column: ClickHouse's hash is null for a null, and in a tuple passes over its neighbours."""
    column, inner = quote(name), bare(type_)
    if _is_nested(inner):
        return f"toString({column})"
    if is_nullable(type_):
        return f"isNull({column}), ifNull({column}, defaultValueOfTypeName({quote_text(clickhouse_name(inner))}))"
    return column


def _is_nested(inner: ColumnType) -> bool:
    if isinstance(inner, Array):
        return isinstance(bare(inner.item), Array | Map | Tuple)
    return isinstance(inner, Map | Tuple)
