"""Reads the tables to be captured from PostgreSQL: columns, primary key, replica identity.

Changes nothing. Names come from the user and from the database; they are bound as parameters, and checked before they
are written to a connector's file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, RowMapping, text

from oncehouse.config.field_types import MAX_NAME_LENGTH
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.cdc.column_types import PostgresColumn

# Names that Debezium copies into topic names unchanged; it would replace other characters.
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_REFUSES_FULL = 180_000
_FIND_TABLE = text(
    "SELECT c.oid, c.relreplident, current_setting('server_version_num')::int AS version "
    "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE n.nspname = :schema AND c.relname = :name AND c.relkind IN ('r', 'p')"
)
_LIST_COLUMNS = text(
    "SELECT attnum, attname, atttypid, atttypmod, attnotnull, attstorage, attgenerated FROM pg_attribute "
    "WHERE attrelid = :table AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
)
_LIST_TYPES = text(
    "SELECT oid, typname, typtype, typcategory, typelem, typbasetype, typtypmod FROM pg_type WHERE typisdefined"
)
_FIND_KEY = text("SELECT indkey::int2[] AS columns FROM pg_index WHERE indrelid = :table AND indisprimary")


@dataclass(frozen=True, kw_only=True)
class SourceTable:
    schema: str
    name: str
    columns: tuple[PostgresColumn, ...]
    key: tuple[str, ...]
    full_identity: bool
    """Whether the log holds whole rows before a change: REPLICA IDENTITY FULL."""
    full_refused: bool = False
    """PostgreSQL 18 refuses updates of a published table that has generated columns and REPLICA IDENTITY FULL."""

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def may_miss_values(self) -> tuple[str, ...]:
        """Columns that an update may leave out of the log, because it did not touch them."""
        return () if self.full_identity else tuple(c.name for c in self.columns if c.may_be_toasted)


def parse_table_name(text_: str) -> tuple[str, str]:
    """`orders` or `sales.orders`, as schema and name."""
    schema, _, name = text_.rpartition(".")
    for piece in (schema or "public", name):
        if not _PLAIN.fullmatch(piece) or "." in piece or len(piece) > MAX_NAME_LENGTH:
            raise ConfigurationError(
                f"{text_!a} is not a table that can be captured; write `table` or `schema.table`, of letters, digits, "
                "'_' and '-': its name becomes the name of a topic"
            )
    return schema or "public", name


def read_table(connection: Connection, full_name: str) -> SourceTable:
    """Raises ConfigurationError for a table that is missing or cannot be captured."""
    schema, name = parse_table_name(full_name)
    found = connection.execute(_FIND_TABLE, {"schema": schema, "name": name}).mappings().first()
    if found is None:
        raise ConfigurationError(
            f"{schema}.{name}: there is no such table in the database that `database` names"
        )
    rows = connection.execute(_LIST_COLUMNS, {"table": found["oid"]}).mappings().all()
    types = {row["oid"]: row for row in connection.execute(_LIST_TYPES).mappings()}
    key = connection.execute(_FIND_KEY, {"table": found["oid"]}).scalar()
    if not key:
        raise ConfigurationError(
            f"{schema}.{name} has no primary key; without one nothing says which row of ClickHouse a change means. "
            "Add a primary key"
        )
    return SourceTable(
        schema=schema,
        name=name,
        columns=tuple(_make_column(row, types) for row in rows if not row["attgenerated"]),
        key=_name_key(rows, key),
        full_identity=found["relreplident"] == "f",
        full_refused=found["version"] >= _REFUSES_FULL and any(row["attgenerated"] for row in rows),
    )


def _name_key(rows: Sequence[RowMapping], key: Sequence[int]) -> tuple[str, ...]:
    names = {row["attnum"]: row["attname"] for row in rows}
    return tuple(names[number] for number in key)


def _make_column(row: RowMapping, types: Mapping[int, RowMapping]) -> PostgresColumn:
    type_, modifier = types[row["atttypid"]], row["atttypmod"]
    while type_["typtype"] == "d":
        modifier = type_["typtypmod"] if modifier < 0 else modifier
        type_ = types[type_["typbasetype"]]
    is_array = type_["typcategory"] == "A" and type_["typelem"] in types
    element = types[type_["typelem"]] if is_array else type_
    return PostgresColumn(
        name=row["attname"],
        type_name=element["typname"],
        modifier=modifier,
        not_null=row["attnotnull"],
        is_enum=element["typtype"] == "e",
        is_array=is_array,
        may_be_toasted=row["attstorage"] in {"x", "e", "m"},
    )
