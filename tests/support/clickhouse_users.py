"""Users and profiles of the tests' ClickHouse server, each unsafe in one way; the server reads them at its start.

The embedded server takes no CREATE USER, so they stand in a settings file beside its own.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

from oncehouse.clickhouse.preflight.grants import Role, role_grants
from oncehouse.config.pipeline import Pipeline

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
    "select_not_deduplicated": (
        "<deduplicate_insert_select>disable</deduplicate_insert_select>"
        "<deduplicate_insert>backward_compatible_choice</deduplicate_insert>"
    ),
    "select_never_deduplicated": (
        "<deduplicate_insert_select>disable</deduplicate_insert_select>"
        "<constraints><deduplicate_insert_select><readonly/></deduplicate_insert_select></constraints>"
    ),
    "small_blocks": (
        "<use_strict_insert_block_limits>1</use_strict_insert_block_limits>"
        "<max_insert_block_size_rows>10</max_insert_block_size_rows><max_block_size>10</max_block_size>"
        "<max_insert_block_size_bytes>100</max_insert_block_size_bytes>"
    ),
    "cut_short": (
        "<max_rows_to_read>70000</max_rows_to_read><read_overflow_mode>break</read_overflow_mode>"
        "<max_result_rows>1</max_result_rows><result_overflow_mode>break</result_overflow_mode>"
    ),
    "some_shards": (
        "<skip_unavailable_shards>1</skip_unavailable_shards><connections_with_failover_max_tries>1"
        "</connections_with_failover_max_tries>"
    ),
    "some_shards_always": (
        "<skip_unavailable_shards>1</skip_unavailable_shards><constraints><skip_unavailable_shards><readonly/>"
        "</skip_unavailable_shards></constraints>"
    ),
    "little_memory": "<max_memory_usage>50000000</max_memory_usage>",
    "sleeper": (
        "<function_sleep_max_microseconds_per_block>60000000</function_sleep_max_microseconds_per_block>"
    ),
    "unlogged": "<log_queries>0</log_queries>",
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
    "without_proofs": (
        "plain",
        (*_LOADING, "REVOKE SELECT ON system.query_log", "REVOKE SELECT ON system.parts"),
    ),
    "of_one_table": ("plain", ("INSERT, SELECT ON of_one_table.events", "SELECT ON system.processes")),
    "of_a_view": ("plain", ("INSERT, SELECT ON of_a_view.*", "SELECT ON system.processes")),
    "dropper": ("plain", (*_LOADING, "DROP TABLE, TRUNCATE ON *.*")),
    "granter": ("plain", (*_LOADING, "ROLE ADMIN ON *.*")),
    "some_shards": ("some_shards", (*_LOADING, "CREATE TEMPORARY TABLE, REMOTE ON *.*")),
    **{
        profile: (profile, _LOADING)
        for profile in (
            "forced_async",
            "not_deduplicated",
            "doubled_views",
            "select_not_deduplicated",
            "select_never_deduplicated",
            "small_blocks",
            "cut_short",
            "some_shards_always",
            "little_memory",
            "sleeper",
            "unlogged",
            "reader",
            "reader_with_settings",
        )
    },
}


ROLES_DATABASE = "of_roles"
ROLES_TABLES = (f"{ROLES_DATABASE}.events", f"{ROLES_DATABASE}.it's `x`; --")
"""The tables whose rights the users of roles have; the second bears a name that has to be quoted."""
ROLES_FIELDS = {"id": "UInt64", "na`me": "String"}


def roles_pipeline(**sections: object) -> Pipeline:
    """A pipeline of the two tables; `oncehouse grants` over it are the rights of the users below."""
    document = {
        "pipeline": "roles",
        "source": {
            "kafka": {"bootstrap_servers": "127.0.0.1:9", "topics": ["none"]},
            "fields": dict(ROLES_FIELDS),
            "new_fields": "add",
        },
        "identity": {"fields": ["id"]},
        "tables": [{"name": name} for name in ROLES_TABLES],
        "clickhouse": {"url": "http://127.0.0.1:9"},
        "ledger": {"catalog": "sqlite:///none.db", "files": "none"},
    }
    return Pipeline(**document | sections)


def role_users() -> dict[str, tuple[str, ...]]:
    """User -> rights: `role_writer` with all that its role needs, `role_writer_less_0` without the first of them."""
    users: dict[str, tuple[str, ...]] = {}
    for role in Role:
        rights = tuple(grant.right for grant in role_grants(roles_pipeline(), role) if not grant.optional)
        users[f"role_{role}"] = rights
        for at in range(len(rights)):
            users[f"role_{role}_less_{at}"] = rights[:at] + rights[at + 1 :]
    return users


def add_users(clickhouse_folder: Path) -> None:
    """Put the users where the server will find them: beside the settings of the engine, or of a binary."""
    for settings in (clickhouse_folder / "home" / ".clickhouse-local", clickhouse_folder):
        folder = settings / "config.d"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "users.xml").write_text(_document(), encoding="utf-8")


def _document() -> str:
    profiles = "".join(f"<{name}>{body}</{name}>" for name, body in _PROFILES.items())
    roles = {name: ("plain", rights) for name, rights in role_users().items()}
    users = "".join(_user(name, profile, grants) for name, (profile, grants) in (_USERS | roles).items())
    return f"<clickhouse><profiles>{profiles}</profiles><users>{users}</users></clickhouse>"


def _user(name: str, profile: str, grants: tuple[str, ...]) -> str:
    queries = "".join(
        f"<query>{escape(grant if grant.startswith('REVOKE') else 'GRANT ' + grant)}</query>"
        for grant in grants
    )
    return (
        f"<{name}><password>{PASSWORD}</password><networks><ip>127.0.0.1</ip></networks>"
        f"<profile>{profile}</profile><quota>default</quota><grants>{queries}</grants></{name}>"
    )
