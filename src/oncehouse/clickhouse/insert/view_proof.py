"""Whether an insert is known to have reached the materialized views behind its table.

A table is written before its views, so its rows prove nothing about theirs. The server's query log can: an INSERT that
ended well was pushed to all of them (`materialized_views_ignore_errors = 0`). It proves success and never the
opposite: it may be switched off, be out of sight, or belong to another server.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from oncehouse.clickhouse.client import failure_of
from oncehouse.clickhouse.errors import FailureKind
from oncehouse.errors import OncehouseError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from oncehouse.clickhouse.client import Client

# The log is written every 7.5 s by default; a user who may not have it written at once waits for that.
_WAIT_SECONDS = 9.0
# What has just ended is logged a moment after its answer.
_MOMENT_SECONDS = 2.0
_POLL_SECONDS = 0.5
_FINISHED = (
    "SELECT count() FROM system.query_log WHERE type = 'QueryFinish' "
    "AND event_date >= toDate({since:DateTime('UTC')}) - 1 AND "
)
_BY_QUERY_ID = f"{_FINISHED}query_id IN {{ids:Array(String)}}"
_BY_TOKEN = f"{_FINISHED}query_kind = 'Insert' AND Settings['insert_deduplication_token'] = {{token:String}}"


def has_finished(client: Client, query_ids: Sequence[str], *, since: float | None = None) -> bool:
    """Whether the query log has one of these inserts as done. May wait some seconds for the log.

    `since` is when the first of them began; none is now.
    """
    if not query_ids:
        return False
    return _wait_for_log(client, _BY_QUERY_ID, {"ids": list(query_ids)}, since)


def has_taken_token(client: Client, token: str, *, since: float) -> bool:
    """The same for inserts that are known by their token alone."""
    return _wait_for_log(client, _BY_TOKEN, {"token": token}, since)


def _wait_for_log(client: Client, sql: str, parameters: Mapping[str, Any], since: float | None) -> bool:
    bound = {**parameters, "since": int(time.time() if since is None else since)}

    def is_logged() -> bool:
        return bool(client.query(sql, bound)[0][0])

    try:
        if is_logged():
            return True
        may_write = write_log(client)
        end = time.monotonic() + (_MOMENT_SECONDS if may_write else _WAIT_SECONDS)
        while not (found := is_logged()) and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
            if may_write:
                write_log(client)
        return found  # noqa: TRY300 - next to the loop that sets it
    except OncehouseError as error:
        if failure_of(error).kind is FailureKind.TRANSIENT:
            raise
    return False


def write_log(client: Client) -> bool:
    """Have the server write its log down now, where this user may ask for it."""
    for statement in ("SYSTEM FLUSH LOGS query_log", "SYSTEM FLUSH LOGS"):  # before 25.2 only all of them
        try:
            client.command(statement)
        except OncehouseError as error:
            if failure_of(error).kind is FailureKind.TRANSIENT:
                raise
        else:
            return True
    return False
