"""Errors of Django's database as ours, so that what may pass is tried again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import DatabaseError, InterfaceError, OperationalError, connections

from oncehouse.errors import PermanentError, TransientError


@contextmanager
def wrapped_errors(alias: str, what: str) -> Iterator[None]:
    try:
        yield
    except (DatabaseError, InterfaceError) as error:
        # Django keeps a connection that has died until it is used.
        connections[alias].close_if_unusable_or_obsolete()
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if isinstance(error, OperationalError | InterfaceError):
            raise TransientError(
                f"{what}: the database does not answer or is busy ({text}); it may be tried again"
            ) from error
        raise PermanentError(f"{what}: the database refused it ({text})") from error
