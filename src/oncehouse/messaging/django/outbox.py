"""`outbox.add` in Django's transactions: the same rows as `Outbox.add` writes, through Django's own connection.

Outside of `transaction.atomic` every statement commits at once, and a message would be sent even if the change that it
announces fails: that is refused unless the caller asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.db import connections, router
from django.db.utils import OperationalError, ProgrammingError

from oncehouse.common.database import is_absent_table
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.django.models import OutboxRow
from oncehouse.messaging.outbox.encoding import (
    DEFAULT_MAX_BYTES,
    HeaderValues,
    Key,
    OutboxMessage,
    Value,
)
from oncehouse.messaging.outbox.row_builder import NewRow, make_rows

__all__ = ["OutboxMessage", "add", "add_many"]

_COLUMNS = ("id", "bucket", "topic", "key", "value", "headers")


def add(
    topic: str,
    key: Key,
    value: Value,
    headers: HeaderValues | None = None,
    *,
    using: str | None = None,
    without_transaction: bool = False,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> UUID:
    """Have one message sent once the transaction of this database commits; returns its id.

    `using` names the database; else the routers decide, as for models.
    Raises ConfigurationError for what cannot be sent, and outside of a transaction unless `without_transaction`.
    """
    message = OutboxMessage(topic=topic, key=key, value=value, headers=headers)
    return add_many([message], using=using, without_transaction=without_transaction, max_bytes=max_bytes)[0]


def add_many(
    messages: Iterable[OutboxMessage],
    *,
    using: str | None = None,
    without_transaction: bool = False,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> list[UUID]:
    """As `add`, for several messages: all are written, or none, with an error for the first invalid one."""
    alias = using or router.db_for_write(OutboxRow)
    connection = connections[alias]
    if not without_transaction and not connection.in_atomic_block and connection.get_autocommit():
        raise ConfigurationError(
            f"outbox.add was called outside of a transaction of the database {alias!r}: the message would be sent even "
            "if the change that it announces is never written. Use `with transaction.atomic(using=…)`, or pass "
            "without_transaction=True if you mean that. Nothing was written."
        )
    rows = make_rows(messages, max_bytes=max_bytes)
    if rows:
        _insert(connection, rows)
    return [row.id for row in rows]


def _insert(connection: Any, rows: list[NewRow]) -> None:
    quote = connection.ops.quote_name
    fields = [OutboxRow._meta.get_field(name) for name in _COLUMNS]  # noqa: SLF001 - Django's public API of a model
    columns, places = ", ".join(map(quote, _COLUMNS)), ", ".join(["%s"] * len(_COLUMNS))
    # Not by the model: it would have to name the columns that the database fills in (number, time).
    statement = f"INSERT INTO {quote(OutboxRow._meta.db_table)} ({columns}) VALUES ({places})"  # noqa: S608, SLF001 - quoted
    try:
        with connection.cursor() as cursor:
            cursor.executemany(
                statement,
                [
                    [field.get_db_prep_save(getattr(row, field.name), connection) for field in fields]
                    for row in rows
                ],
            )
    except (ProgrammingError, OperationalError) as error:
        if is_absent_table(error.__cause__):
            raise ConfigurationError(
                f"There is no table {OutboxRow._meta.db_table} in this database. `python manage.py migrate` creates it "  # noqa: SLF001
                "once oncehouse.messaging.django is in INSTALLED_APPS; nothing was written."
            ) from error
        raise
