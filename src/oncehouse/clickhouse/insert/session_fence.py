"""An attempt's session on the server: the fence that a late INSERT cannot pass.

ClickHouse refuses a request that names a session it does not know (`session_check`). So an attempt's INSERT is sent
into a session that was opened under the attempt's query id before the attempt was written down, and that ends with the
INSERT or after `SEND_WITHIN_SECONDS`: the server runs it at most once, and not late. The next attempt ends the sessions
of earlier ones first. A session in use shows an INSERT that is still arriving, which the server lists nowhere else.

Sessions belong to one server: behind a balancer that sends each request elsewhere they must be switched off
(`clickhouse.insert_sessions`). A server that was restarted has forgotten them, which fences as well.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from oncehouse.clickhouse.client import failure_of
from oncehouse.clickhouse.error_codes import ErrorCode
from oncehouse.clickhouse.insert.deadline import SEND_WITHIN_SECONDS
from oncehouse.errors import ConfigurationError, OncehouseError, TransientError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncehouse.clickhouse.client import Client

_ADVICE: dict[int | None, str] = {
    ErrorCode.SESSION_NOT_FOUND: "The server does not know the session of this attempt: the INSERT came too late or "
    "twice, the server was restarted meanwhile, or a balancer sent it to another server than the session. It is tried "
    "again. If each attempt ends like this, let all clients, those on executors too, reach the same server (a balancer "
    "that goes by the client's address is not enough), or set clickhouse.insert_sessions: false (insert_sessions in "
    "Python).",
    ErrorCode.SESSION_IS_LOCKED: "Another request holds the session that this attempt needs, most likely an INSERT of "
    "the same rows that is still arriving at the server. It is tried again. If each attempt ends like this, end the "
    "process or the connection that sends it: a proxy may hold it open.",
}
_LIMIT = "max_session_timeout"


def make_open_settings(session: str) -> Mapping[str, Any]:
    """What a query is sent with to open a session."""
    return {"session_id": session, "session_timeout": math.ceil(SEND_WITHIN_SECONDS)}


def explain_refusal(error: OncehouseError) -> OncehouseError:
    """The error of a request that opens a session, with the remedy where the server keeps none for so long."""
    if failure_of(error).code != ErrorCode.BAD_ARGUMENTS or "session timeout" not in str(error).lower():
        return error
    needed = math.ceil(SEND_WITHIN_SECONDS)
    explained = ConfigurationError(
        f"The server keeps no session for the {needed} s that an INSERT needs one. Raise {_LIMIT} to {needed} or more "
        f"in the server's configuration, or set clickhouse.insert_sessions: false. It said: {error}"
    )
    explained.__cause__ = error.__cause__
    return explained


def advise(code: int | None) -> str:
    """A line on what to do about a request whose session could not be used; empty for other codes."""
    return f"\n{_ADVICE[code]}" if code in _ADVICE else ""


def explain_session(error: OncehouseError) -> OncehouseError:
    """The same error, with the remedy where the session is what it failed for."""
    explained = explain_refusal(error)
    advice = advise(failure_of(error).code)
    if explained is not error or not advice:
        return explained
    advised = type(error)(f"{error}{advice}")
    advised.__cause__ = error.__cause__
    return advised


def session_settings(session: str) -> Mapping[str, Any]:
    """What an INSERT is sent with to need that session, and to use it up."""
    return {**_make_close_settings(session), "session_timeout": math.ceil(SEND_WITHIN_SECONDS)}


def make_renewal_settings(session: str) -> Mapping[str, Any]:
    """What a query is sent with that keeps the session open for as long again, and fails where it is not."""
    return {"session_id": session, "session_check": 1, "session_timeout": math.ceil(SEND_WITHIN_SECONDS)}


def end_session(client: Client, session: str) -> None:
    """Let no INSERT into this session begin any more; raises TransientError while one is arriving or runs."""
    try:
        # Servers before 25.3 may keep it all the same, until its time is over.
        client.query("SELECT 1", settings=_make_close_settings(session))
    except OncehouseError as error:
        match failure_of(error).code:
            case ErrorCode.SESSION_NOT_FOUND:
                return
            case ErrorCode.SESSION_IS_LOCKED:
                raise TransientError(
                    f"the INSERT of the earlier attempt {session} is still arriving at the server; it is waited for. "
                    "If each attempt ends like this, end the connection that sends it: a proxy may hold it open."
                ) from None
            case _:
                raise


def _make_close_settings(session: str) -> dict[str, Any]:
    return {"session_id": session, "session_check": 1, "close_session": 1}
