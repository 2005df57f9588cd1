"""Whether PostgreSQL, as it is set, may lose transactions of the catalog that it has confirmed.

A catalog that has lost some is noticed and refused (`ledger/marks.py`), and then stands still until it is
repaired; with these settings right it does not come to that. Only what any user may see is asked for: how many
servers follow, not whether they would be promoted, and nothing of what a cloud provider does below PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from oncehouse.clickhouse.preflight.finding import Finding, Level
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.postgres_settings import PostgresFacts, read_postgres_facts

_WHERE = "ledger.catalog"
_SET_COMMIT = "ALTER ROLE … SET synchronous_commit = on, for the user of this URL"


def inspect_catalog_durability(catalog: Catalog, *, where: str = _WHERE) -> tuple[Finding, ...]:
    """`where` is the key of the file that names the catalog."""
    facts = read_postgres_facts(catalog)
    found = check_catalog_durability(facts) if facts else ()
    return tuple(replace(finding, where=where) for finding in found)


def check_catalog_durability(facts: PostgresFacts) -> Iterator[Finding]:
    """Pure."""
    warnings = (*_check_server(facts.settings), *_check_standbys(facts))
    if warnings:
        yield from warnings
        return
    followers = _describe_standbys(facts) or "no standby follows just now"
    yield Finding(
        level=Level.OK,
        where=_WHERE,
        what=f"PostgreSQL confirms what it keeps: synchronous_commit is {facts.settings['synchronous_commit']}, "
        f"{followers}. Whether another server would be promoted without the last transactions (one that is not "
        "connected and has no slot, or a provider's own copy) cannot be seen from here",
    )


def _check_server(settings: Mapping[str, str]) -> Iterator[Finding]:
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


def _check_standbys(facts: PostgresFacts) -> Iterator[Finding]:
    following = _describe_standbys(facts)
    if not following:
        return
    commit = facts.settings["synchronous_commit"]
    if not facts.settings["synchronous_standby_names"]:
        yield _warn(
            f"{following} and synchronous_standby_names is empty: one that is promoted may lack the last transactions",
            "set synchronous_standby_names, or your tool's synchronous mode (Patroni: synchronous_mode); how, and what "
            f"happens without it, stands in docs/cluster.md{_advise_slots(facts)}",
        )
    elif commit == "local":
        yield _warn(
            f"{following}, but synchronous_commit is local: transactions are confirmed before a standby has them, and "
            "one that is promoted may lack the last ones",
            _SET_COMMIT,
        )
    elif commit == "remote_write":
        yield _warn(
            f"{following}, but synchronous_commit is remote_write: transactions are confirmed before they are on a "
            "standby's disk, and one whose machine crashed before it is promoted may lack the last ones",
            _SET_COMMIT,
        )


def _describe_standbys(facts: PostgresFacts) -> str:
    """Empty: there is no sign of one."""
    signs = []
    if facts.standbys:
        signs.append(f"{facts.standbys} standbys follow" if facts.standbys > 1 else "a standby follows")
    if slots := facts.idle_slots:
        named = f"slots {', '.join(slots)} are" if len(slots) > 1 else f"slot {slots[0]} is"
        signs.append(f"the replication {named} kept for a standby that is not connected")
    return " and ".join(signs)


def _advise_slots(facts: PostgresFacts) -> str:
    if not facts.idle_slots:
        return ""
    return (
        f". If no standby will come back to it, run: SELECT pg_drop_replication_slot('{facts.idle_slots[0]}')"
    )


def _warn(what: str, advice: str) -> Finding:
    return Finding(level=Level.WARNING, where=_WHERE, what=what, advice=advice)
