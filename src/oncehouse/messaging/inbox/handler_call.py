"""One attempt at one message: open a session, mark the message as done, call the handler, check the lease, commit.

All of it is one transaction: a worker that dies in between has changed nothing. `classify_failure` decides what an
exception means for the message; it is pure.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncSession

from oncehouse.common import failpoints
from oncehouse.common.database import is_passing
from oncehouse.errors import FencedError, PermanentError, TransientError
from oncehouse.messaging.inbox.row_updates import claim
from oncehouse.messaging.inbox.types import (
    AttemptFailed,
    AttemptSucceeded,
    AttemptWithdrawn,
    MessageOutcome,
    PendingMessage,
)

# Conflicts of the handler's transaction with others (serialization failure, deadlock) count as its own failures.
_CONFLICTS = frozenset({"40001", "40P01"})
_log = logging.getLogger("oncehouse.inbox")


class Phase(Enum):
    CLAIMING = auto()
    HANDLING = auto()
    COMMITTING = auto()


class NotClaimedError(Exception):
    """The message is settled, or another transaction holds it."""


def classify_failure(row: PendingMessage, phase: Phase, error: BaseException) -> MessageOutcome:
    """The outcome of an attempt that raised."""
    text = describe_error(error)
    if phase is not Phase.HANDLING and _is_ours(error):
        return AttemptWithdrawn(waiting=row, reason=text)
    return AttemptFailed(waiting=row, error=text, final=isinstance(error, PermanentError))


def _is_ours(error: BaseException) -> bool:
    """Whether the cause is the lease or the database, not the message."""
    if isinstance(error, DBAPIError):
        return is_passing(error) and getattr(error.orig, "sqlstate", None) not in _CONFLICTS
    return isinstance(error, NotClaimedError | FencedError | TransientError | PoolTimeoutError)


def describe_error(error: BaseException) -> str:
    """Text that every database can store; the str() of a handler's exception may fail or hold half characters."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - the str() of a user's exception may fail, too
        text = f"{type(error).__name__} (its text cannot be read)"
    return text.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True, kw_only=True)
class HandlerCaller:
    handler: Callable[..., Any]
    sessions: Callable[[], Any]
    """Opens a Session, or an AsyncSession for an async handler."""
    keep_seconds: float
    fence: Callable[[Connection, PendingMessage], None]
    """Locks the message's bucket until the transaction ends; raises FencedError if another worker holds it."""

    def run(self, row: PendingMessage) -> MessageOutcome:
        phase = Phase.CLAIMING
        try:
            with self.sessions() as session, session.begin():
                self._claim(session.connection(), row)
                phase = Phase.HANDLING
                self.handler(session, row.message)
                session.flush()
                phase = Phase.COMMITTING
                self._finish(session.connection(), row)
        except BaseException as error:  # noqa: BLE001 - the thread's boundary: any error is this message's outcome
            return _log_failure(row, phase, error)
        failpoints.reach("inbox.committed")
        return AttemptSucceeded(waiting=row)

    async def run_async(self, row: PendingMessage) -> MessageOutcome:
        phase = Phase.CLAIMING
        try:
            async with self.sessions() as session, session.begin():
                await _run_sync(session, self._claim, row)
                phase = Phase.HANDLING
                await self.handler(session, row.message)
                await session.flush()
                phase = Phase.COMMITTING
                await _run_sync(session, self._finish, row)
        except asyncio.CancelledError as error:
            # A handler that cancelled a task of its own and let the error out has failed; the worker was not stopped.
            if not _is_cancelled():
                return _log_failure(row, phase, error)
            return AttemptWithdrawn(waiting=row, reason="the worker was stopped")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the task's boundary: any error is this message's outcome
            return _log_failure(row, phase, error)
        failpoints.reach("inbox.committed")
        return AttemptSucceeded(waiting=row)

    def _claim(self, connection: Connection, row: PendingMessage) -> None:
        if not claim(connection, row, keep_seconds=self.keep_seconds):
            raise NotClaimedError("settled, or held by another worker")
        failpoints.reach("inbox.claimed")

    def _finish(self, connection: Connection, row: PendingMessage) -> None:
        # Last, because it blocks renewal and takeover of the lease until the transaction ends.
        failpoints.reach("inbox.handled")
        self.fence(connection, row)
        failpoints.reach("inbox.fenced")


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _log_failure(row: PendingMessage, phase: Phase, error: BaseException) -> MessageOutcome:
    outcome = classify_failure(row, phase, error)
    if isinstance(outcome, AttemptFailed):
        _log.warning("inbox: message %s was not handled: %s", row.message.message_id, outcome.error)
        _log.info("inbox: the handler raised", exc_info=error)
    return outcome


async def _run_sync(
    session: AsyncSession, step: Callable[[Connection, PendingMessage], None], row: PendingMessage
) -> None:
    await (await session.connection()).run_sync(step, row)
