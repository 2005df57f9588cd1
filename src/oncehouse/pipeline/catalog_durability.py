"""Whether PostgreSQL, as it is set, may lose transactions of the catalog that it has confirmed.

A catalog that has lost some is noticed and refused (`ledger/marks.py`), and then stands still until somebody has
repaired it; with these settings right it does not come to that. Only what any user may see is asked for: how many
servers follow, not whether they would be promoted, and nothing of what a cloud provider does below PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sqlalchemy import text

from oncehouse.clickhouse.findings import Finding, Level
from oncehouse.ledger.catalog import Catalog

_WHERE = "ledger.catalog"
_NAMES = ("synchronous_commit", "synchronous_standby_names", "fsync", "full_page_writes")
# Whoever follows the log for its changes alone, as Debezium does, is no standby.
_STANDBYS = text(
    "SELECT count(*) FROM pg_stat_replication AS sender WHERE NOT EXISTS (SELECT 1 FROM pg_replication_slots AS slot "
    "WHERE slot.active_pid = sender.pid AND slot.slot_type = 'logical')"
)
_SET_COMMIT = "ALTER ROLE … SET synchronous_commit = on, for the user of ledger.catalog"
_SETTINGS = text("SELECT name, setting FROM pg_settings WHERE name = ANY(:names)")


@dataclass(frozen=True, kw_only=True)
class PostgresFacts:
    settings: Mapping[str, str]
    """As they hold for the pipeline's user."""
    standbys: int
    """Those that are connected now."""


def inspect_durability(catalog: Catalog) -> tuple[Finding, ...]:
    if catalog.engine.dialect.name != "postgresql":
        return ()
    with catalog.read() as connection:
        rows = connection.execute(_SETTINGS, {"names": list(_NAMES)}).all()
        standbys = connection.execute(_STANDBYS).scalar_one()
    facts = PostgresFacts(settings={row.name: row.setting for row in rows}, standbys=standbys)
    return tuple(judge_durability(facts))


def judge_durability(facts: PostgresFacts) -> Iterator[Finding]:
    """Pure."""
    warnings = (*_judge_server(facts.settings), *_judge_standbys(facts))
    if warnings:
        yield from warnings
        return
    followers = f"{facts.standbys} standbys follow" if facts.standbys else "no standby follows just now"
    yield Finding(
        level=Level.OK,
        where=_WHERE,
        what=f"PostgreSQL confirms what it keeps: synchronous_commit is {facts.settings['synchronous_commit']}, "
        f"{followers}. Whether another server would be promoted without the last transactions (one that is not "
        "connected, or a provider's own copy) cannot be seen from here",
    )


def _judge_server(settings: Mapping[str, str]) -> Iterator[Finding]:
    for name in ("fsync", "full_page_writes"):
        if settings[name] == "off":
            yield _warn(
                f"{name} is off: after a crash of its machine PostgreSQL may lack what it confirmed, or be damaged",
                f"ALTER SYSTEM SET {name} = on",
            )
    if settings["synchronous_commit"] == "off":
        yield _warn(
            "synchronous_commit is off: PostgreSQL confirms transactions before they are on its disk, and loses the "
            "last ones when it crashes",
            _SET_COMMIT,
        )


def _judge_standbys(facts: PostgresFacts) -> Iterator[Finding]:
    if not facts.standbys:
        return
    following = f"{facts.standbys} standbys follow" if facts.standbys > 1 else "a standby follows"
    if not facts.settings["synchronous_standby_names"]:
        yield _warn(
            f"{following} and synchronous_standby_names is empty: one that is promoted may lack the last transactions",
            "set synchronous_standby_names, or your tool's synchronous mode (Patroni: synchronous_mode); how, and what "
            "happens without it, stands in docs/cluster.md",
        )
    elif facts.settings["synchronous_commit"] == "local":
        yield _warn(
            f"{following}, but synchronous_commit is local: transactions are confirmed before a standby has them, and "
            "one that is promoted may lack the last ones",
            _SET_COMMIT,
        )


def _warn(what: str, advice: str) -> Finding:
    return Finding(level=Level.WARNING, where=_WHERE, what=what, advice=advice)
