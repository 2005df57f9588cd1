"""One attempt at one message: a session, the message marked as done, the handler, the lease checked, the commit.

All of it commits or none: a worker that dies anywhere in between has done nothing. What an exception means for the
message is `judge`, pure.
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
from oncehouse.messaging.inbox.types import Done, Failed, Outcome, Waiting, Withdrawn

# The handler's transaction against others' (serialization failure, deadlock): tried again like any failure of its own.
_CONFLICTS = frozenset({"40001", "40P01"})
_log = logging.getLogger("oncehouse.inbox")


class Phase(Enum):
    CLAIMING = auto()
    HANDLING = auto()
    COMMITTING = auto()


class NotOursError(Exception):
    """The message is settled, or another transaction holds it."""


def judge(row: Waiting, phase: Phase, error: BaseException) -> Outcome:
    """What an attempt that raised means for its message."""
    text = tell(error)
    if phase is not Phase.HANDLING and _is_ours(error):
        return Withdrawn(waiting=row, reason=text)
    return Failed(waiting=row, error=text, final=isinstance(error, PermanentError))


def _is_ours(error: BaseException) -> bool:
    """Whether it says something of the lease or the database, not of the message."""
    if isinstance(error, DBAPIError):
        return is_passing(error) and getattr(error.orig, "sqlstate", None) not in _CONFLICTS
    return isinstance(error, NotOursError | FencedError | TransientError | PoolTimeoutError)


def tell(error: BaseException) -> str:
    """In words that every database takes; an exception of the handler's may have none, or halves of characters."""
    try:
        words = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - whatever its text raises, the attempt has failed
        words = f"{type(error).__name__} (it cannot say what)"
    return words.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True, kw_only=True)
class Attempts:
    handler: Callable[..., Any]
    sessions: Callable[[], Any]
    """Opens a Session, or an AsyncSession for an async handler."""
    keep_seconds: float
    fence: Callable[[Connection, Waiting], None]
    """Raises FencedError when the message's bucket is no longer ours; holds it until the transaction ends."""

    def run(self, row: Waiting) -> Outcome:
        phase = Phase.CLAIMING
        try:
            with self.sessions() as session, session.begin():
                self._claim(session.connection(), row)
                phase = Phase.HANDLING
                self.handler(session, row.message)
                session.flush()
                phase = Phase.COMMITTING
                self._finish(session.connection(), row)
        except BaseException as error:  # noqa: BLE001 - the edge of a thread: whatever it is belongs to this message
            return _judge_aloud(row, phase, error)
        failpoints.reach("inbox.committed")
        return Done(waiting=row)

    async def run_async(self, row: Waiting) -> Outcome:
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
            # What cancelled something of its own and let it out has failed; nobody has stopped the worker.
            if not _is_cancelled():
                return _judge_aloud(row, phase, error)
            return Withdrawn(waiting=row, reason="the worker was stopped")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the edge of a task: it belongs to this message
            return _judge_aloud(row, phase, error)
        failpoints.reach("inbox.committed")
        return Done(waiting=row)

    def _claim(self, connection: Connection, row: Waiting) -> None:
        if not claim(connection, row, keep_seconds=self.keep_seconds):
            raise NotOursError("settled, or held by another worker")
        failpoints.reach("inbox.claimed")

    def _finish(self, connection: Connection, row: Waiting) -> None:
        # Last, because it keeps the lease from being renewed or taken over until the transaction ends.
        failpoints.reach("inbox.handled")
        self.fence(connection, row)
        failpoints.reach("inbox.fenced")


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _judge_aloud(row: Waiting, phase: Phase, error: BaseException) -> Outcome:
    outcome = judge(row, phase, error)
    if isinstance(outcome, Failed):
        _log.warning("inbox: message %s was not handled: %s", row.message.message_id, outcome.error)
        _log.info("inbox: the handler raised", exc_info=error)
    return outcome


async def _run_sync(session: AsyncSession, step: Callable[[Connection, Waiting], None], row: Waiting) -> None:
    await (await session.connection()).run_sync(step, row)
