"""Where the rows are and how the program is set: said once by `configure`, or by a class of its own.

Rounds work on connections of their own. A changed row is refused where it is not in the database that its sync reads:
its operation would lie where no sync reads it.
"""

from __future__ import annotations

import os
import threading
from functools import lru_cache
from typing import Any

from sqlalchemy import URL, Engine, make_url
from sqlalchemy.ext.asyncio import AsyncEngine

from oncehouse.common.database import open_engine
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.database import check_dialect
from oncehouse.sync.settings import SyncSettings, check_names, read_settings

SourceAddress = str | URL | Engine | AsyncEngine

_SYNC_DRIVERS = {"postgresql": "postgresql+psycopg", "sqlite": "sqlite"}

_configured: dict[str, Any] = {"source": None, "settings": SyncSettings()}
_engines: dict[tuple[int, str], Engine] = {}
_renewed: set[tuple[int, int]] = set()
_first_process = os.getpid()
_lock = threading.Lock()


def configure(source: SourceAddress, **settings: Any) -> None:
    """The database with the rows, as a URL or an engine, and settings such as `CLICKHOUSE_DATABASES`.

    Call it before changes are made, in every process of the program. Syncs that have a `source` of their own keep it.
    """
    from oncehouse.sync.model.model_sync import registered_syncs

    check_names(settings)
    _configured.update(source=source, settings=read_settings(settings))
    for sync in registered_syncs():
        sync.forget()


def configured_settings() -> SyncSettings:
    settings: SyncSettings = _configured["settings"]
    return settings


def find_source(own: SourceAddress | None, sync: str) -> SourceAddress:
    found: SourceAddress | None = _configured["source"] if own is None else own
    if found is None:
        raise ConfigurationError(
            f"{sync} does not know which database its rows are in: call oncehouse.sync.sqlalchemy.configure(…) with "
            "its URL or engine before rows change, or set `source` in the class"
        )
    return found


def open_source_engine(source: SourceAddress) -> Engine:
    """An engine for rounds: the program's own where it gave one, else one a URL and process."""
    if isinstance(source, Engine) and source.dialect.name == "postgresql":
        return _renew(source).execution_options(isolation_level="READ COMMITTED")
    url = _url_of(source)
    check_dialect(url.get_backend_name())
    if url.get_backend_name() == "sqlite" and url.database in {None, "", ":memory:"}:
        raise ConfigurationError("model sync cannot read a SQLite database in memory: give it a file")
    drivername = url.drivername if isinstance(source, str | URL) else _SYNC_DRIVERS[url.get_backend_name()]
    text = url.set(drivername=drivername).render_as_string(hide_password=False)
    # A forked worker must not share its parent's sockets.
    place = (os.getpid(), text)
    with _lock:
        if place not in _engines:
            _engines[place] = open_engine(text, setting="the source of model sync")
        return _engines[place]


def _renew(engine: Engine) -> Engine:
    """The program's engine; in a forked process with connections of its own."""
    place = (os.getpid(), id(engine.pool))
    with _lock:
        if os.getpid() != _first_process and place not in _renewed:
            engine.dispose(close=False)
            place = (os.getpid(), id(engine.pool))
        _renewed.add(place)
    return engine


def is_same_database(engine: Engine, source: SourceAddress) -> bool:
    given = source.sync_engine if isinstance(source, AsyncEngine) else source
    if isinstance(given, Engine) and given.pool is engine.pool:
        return True
    ours, theirs = _place_of(engine.url), _place_of(_url_of(source))
    # An engine with a way of its own to connect says nothing in its URL.
    return ours == theirs and bool(engine.url.database)


def format_source(source: SourceAddress) -> str:
    return _url_of(source).render_as_string(hide_password=True)


def _url_of(source: SourceAddress) -> URL:
    if isinstance(source, str):
        return _parse(source)
    return source if isinstance(source, URL) else source.url


@lru_cache(maxsize=16)
def _parse(text: str) -> URL:
    """Asked at every change of a synced row."""
    return make_url(text)


def _place_of(url: URL) -> tuple[object, ...]:
    """Whichever driver and user."""
    host = url.host or url.query.get("host")
    backend = url.get_backend_name()
    if backend == "sqlite":
        return (backend, os.path.abspath(url.database or ""))  # noqa: PTH100 - links are left as they are
    return (backend, host, url.port or 5432, url.database)
