"""Users and profiles of the tests' ClickHouse server, each unsafe in one way; the server reads them at its start.

The embedded server takes no CREATE USER, so they stand in a settings file beside its own.
"""

from __future__ import annotations

from pathlib import Path

PASSWORD = "of-the-tests"

# profile -> its settings and constraints
_PROFILES = {
    "plain": "",
    "forced_async": (
        "<async_insert>1</async_insert><constraints><async_insert><readonly/></async_insert></constraints>"
    ),
    "not_deduplicated": (
        "<deduplicate_insert>disable</deduplicate_insert>"
        "<constraints><deduplicate_insert><disallowed>enable</disallowed></deduplicate_insert></constraints>"
    ),
    "doubled_views": (
        "<deduplicate_blocks_in_dependent_materialized_views>0"
        "</deduplicate_blocks_in_dependent_materialized_views>"
        "<constraints><deduplicate_blocks_in_dependent_materialized_views><readonly/>"
        "</deduplicate_blocks_in_dependent_materialized_views></constraints>"
    ),
    "reader": "<readonly>1</readonly>",
    "reader_with_settings": "<readonly>2</readonly>",
}
_LOADING = ("INSERT, SELECT ON *.*", "SELECT ON system.processes")
# user -> profile and grants
_USERS = {
    "loader": ("plain", _LOADING),
    "without_insert": ("plain", ("SELECT ON *.*",)),
    "without_select": ("plain", ("INSERT, SHOW ON *.*", "SELECT ON system.processes")),
    "without_processes": (
        "plain",
        ("INSERT, SHOW ON *.*", "SELECT ON *.*", "REVOKE SELECT ON system.processes"),
    ),
    "of_one_table": ("plain", ("INSERT, SELECT ON of_one_table.events", "SELECT ON system.processes")),
    "dropper": ("plain", (*_LOADING, "DROP TABLE, TRUNCATE ON *.*")),
    "granter": ("plain", (*_LOADING, "ROLE ADMIN ON *.*")),
    **{
        profile: (profile, _LOADING)
        for profile in ("forced_async", "not_deduplicated", "doubled_views", "reader", "reader_with_settings")
    },
}


def add_users(clickhouse_folder: Path) -> None:
    """Put the users where the server will find them: beside the settings of the engine, or of a binary."""
    for settings in (clickhouse_folder / "home" / ".clickhouse-local", clickhouse_folder):
        folder = settings / "config.d"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "users.xml").write_text(_document(), encoding="utf-8")


def _document() -> str:
    profiles = "".join(f"<{name}>{body}</{name}>" for name, body in _PROFILES.items())
    users = "".join(_user(name, profile, grants) for name, (profile, grants) in _USERS.items())
    return f"<clickhouse><profiles>{profiles}</profiles><users>{users}</users></clickhouse>"


def _user(name: str, profile: str, grants: tuple[str, ...]) -> str:
    queries = "".join(
        f"<query>{grant if grant.startswith('REVOKE') else 'GRANT ' + grant}</query>" for grant in grants
    )
    return (
        f"<{name}><password>{PASSWORD}</password><networks><ip>127.0.0.1</ip></networks>"
        f"<profile>{profile}</profile><quota>default</quota><grants>{queries}</grants></{name}>"
    )
