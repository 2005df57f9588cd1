"""Django for tests: settings once a process, and a database under an alias of its own for whoever asks.

Nothing of a test's database stays in the settings when it is over.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy.engine import make_url


def set_up() -> None:
    import django
    from django.conf import settings

    if settings.configured:
        return
    # The inbox table of messaging has a key of two columns, which Django knows since 5.2.
    messaging = ["oncehouse.messaging.django"] if django.VERSION >= (5, 2) else []
    settings.configure(
        INSTALLED_APPS=[*messaging, "oncehouse.sync.django", "sync_shop"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        USE_TZ=True,
    )
    django.setup()


def _settings_of(url: str) -> dict[str, Any]:
    parsed = make_url(url)
    shared = {
        "ATOMIC_REQUESTS": False,
        "AUTOCOMMIT": True,
        "CONN_MAX_AGE": 0,
        "CONN_HEALTH_CHECKS": False,
        "TIME_ZONE": None,
        "TEST": {},
        "USER": parsed.username or "",
        "PASSWORD": parsed.password or "",
        "HOST": parsed.host or "",
        "PORT": parsed.port or "",
        "OPTIONS": dict(parsed.query),
    }
    if parsed.get_backend_name() == "sqlite":
        return shared | {"ENGINE": "django.db.backends.sqlite3", "NAME": parsed.database}
    return shared | {"ENGINE": "django.db.backends.postgresql", "NAME": parsed.database}


@contextmanager
def open_database(url: str) -> Iterator[str]:
    """The alias of this database, by its SQLAlchemy URL."""
    set_up()
    from django.db import connections

    alias = f"test_{uuid.uuid4().hex[:8]}"
    connections.settings[alias] = _settings_of(url)
    try:
        yield alias
    finally:
        connections[alias].close()
        delattr(connections._connections, alias)
        del connections.settings[alias]
