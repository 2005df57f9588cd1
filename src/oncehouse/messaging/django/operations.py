"""The operations of the migrations. `sqlmigrate` shows their statements."""

from __future__ import annotations

from typing import Any

from django.db.migrations.operations.base import Operation
from sqlalchemy.dialects import postgresql, sqlite

from oncehouse.errors import ConfigurationError
from oncehouse.messaging.inbox.tables import ddl, handled_ids, inbox
from oncehouse.messaging.outbox.outbox import Outbox


class CreateOutbox(Operation):
    reduces_to_sql = True
    reversible = True

    def state_forwards(self, app_label: str, state: Any) -> None:
        """The model's state has an operation of its own."""

    def database_forwards(self, app_label: str, schema_editor: Any, _before: Any, _after: Any) -> None:
        if not _is_allowed(app_label, schema_editor, "outboxrow"):
            return
        vendor = schema_editor.connection.vendor
        if vendor not in {"postgresql", "sqlite"}:
            raise ConfigurationError(
                f"The outbox cannot be created in {vendor}: it needs PostgreSQL, or SQLite in tests. Exclude the app "
                "from this database by a router."
            )
        for statement in Outbox().ddl(vendor):
            # Without parameters no character of the statement is taken for a placeholder.
            schema_editor.execute(statement, params=None)

    def database_backwards(self, app_label: str, schema_editor: Any, _before: Any, _after: Any) -> None:
        if not _is_allowed(app_label, schema_editor, "outboxrow"):
            return
        table = schema_editor.quote_name(Outbox().table.name)
        schema_editor.execute(f"DROP TABLE IF EXISTS {table}", params=None)
        if schema_editor.connection.vendor == "postgresql":
            function = schema_editor.quote_name(f"{Outbox().table.name}_wake")
            schema_editor.execute(f"DROP FUNCTION IF EXISTS {function}()", params=None)

    def describe(self) -> str:
        return "Create the outbox table and those of its relays"


class CreateInbox(Operation):
    reduces_to_sql = True
    reversible = True

    def state_forwards(self, app_label: str, state: Any) -> None:
        """The model's state has an operation of its own."""

    def database_forwards(self, app_label: str, schema_editor: Any, _before: Any, _after: Any) -> None:
        if _is_allowed(app_label, schema_editor, "seenrow"):
            dialect = postgresql if schema_editor.connection.vendor == "postgresql" else sqlite
            for statement in ddl(dialect.dialect()):
                schema_editor.execute(statement, params=None)

    def database_backwards(self, app_label: str, schema_editor: Any, _before: Any, _after: Any) -> None:
        if _is_allowed(app_label, schema_editor, "seenrow"):
            # The tables of leases belong to the outbox, too, and stay.
            for table in (handled_ids, inbox):
                schema_editor.execute(
                    f"DROP TABLE IF EXISTS {schema_editor.quote_name(table.name)}", params=None
                )

    def describe(self) -> str:
        return "Create the tables of the inbox"


def _is_allowed(app_label: str, schema_editor: Any, model: str) -> bool:
    from django.db import router

    return bool(router.allow_migrate(schema_editor.connection.alias, app_label, model_name=model))
