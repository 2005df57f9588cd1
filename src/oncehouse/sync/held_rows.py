"""The rows that the table holds for some keys, which collapsing engines cancel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from oncehouse.clickhouse.insert import encode_block
from oncehouse.clickhouse.names import quote, quote_table
from oncehouse.columns import clickhouse_name
from oncehouse.sync.blocks import make_block
from oncehouse.sync.declaration import Declaration
from oncehouse.sync.engines import Row
from oncehouse.sync.operations import spell_key

if TYPE_CHECKING:
    from oncehouse.clickhouse.client import Client

_KEYS = "oncehouse_keys"


def read_held_rows(client: Client, declared: Declaration, rows: Sequence[Row]) -> dict[str, Row]:
    """By key, for the keys of `rows`. The caller's former batch has been accepted, so nothing is under way."""
    key_types = {name: declared.columns[name] for name in declared.key}
    keys = [[row[place] for row in rows] for place in declared.key_places]
    names = ", ".join(quote(name) for name in declared.key)
    wanted = ", ".join(quote(name) for name in (*declared.columns, *declared.engine.held_columns()))
    found = client.query_over(
        f"SELECT {wanted} FROM {quote_table(declared.table)} FINAL "  # noqa: S608 - identifiers are quoted
        f"WHERE ({names}) IN (SELECT {names} FROM {_KEYS})",
        name=_KEYS,
        structure=", ".join(f"{quote(name)} {clickhouse_name(type_)}" for name, type_ in key_types.items()),
        stream=encode_block(make_block(key_types, keys)),
    )
    return {spell_key([row[place] for place in declared.key_places]): tuple(row) for row in found}
