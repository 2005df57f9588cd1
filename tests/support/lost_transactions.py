"""A catalog that loses its last transactions: its rows are put back as they were at an earlier moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, insert, select

from oncehouse.ledger.catalog import schema
from oncehouse.ledger.catalog.database import Catalog


@dataclass(frozen=True, kw_only=True)
class Moment:
    rows: dict[str, list[dict[str, Any]]]


def remember(catalog: Catalog) -> Moment:
    with catalog.read() as connection:
        return Moment(
            rows={
                table.name: [dict(row) for row in connection.execute(select(table)).mappings()]
                for table in schema.metadata.sorted_tables
            }
        )


def lose_since(catalog: Catalog, moment: Moment) -> None:
    with catalog.engine.begin() as connection:
        for table in schema.metadata.sorted_tables:
            connection.execute(delete(table))
            if rows := moment.rows[table.name]:
                connection.execute(insert(table), rows)
