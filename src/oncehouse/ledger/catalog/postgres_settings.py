"""How PostgreSQL is set, as far as it decides whether the catalog keeps what was committed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import text

from oncehouse.ledger.catalog.database import Catalog

_NAMES = ("synchronous_commit", "synchronous_standby_names", "fsync", "full_page_writes")
_SETTINGS = text("SELECT name, setting FROM pg_settings WHERE name = ANY(:names)")
# A client that follows the log for its changes alone, as Debezium does, is no standby.
_STANDBYS = text(
    "SELECT count(*) FROM pg_stat_replication AS sender WHERE NOT EXISTS (SELECT 1 FROM pg_replication_slots AS slot "
    "WHERE slot.active_pid = sender.pid AND slot.slot_type = 'logical')"
)
# The primary keeps its log for the user of such a slot: mostly a standby, and one that is away just now.
_IDLE_SLOTS = text(
    "SELECT slot_name FROM pg_replication_slots WHERE slot_type = 'physical' AND NOT active AND NOT temporary "
    "ORDER BY slot_name"
)


@dataclass(frozen=True, kw_only=True)
class PostgresFacts:
    settings: Mapping[str, str]
    """As they hold for the pipeline's user."""
    standbys: int
    """Those that are connected now."""
    idle_slots: tuple[str, ...] = ()
    """Replication slots of standbys that are not connected."""


def read_postgres_facts(catalog: Catalog) -> PostgresFacts | None:
    """None: the catalog is not in PostgreSQL."""
    if catalog.engine.dialect.name != "postgresql":
        return None
    with catalog.read() as connection:
        rows = connection.execute(_SETTINGS, {"names": list(_NAMES)}).all()
        standbys = connection.execute(_STANDBYS).scalar_one()
        idle_slots = connection.execute(_IDLE_SLOTS).scalars().all()
    return PostgresFacts(
        settings={row.name: row.setting for row in rows}, standbys=standbys, idle_slots=tuple(idle_slots)
    )
