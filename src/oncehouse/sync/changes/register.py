"""How changed keys get into the outbox table: one statement whatever their number, on the writer's own connection.

A framework gives its connection as an `OperationWriter`. This module begins and ends no transaction: keys commit or
roll back with the change that they record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from sqlalchemy import Connection, text

from oncehouse.messaging.database import check_dialect, wrapped_errors
from oncehouse.sync.changes.change import OperationKind
from oncehouse.sync.tables import ABSENT

_INTO = "INSERT INTO oncehouse_sync_operations (sync, kind, key)"
# The texts hold no outside input: values are bound.
_INSERT = {
    "postgresql": f"{_INTO} SELECT %(sync)s, %(kind)s, unnest(CAST(%(keys)s AS text[]))",
    "sqlite": f"{_INTO} SELECT %(sync)s, %(kind)s, value FROM json_each(%(keys)s)",  # noqa: S608
}
_PLACE = re.compile(r"%\((\w+)\)s")


class OperationWriter(Protocol):
    """The connection, and with it the transaction, in which rows are being changed."""

    @property
    def vendor(self) -> str:
        """`postgresql` or `sqlite`."""
        ...

    def execute(self, statement: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Rows of the answer. Values stand in the statement as `%(name)s`."""
        ...


class SqlAlchemyWriter:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def vendor(self) -> str:
        return self._connection.dialect.name

    def execute(self, statement: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        with wrapped_errors("Model sync: writing down changed keys", absent=ABSENT):
            result = self._connection.execute(text(_PLACE.sub(r":\1", statement)), dict(values))
            return [tuple(row) for row in result] if result.returns_rows else []


def write_operations(writer: OperationWriter, sync: str, kind: OperationKind, keys: Sequence[str]) -> None:
    vendor = check_dialect(writer.vendor)
    listed = list(keys) if vendor == "postgresql" else json.dumps(list(keys))
    writer.execute(_INSERT[vendor], {"sync": sync, "kind": kind.value, "keys": listed})
