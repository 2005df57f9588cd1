"""`@inbox.once` in Django: as `Inbox.once`, through Django's own connection and transactions.

    from oncehouse.messaging.django import inbox

    @inbox.once(consumer="billing", keep="7d")
    def bill(message): ...

A call is one `transaction.atomic`, a savepoint inside an outer one: the stored ids and the handler's writes commit
together or not at all.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from django.db import connections, router, transaction
from django.db.utils import OperationalError, ProgrammingError
from sqlalchemy.dialects import postgresql, sqlite

from oncehouse.common.database import is_absent_table
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.database import check_dialect
from oncehouse.messaging.django.models import SeenRow
from oncehouse.messaging.inbox.expiry import BATCH_ROWS, build_expiry_delete
from oncehouse.messaging.inbox.handled_ids import build_insert
from oncehouse.messaging.inbox.ids import NO_SOURCES, Sources, check_consumer, check_keep, check_sources
from oncehouse.messaging.inbox.once import InboxCounter, InboxCounts, make_delivery
from oncehouse.messaging.message import Message

__all__ = ["clean_up", "counts", "once"]

HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])

_counter = InboxCounter()


def once(
    *, consumer: str, keep: str | float, using: str | None = None, sources: Sources = NO_SOURCES
) -> Callable[[HandlerT], HandlerT]:
    """Wrap a handler `(message)` or `(messages)` that writes through Django to the database `using`.

    Without `using` the routers decide, as for models. `keep` is how long ids are stored: longer than a message can be
    repeated. `sources` maps topics to the topic whose ids they share.
    """
    check_consumer(consumer)
    keep_seconds = check_keep(keep)
    check_sources(sources)
    _counter.register(consumer)

    def decorate(handler: HandlerT) -> HandlerT:
        if inspect.iscoroutinefunction(handler):
            raise ConfigurationError(
                f"Inbox of {consumer}: Django's transactions need plain functions; write a plain handler, and call "
                "it by sync_to_async if needed"
            )

        @functools.wraps(handler)
        def run(messages: Message | Iterable[Message]) -> Any:
            delivery, alias = make_delivery(messages, sources), using or router.db_for_write(SeenRow)
            if not delivery.messages:
                return None
            with transaction.atomic(using=alias):
                ids = _execute(
                    alias,
                    lambda vendor: build_insert(vendor, consumer, delivery.ids, keep_seconds),
                    fetch=True,
                )
                fresh = delivery.fresh({row[0] for row in ids})
                _counter.add(consumer, handled=len(fresh), repeated=len(delivery.messages) - len(fresh))
                return handler(delivery.argument(fresh)) if fresh else None

        wrapped: Any = run
        return wrapped  # type: ignore[no-any-return]

    return decorate


def counts() -> dict[str, InboxCounts]:
    """By consumer, since this process started."""
    return _counter.read()


def clean_up(*, using: str | None = None, batch_rows: int = BATCH_ROWS) -> int:
    """Delete expired ids, in batches that are transactions of their own; returns how many."""
    alias = using or router.db_for_write(SeenRow)
    total = 0
    while True:
        with transaction.atomic(using=alias):
            deleted: int = _execute(alias, lambda _vendor: (build_expiry_delete(batch_rows), {}), fetch=False)
        total += deleted
        if deleted < batch_rows:
            return total


def _execute(alias: str, make: Callable[[str], tuple[Any, dict[str, Any]]], *, fetch: bool) -> Any:
    """Run an SQLAlchemy statement on Django's connection; returns its rows, or the number of changed rows."""
    connection = connections[alias]
    vendor = check_dialect(connection.vendor)
    dialect: Any = postgresql.dialect if vendor == "postgresql" else sqlite.dialect
    statement, values = make(vendor)
    compiled = statement.compile(dialect=dialect(paramstyle="pyformat"))
    try:
        with connection.cursor() as cursor:
            cursor.execute(str(compiled), compiled.construct_params(values))
            return cursor.fetchall() if fetch else cursor.rowcount
    except (ProgrammingError, OperationalError) as error:
        if is_absent_table(error.__cause__):
            raise ConfigurationError(
                "There is no table oncehouse_inbox_seen in this database. `python manage.py migrate` creates it once "
                "oncehouse.messaging.django is in INSTALLED_APPS; nothing was written."
            ) from error
        raise
