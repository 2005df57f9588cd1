"""The server and the user that loads: grants, settings that a profile forces, version. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncehouse.clickhouse.complete_results import WHOLE_ANSWERS
from oncehouse.clickhouse.identifiers import quote
from oncehouse.clickhouse.preflight.finding import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncehouse.clickhouse.preflight.requirements import Needs
    from oncehouse.clickhouse.server_info import ForcedSetting, ServerFacts

OLDEST_VERSION = (24, 8)

_WHY_FORCED = {
    **dict.fromkeys(WHOLE_ANSWERS, "a part of the rows would pass for all of them"),
    "async_insert": "the server would gather rows of several batches and forget their tokens",
    "insert_deduplicate": "the table would take a repeated insert twice",
    "deduplicate_insert": "the table would take a repeated insert twice",
    "deduplicate_insert_select": "the table would take a repeated step twice",
    "deduplicate_blocks_in_dependent_materialized_views": "a repeat would double the rows of views",
    "materialized_views_ignore_errors": "a view that failed would lose rows without a word",
}


def check_server(server: ServerFacts, needs: Needs) -> tuple[Finding, ...]:
    return (
        *_check_grants(server, needs),
        *_check_settings(server),
        *_check_version(server),
        *_check_uuids(server, needs),
    )


def _check_grants(server: ServerFacts, needs: Needs) -> Iterator[Finding]:
    for grant in server.missing_grants:
        yield Finding(
            level=Level.ERROR,
            where=needs.table,
            what=f"the user {server.user!r} lacks the grant {grant}",
            advice=f"run: GRANT {grant} TO {quote(server.user)}",
        )
    if server.readonly != "0":
        yield check_readonly(server.user, server.readonly)
    if server.excess_grants:
        yield _check_excess(server, needs)
    if not server.missing_grants and not server.excess_grants:
        yield Finding(
            level=Level.OK,
            where=needs.table,
            what=f"the user {server.user!r} may insert, read and end its own queries, and no more than it needs",
        )


def _check_excess(server: ServerFacts, needs: Needs) -> Finding:
    shown = ", ".join(server.excess_grants)
    key = "" if needs.refuses_excess_rights else " (clickhouse.excess_rights: refuse makes this an error)"
    return Finding(
        level=Level.ERROR if needs.refuses_excess_rights else Level.WARNING,
        where=f"{needs.table}: clickhouse.user",
        what=f"the user {server.user!r} may do more than loading needs: {shown}{key}",
        advice="load with a user of its own that has INSERT and SELECT on the table, SELECT on "
        "system.processes, and nothing else",
    )


def _check_settings(server: ServerFacts) -> Iterator[Finding]:
    for forced in server.forced_settings:
        yield check_forced(forced)
    if not server.forced_settings:
        yield Finding(
            level=Level.OK,
            where="settings",
            what="the user may set all that makes a repeated insert harmless (async_insert = 0 among them)",
        )


def check_forced(forced: ForcedSetting) -> Finding:
    why = _WHY_FORCED.get(forced.name, "a retry could double or lose rows")
    return Finding(
        level=Level.ERROR,
        where=f"setting {forced.name}",
        what=f"the user's profile fixes it at {forced.value!r}: {why}",
        advice=f"lift the constraint on {forced.name} for this user"
        + (f", or fix it at {forced.wanted}" if forced.wanted else ""),
    )


def check_readonly(user: str, readonly: str) -> Finding:
    return Finding(
        level=Level.ERROR,
        where="setting readonly",
        what=f"the profile of the user {user!r} has readonly = {readonly}: it cannot insert",
        advice="give the user a profile with readonly = 0; grants can still keep it from everything else",
    )


def _check_version(server: ServerFacts) -> Iterator[Finding]:
    oldest = f"{OLDEST_VERSION[0]}.{OLDEST_VERSION[1]}"
    if _version_of(server.version) < OLDEST_VERSION:
        yield Finding(
            level=Level.ERROR,
            where="server",
            what=f"ClickHouse {server.version} is older than {oldest}",
            advice="upgrade the server; older ones double or lose rows of views on a retry",
        )
    else:
        yield Finding(
            level=Level.OK, where="server", what=f"ClickHouse {server.version}, at least {oldest} is needed"
        )


def _check_uuids(server: ServerFacts, needs: Needs) -> Iterator[Finding]:
    if not any("UUID" in type_ for type_ in needs.columns.values()) or server.reads_uuids_in_order is True:
        return
    if server.reads_uuids_in_order is None:
        yield Finding(
            level=Level.WARNING,
            where="server",
            what="how it reads UUIDs from Arrow could not be tried: the user lacks CREATE TEMPORARY TABLE",
            advice="compare one loaded UUID with its event, or give the user that grant for the check",
        )
    else:
        yield Finding(
            level=Level.ERROR,
            where="server",
            what=f"ClickHouse {server.version} does not read UUIDs from Arrow as they are sent",
            advice="upgrade the server, or declare the UUID fields and columns as String",
        )


def _version_of(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
