"""About how many rows a large table has, without counting them."""

from __future__ import annotations

from sqlalchemy import Engine, text

from oncehouse.messaging.database import open_reader
from oncehouse.sync.tables import ABSENT

WORTH_COUNTING = 1_000_000
"""Up to so many rows a table is counted: statistics of small and new ones are often far off."""

_STATISTICS = text("SELECT CAST(reltuples AS bigint) FROM pg_class WHERE oid = to_regclass(:name)")


def read_statistics(engine: Engine, table: str) -> int | None:
    """What PostgreSQL's statistics say of a table, by its quoted name; None where it had better be counted."""
    if engine.dialect.name != "postgresql":
        return None
    with open_reader(engine, f"Reading the statistics of {table}", absent=ABSENT) as connection:
        rows = connection.execute(_STATISTICS, {"name": table}).scalar_one_or_none()
    return None if rows is None or rows < WORTH_COUNTING else int(rows)
