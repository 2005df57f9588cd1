"""What a sync is set to: the class's own word, else the program's settings, else the defaults here.

The program's settings bear the names that users of Django know (`CLICKHOUSE_SYNC_BATCH_SIZE`); a framework reads them
into a `SyncSettings`, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from pydantic import SecretStr, ValidationError

from oncehouse.config.pipeline import ClickHouse
from oncehouse.errors import ConfigurationError

PREFIX = "CLICKHOUSE_"
BY_CDC = "cdc"
"""The `sync_storage` of a class that the pipeline feeds from the database's log: nothing is captured, no round runs."""


@dataclass(frozen=True, kw_only=True)
class SyncSettings:
    batch_size: int = 10_000
    """Operations that a round lists at most."""
    delay_seconds: float = 5.0
    """From the start of one run of a sync to that of the next."""
    storage: Any = "outbox"
    """`outbox`, `redis`, a dotted path to a class, a class, or an object; of a class alone, `cdc`."""
    queue: str = "celery"
    database: str = "default"
    """Which of `databases`."""
    lease_seconds: float = 30.0
    """How long a killed process may hold up a sync."""
    databases: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Addresses of ClickHouse, by alias."""
    redis: Mapping[str, Any] | None = None
    """What `redis.Redis` is made with."""


_NAMES = {
    "SYNC_BATCH_SIZE": "batch_size",
    "SYNC_DELAY": "delay_seconds",
    "SYNC_STORAGE": "storage",
    "CELERY_QUEUE": "queue",
    "DEFAULT_DB_ALIAS": "database",
    "SYNC_LEASE": "lease_seconds",
    "DATABASES": "databases",
    "REDIS_CONFIG": "redis",
}


def read_settings(given: Mapping[str, Any], *, prefix: str = PREFIX) -> SyncSettings:
    """The settings among `given` that bear a known name behind the prefix; others belong to other programs."""
    known = {
        field_name: given[prefix + name] for name, field_name in _NAMES.items() if prefix + name in given
    }
    settings = SyncSettings(**known)
    if settings.storage == BY_CDC:
        raise ConfigurationError(
            f"{prefix}SYNC_STORAGE cannot be {BY_CDC!r}: that is said of a class, or of the base class of several: "
            f"sync_storage = {BY_CDC!r}"
        )
    check_numbers(settings.batch_size, settings.delay_seconds, settings.lease_seconds, where="settings")
    return settings


def check_names(given: Mapping[str, Any]) -> None:
    """For settings that are given here alone, where a name that is not known is a mistake."""
    if unknown := sorted(set(given) - {PREFIX + name for name in _NAMES}):
        raise ConfigurationError(
            f"there is no setting {unknown[0]!r}; there are: {', '.join(PREFIX + name for name in _NAMES)}"
        )


def check_numbers(batch_size: object, delay_seconds: object, lease_seconds: object, *, where: str) -> None:
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or not 0 < batch_size <= 1_000_000:
        raise ConfigurationError(
            f"{where}: sync_batch_size (CLICKHOUSE_SYNC_BATCH_SIZE) must be a whole number from 1 to 1,000,000, "
            f"not {batch_size!r}"
        )
    if not isinstance(delay_seconds, int | float) or not 0 <= delay_seconds < 86_400 * 365:
        raise ConfigurationError(
            f"{where}: sync_delay (CLICKHOUSE_SYNC_DELAY) must be seconds, 0 or more, not {delay_seconds!r}"
        )
    if not isinstance(lease_seconds, int | float) or not 1 <= lease_seconds <= 3600:
        raise ConfigurationError(
            f"{where}: sync_lease (CLICKHOUSE_SYNC_LEASE) must be 1 to 3,600 seconds, not {lease_seconds!r}"
        )


def clickhouse_config(settings: SyncSettings, alias: str) -> ClickHouse:
    """The address under this alias, in the words of `CLICKHOUSE_DATABASES`."""
    given = settings.databases.get(alias)
    if given is None:
        known = ", ".join(sorted(settings.databases)) or "none"
        raise ConfigurationError(
            f"there is no ClickHouse database {alias!r} in CLICKHOUSE_DATABASES (there are: {known}); name one there, "
            'such as {"default": {"db_url": "http://localhost:8123", "db_name": "shop"}}'
        )
    known_words = {
        *(
            "db_url",
            "db_name",
            "username",
            "password",
            "verify_ssl_cert",
            "ca_file",
            "timeout",
            "insert_sessions",
        )
    }
    if unknown := sorted(set(given) - known_words - {"migrate", "readonly", "autocreate"}):
        raise ConfigurationError(
            f"CLICKHOUSE_DATABASES[{alias!r}] has {unknown[0]!r}, which means nothing here; known are "
            + ", ".join(sorted(known_words))
        )
    url = str(given.get("db_url", "http://localhost:8123/")).rstrip("/")
    name = given.get("db_name")
    if name and not urlsplit(url).path:
        url = f"{url}/{quote(str(name), safe='')}"
    try:
        return ClickHouse(
            url=url,
            user=given.get("username") or "default",
            password=SecretStr(given.get("password") or ""),
            verify_tls=given.get("verify_ssl_cert", True),
            ca_file=given.get("ca_file"),
            insert_timeout=given.get("timeout", 60),
            insert_sessions=given.get("insert_sessions", True),
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(
            f"CLICKHOUSE_DATABASES[{alias!r}]: {where}: {first['msg'].removeprefix('Value error, ')}"
        ) from None
