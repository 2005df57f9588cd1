"""What the table holds for some keys: the rows that collapsing engines cancel, and whether it has any at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from oncehouse.clickhouse.identifiers import quote, quote_table
from oncehouse.clickhouse.insert.repeatable_block import encode_block
from oncehouse.clickhouse.replica_sync import read_in_step
from oncehouse.column_types.types import ColumnType, Integer, clickhouse_name
from oncehouse.sync.changes.change import format_key
from oncehouse.sync.model.arrow_rows import make_block
from oncehouse.sync.model.declaration import Declaration
from oncehouse.sync.model.engines import Row

if TYPE_CHECKING:
    from oncehouse.clickhouse.client import Client

_KEYS = "oncehouse_keys"
_PLACE = "oncehouse_place"


def read_existing_rows(client: Client, declared: Declaration, rows: Sequence[Row]) -> dict[str, Row]:
    """By key, for the keys of `rows`. The caller's former batch has been accepted, so nothing is under way."""
    key_types = {name: declared.columns[name] for name in declared.key}
    keys = [[row[place] for row in rows] for place in declared.key_places]
    names = ", ".join(quote(name) for name in declared.key)
    wanted = ", ".join(quote(name) for name in (*declared.columns, *declared.engine.version_columns()))
    found = _ask(
        client,
        declared,
        f"SELECT {wanted} FROM {quote_table(declared.table)} FINAL "  # noqa: S608 - identifiers are quoted
        f"WHERE ({names}) IN (SELECT {names} FROM {_KEYS})",
        key_types,
        keys,
    )
    return {format_key([row[place] for place in declared.key_places]): tuple(row) for row in found}


def find_existing_keys(client: Client, declared: Declaration, rows: Sequence[Row]) -> set[str]:
    """Of the keys of these rows those that the table has a row of, deleted or cancelled ones included."""
    if not rows:
        return set()
    types = {_PLACE: Integer(bits=32, signed=False)} | {name: declared.columns[name] for name in declared.key}
    values: list[Sequence[Any]] = [range(len(rows))]
    values += [[row[place] for row in rows] for place in declared.key_places]
    names = ", ".join(quote(name) for name in declared.key)
    found = _ask(
        client,
        declared,
        f"SELECT {_PLACE} FROM {_KEYS} WHERE ({names}) IN "  # noqa: S608 - identifiers are quoted
        f"(SELECT {names} FROM {quote_table(declared.table)} WHERE ({names}) IN (SELECT {names} FROM {_KEYS}))",
        types,
        values,
    )
    # By their places, so that nothing depends on how ClickHouse spells a key.
    return {format_key([rows[place][at] for at in declared.key_places]) for (place,) in found}


def _ask(
    client: Client,
    declared: Declaration,
    sql: str,
    types: dict[str, ColumnType],
    values: Sequence[Sequence[Any]],
) -> list[tuple[Any, ...]]:
    """On a replica that is in step: rows that one does not show would be cancelled wrongly, or not at all."""
    structure = ", ".join(f"{quote(name)} {clickhouse_name(type_)}" for name, type_ in types.items())
    stream = encode_block(make_block(types, values))
    return read_in_step(
        client,
        [declared.table],
        lambda reader: reader.query_over(sql, name=_KEYS, structure=structure, stream=stream),
    )
