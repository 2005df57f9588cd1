"""The operations of migrations: the tables of model sync in Django's database, and those of syncs in ClickHouse."""

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.migrations.operations.base import Operation
from django.utils.module_loading import import_string
from sqlalchemy.dialects import postgresql, sqlite

from oncehouse.errors import ConfigurationError
from oncehouse.sync.table.ddl import apply_plan, plan_table
from oncehouse.sync.tables import NOTE_FUNCTION, backfills, batches, ddl, operations, states

__all__ = ["CreateSyncTables", "SyncTable"]


class CreateSyncTables(Operation):
    reduces_to_sql = True
    reversible = True

    def state_forwards(self, app_label: str, state: Any) -> None:
        """No model stands for these tables."""

    def database_forwards(self, app_label: str, schema_editor: Any, _before: Any, _after: Any) -> None:
        if not _is_meant(app_label, schema_editor):
            return
        vendor = schema_editor.connection.vendor
        if vendor not in {"postgresql", "sqlite"}:
            raise ConfigurationError(
                f"Model sync cannot keep its tables in {vendor}: it is for PostgreSQL, and for SQLite in tests. Keep "
                "the app away from this database by a router."
            )
        dialect = postgresql if vendor == "postgresql" else sqlite
        for statement in ddl(dialect.dialect()):
            # Without parameters nothing in a statement is taken for a place to put one.
            schema_editor.execute(statement, params=None)

    def database_backwards(self, app_label: str, schema_editor: Any, _before: Any, _after: Any) -> None:
        if _is_meant(app_label, schema_editor):
            # The tables of leases are messaging's too and stay.
            for table in (operations, states, batches, backfills):
                name = schema_editor.quote_name(table.name)
                schema_editor.execute(f"DROP TABLE IF EXISTS {name}", params=None)
            if schema_editor.connection.vendor == "postgresql":
                schema_editor.execute(f"DROP FUNCTION IF EXISTS {NOTE_FUNCTION}", params=None)

    def describe(self) -> str:
        return "Create the tables of model sync"


class SyncTable(Operation):
    """Bring the ClickHouse table of a sync to what its class says: `SyncTable("shop.clickhouse_models.OrderSync")`.

    What would change stored values is refused. Taken back, it leaves the table alone. It runs with the sync's own
    database and does nothing for others.
    """

    reduces_to_sql = False
    reversible = True

    def __init__(self, sync: str) -> None:
        self.sync = sync

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Django's models stay as they are."""

    def database_forwards(self, app_label: str, schema_editor: Any, _before: Any, _after: Any) -> None:
        sync = _find_sync(self.sync)
        alias = schema_editor.connection.alias
        if alias == sync.source_alias() and router.allow_migrate(alias, app_label):
            client = sync.open_clickhouse()
            apply_plan(client, plan_table(client, sync.declaration()))

    def database_backwards(self, app_label: str, schema_editor: Any, _before: Any, _after: Any) -> None:
        """The rows may be wanted, and a plan brings the table back to any class."""

    def describe(self) -> str:
        return f"Bring the ClickHouse table of {self.sync} up to date"


def _find_sync(path: str) -> Any:
    try:
        return import_string(path)
    except ImportError as error:
        raise ConfigurationError(f"SyncTable({path!r}): there is no such class ({error})") from error


def _is_meant(app_label: str, schema_editor: Any) -> bool:
    return bool(router.allow_migrate(schema_editor.connection.alias, app_label))
