"""Commits whose answer is lost, and commits that never were: what a client cannot tell apart."""

from __future__ import annotations

from sqlalchemy.exc import OperationalError

from oncehouse.ledger.catalog.database import Catalog


def lost_connection() -> OperationalError:
    return OperationalError("COMMIT", {}, Exception("server went away"), connection_invalidated=True)


class answers_of_commits_lost:  # noqa: N801 - reads as a sentence where it is used
    """The database commits, and the client hears nothing of it."""

    def __init__(self, catalog: Catalog, times: int) -> None:
        self._dialect, self._times = catalog.engine.dialect, times

    def __enter__(self) -> None:
        self._commit = self._dialect.do_commit
        self._dialect.do_commit = self._lose

    def __exit__(self, *_: object) -> None:
        del self._dialect.do_commit
        assert self._times == 0, "no commit was made, so none was lost"

    def _lose(self, connection) -> None:
        self._commit(connection)
        if self._times:
            self._times -= 1
            raise lost_connection()


class commits_undone(answers_of_commits_lost):  # noqa: N801 - as above
    """The connection breaks before the database has committed."""

    def _lose(self, connection) -> None:
        if self._times:
            self._times -= 1
            self._dialect.do_rollback(connection)
            raise lost_connection()
        self._commit(connection)
