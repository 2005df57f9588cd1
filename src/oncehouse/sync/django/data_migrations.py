"""Changes that a data migration makes (`RunPython` over `apps.get_model`), whose models are made for it.

They are noticed by their tables, as all others are. The database may be older than the program: a watch whose columns
are not there yet tells nothing, and while the tables of model sync are missing nothing was ever synced, so a backfill
has to come anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oncehouse.sync.django.watches import Watch
from oncehouse.sync.tables import operations

_HAS_TABLE = {
    "postgresql": "SELECT to_regclass(%s) IS NOT NULL",
    "sqlite": "SELECT count(*) > 0 FROM sqlite_master WHERE name = %s",
}


def is_of_migration(model: Any) -> bool:
    return bool(model.__module__ == "__fake__")


def select_ready_watches(connection: Any, meta: Any, watches: Sequence[Watch]) -> tuple[Watch, ...]:
    """Of these watches those that the database is ready for."""
    if not _has_tables(connection):
        return ()
    columns = {field.column for field in meta.concrete_fields}
    return tuple(watch for watch in watches if watch.columns <= columns)


def _has_tables(connection: Any) -> bool:
    statement = _HAS_TABLE.get(connection.vendor)
    if statement is None:
        return True
    with connection.cursor() as cursor:
        cursor.execute(statement, [operations.name])
        return bool(cursor.fetchone()[0])
