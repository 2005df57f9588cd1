"""Which storage a setting means: a short name, a dotted path, a class or an object."""

from __future__ import annotations

import importlib
from typing import Any, cast

from oncehouse.common.extras import needs_extra
from oncehouse.errors import ConfigurationError
from oncehouse.sync.changes.sql_storage import OutboxStorage
from oncehouse.sync.changes.storage import OperationStorage
from oncehouse.sync.settings import BY_CDC, SyncSettings

_METHODS = ("register", "list_operations", "remove", "measure")


def choose_storage(chosen: Any, settings: SyncSettings) -> OperationStorage:
    if isinstance(chosen, str):
        chosen = _find(chosen, settings)
    storage = chosen() if isinstance(chosen, type) else chosen
    if missing := [name for name in _METHODS if not callable(getattr(storage, name, None))]:
        raise ConfigurationError(
            f"{chosen!r} cannot be a sync_storage: it has no method {missing[0]!r}. Write 'outbox' or 'redis', or give "
            "a class with the methods of oncehouse.sync.django.OperationStorage (the same in oncehouse.sync.sqlalchemy)"
        )
    return cast("OperationStorage", storage)


def _find(name: str, settings: SyncSettings) -> Any:
    if name == "outbox":
        return OutboxStorage()
    if name == "redis":
        return _open_redis(settings)
    if name == BY_CDC:
        raise ConfigurationError(
            f"sync_storage {BY_CDC!r}: the pipeline feeds this sync from the database's log, so there are no operations"
        )
    module_name, _, class_name = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module_name), class_name)
    except (ImportError, ValueError, AttributeError) as error:
        raise ConfigurationError(
            f"sync_storage (CLICKHOUSE_SYNC_STORAGE) {name!r} cannot be imported ({error}); write 'outbox', 'redis' or "
            "the dotted path of a class"
        ) from None


def _open_redis(settings: SyncSettings) -> OperationStorage:
    if settings.redis is None:
        raise ConfigurationError(
            "sync_storage 'redis' needs CLICKHOUSE_REDIS_CONFIG, such as {'host': 'localhost', 'port': 6379, 'db': 8}"
        )
    with needs_extra("redis", "sync_storage 'redis'"):
        from oncehouse.sync.changes.redis_storage import RedisStorage
    return RedisStorage.from_config(settings.redis)
