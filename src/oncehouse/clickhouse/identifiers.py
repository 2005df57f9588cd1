"""Identifiers on their way into SQL: checked, then quoted with backticks.

Topic, table and field names are hostile input. What passes here is always one identifier, whatever
characters it holds; values never come this way, they are bound as query parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

from oncehouse.config.field_types import holds_control
from oncehouse.errors import ConfigurationError

LONGEST_NAME = 200  # a table's name becomes a file name on the server, which may have 255 bytes

PIPELINE_CONSUMER = "oncehouse pipeline"
"""Begins the names under which pipelines declare their tables; no scheduler has such a name."""


@dataclass(frozen=True, kw_only=True)
class TableName:
    """A table, in a database of its own or in the connection's."""

    database: str | None
    table: str

    @property
    def quoted(self) -> str:
        if self.database is None:
            return quote(self.table)
        return f"{quote(self.database)}.{quote(self.table)}"


def quote(name: str) -> str:
    """One identifier in backticks; refused when no sane table or column can bear the name."""
    check(name)
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def check(name: str) -> None:
    if not name:
        raise ConfigurationError("a table or column name is empty; give it a name")
    if len(name) > LONGEST_NAME:
        raise ConfigurationError(
            f"the name {name[:40]!r}… has {len(name)} characters; use at most {LONGEST_NAME}"
        )
    if holds_control(name):
        raise ConfigurationError(
            f"the name {name!a} holds an invisible or control character; rename the table or column"
        )


def split_table(name: str) -> TableName:
    """`database.table` or `table`; names that hold dots themselves are not supported."""
    match name.split("."):
        case [table]:
            parts = TableName(database=None, table=table)
        case [database, table]:
            check(database)
            parts = TableName(database=database, table=table)
        case _:
            raise ConfigurationError(
                f"the table name {name!r} has more than one dot; write it as database.table or table"
            )
    check(parts.table)
    return parts


def quote_table(name: str) -> str:
    return split_table(name).quoted
