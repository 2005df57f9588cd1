"""The catalog: transactions over the ledger's tables, fenced by leases.

Every write of a stage goes through `Catalog.write`, which checks the stage's fencing token in the same
transaction, and names the write, so that a commit whose answer was lost is looked up instead of repeated.
The other modules of this package define what rows mean (epochs, batches, leases, requests).
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from sqlalchemy import ColumnElement, Connection, func, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from oncehouse.common import database, failpoints, structured_logging
from oncehouse.common.sqlite_lock import WAIT_SECONDS, LockedError
from oncehouse.errors import (
    CatalogBehindError,
    ConfigurationError,
    FencedError,
    OncehouseError,
    PermanentError,
    TransientError,
)
from oncehouse.ledger.catalog import migrations
from oncehouse.ledger.catalog.migrations import Upgrade
from oncehouse.ledger.catalog.monotonic_clock import SteadyClock
from oncehouse.ledger.catalog.schema import leases, ledger_version, pipelines
from oncehouse.ledger.lease_terms import Terms
from oncehouse.ledger.models import LedgerIdentity, Stage, format_rule

_log = logging.getLogger("oncehouse.ledger")

Result = TypeVar("Result")

_RETRY_SECONDS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0)


class Catalog:
    """One pipeline's view of a catalog database. Safe to use from several threads."""

    def __init__(
        self,
        url: str,
        pipeline: str,
        *,
        retry_seconds: tuple[float, ...] = _RETRY_SECONDS,
        patience: database.Patience | None = None,
        lock_seconds: float = WAIT_SECONDS,
        report: Callable[[str], None] | None = None,
    ) -> None:
        """`report` is called with the holder of a SQLite catalog's lock, before `lock_seconds` are over."""
        self.pipeline = pipeline
        self.engine = database.open_engine(
            url, setting="ledger.catalog", patience=patience, lock_seconds=lock_seconds, report=report
        )
        self.clock = database.DatabaseClock()
        self._steady = SteadyClock()
        self._writer = self.engine.execution_options(oncehouse_writes=True)
        self._retry_seconds = retry_seconds
        self.terms = Terms()
        # One write a stage at a time, so that `last_write` names the one that is looked up.
        self._stage_locks = {stage: threading.Lock() for stage in Stage}

    @property
    def folder(self) -> Path | None:
        """Where a SQLite catalog stands on this machine."""
        url = self.engine.url
        named = (
            url.get_backend_name() == "sqlite"
            and url.database
            and not url.database.startswith((":", "file:"))
        )
        return Path(str(url.database)).parent if named else None

    def close(self) -> None:
        self.engine.dispose()

    def prepare(self) -> Upgrade | None:
        """Make the tables, or bring those of an older oncehouse to today's; says what was upgraded."""
        done: list[Upgrade | None] = []

        def run(connection: Connection) -> None:
            database.take_turn(connection)
            done[:] = [migrations.migrate(connection)]

        # A commit whose answer was lost is found done at the next try, and only not reported.
        self._retry(lambda: self._transaction(run))
        if (upgrade := done[0]) is not None:
            failpoints.reach("after the upgrade is settled")
            structured_logging.write(
                _log, logging.INFO, "catalog upgraded", version_before=upgrade.before, version=upgrade.after
            )
        return upgrade

    def version(self) -> int:
        """0: there are no tables."""
        with self.read() as connection:
            return migrations.read_version(connection)

    def exists(self) -> bool:
        """Whether the tables are there; raises when they are of another version."""
        with self.read() as connection:
            version = migrations.read_version(connection)
            if version:
                migrations.require_version(connection, version)
        return version > 0

    def require_version_in(self, connection: Connection) -> None:
        """Refuse to go on where another oncehouse has changed the version since this process looked."""
        migrations.require_version(
            connection, connection.execute(select(ledger_version.c.version)).scalar_one()
        )

    def now(self) -> float:
        with self.read() as connection:
            return self.now_in(connection)

    def now_in(self, connection: Connection) -> float:
        catalog_time = float(connection.execute(select(self.clock)).scalar_one())
        self._steady.correct(catalog_time)
        return catalog_time

    def latest_in(self, connection: Connection) -> float:
        """The time to write down: a clock that was set back meanwhile makes nothing look older than it is."""
        catalog_time = self.now_in(connection)
        return max(catalog_time, self._steady.correct(catalog_time))

    def earliest(self) -> float:
        """The time by which something may be deleted: a clock that was set forth meanwhile makes nothing old."""
        catalog_time = self.now()
        return min(catalog_time, self._steady.correct(catalog_time))

    def jump_seconds(self) -> float:
        """How far the catalog's clock was set forth, or back if negative, since it was asked first."""
        catalog_time = self.now()
        return catalog_time - self._steady.correct(catalog_time)

    def read(self) -> AbstractContextManager[Connection]:
        """A read-only view; raises TransientError when the database is away."""
        return self._connect()

    @contextmanager
    def snapshot(self) -> Iterator[Catalog]:
        """This catalog at one moment: whatever is read from the view inside belongs together."""
        with self._connect(**database.snapshot_options(self.engine)) as connection:
            yield _Snapshot(self, connection)

    @contextmanager
    def _connect(self, **options: Any) -> Iterator[Connection]:
        try:
            with self.engine.connect().execution_options(**options) as connection:
                yield connection
        except (DBAPIError, PoolTimeoutError) as error:
            raise self._wrapped(error) from error

    def write(self, stage: Stage, token: int, change: Callable[[Connection], Result]) -> Result:
        """Run `change` in one transaction under the stage's lease.

        `change` may run several times (its transaction having been undone), so it must only touch the catalog.
        Raises FencedError when another process has taken the lease, CatalogBehindError when the database has lost
        writes that this process has seen confirmed, TransientError when it stays away.
        """
        with self._stage_locks[stage]:
            name = str(uuid.uuid4())
            done: list[Result] = []
            counted: list[int] = []

            def run(connection: Connection) -> None:
                if done and self.was_committed(connection, stage, name):
                    return
                counted[:] = [self._fence(connection, stage, token, name)]
                done[:] = [change(connection)]

            def attempt() -> Result:
                self._transaction(run)
                return done[0]

            result = self._retry(attempt)
            if (term := self.terms.find(stage, token)) is not None:
                term.writes = max(term.writes, *counted)
            return result

    def change(self, change: Callable[[Connection], Result]) -> Result:
        """One transaction outside any stage: a person's request, or a lease itself."""
        done: list[Result] = []

        def run(connection: Connection) -> None:
            done[:] = [change(connection)]

        def attempt() -> Result:
            try:
                self._transaction(run)
            except _CollisionError:
                # Another process made the same row first; the second read sees it.
                self._transaction(run)
            return done[0]

        return self._retry(attempt)

    def adopt(self, identity: LedgerIdentity, *, rule: str | None = None) -> None:
        """Enter the pipeline into the catalog, or refuse one whose identity rule or buckets have changed.

        `rule`: what its file says of the identity, for those who have another file later.
        """

        def run(connection: Connection) -> None:
            known = self.identity_in(connection)
            if known is None:
                connection.execute(
                    pipelines.insert().values(
                        pipeline=self.pipeline,
                        fingerprint=identity.fingerprint,
                        buckets=identity.buckets,
                        created_at=self.clock,
                        rule=rule,
                    )
                )
                return
            check_identity(self.pipeline, known, identity)
            if rule is not None:
                mine = pipelines.c.pipeline == self.pipeline
                connection.execute(update(pipelines).where(mine).values(rule=rule))

        self.change(run)

    def identity(self) -> LedgerIdentity | None:
        with self.read() as connection:
            return self.identity_in(connection)

    def rule(self) -> str | None:
        """What the pipeline file said of the identity when the ledger took its rule; None: it was not recorded."""
        with self.read() as connection:
            query = select(pipelines.c.rule).where(pipelines.c.pipeline == self.pipeline)
            return connection.execute(query).scalar()

    def identity_in(self, connection: Connection) -> LedgerIdentity | None:
        row = connection.execute(select(pipelines).where(pipelines.c.pipeline == self.pipeline)).first()
        return None if row is None else LedgerIdentity(fingerprint=row.fingerprint, buckets=row.buckets)

    def _fence(self, connection: Connection, stage: Stage, token: int, name: str) -> int:
        """Refuse a process that does not hold the lease in this very catalog; the number of this write otherwise."""
        written = func.coalesce(leases.c.writes, 0) + 1
        counted = connection.execute(
            update(leases)
            .where(*self.own_term(stage, token))
            .values(last_write=name, writes=written)
            .returning(leases.c.writes)
        ).scalar()
        if counted is None:
            self.refuse_in(connection, stage, token)
        return int(counted)

    def own_term(self, stage: Stage, token: int) -> tuple[ColumnElement[bool], ...]:
        """The lease as this process knows it, with all the writes that it has seen confirmed.

        The holder too: a catalog that has lost the taking of a lease may give its token to another process.
        """
        term = self.terms.find(stage, token)
        named = (leases.c.pipeline == self.pipeline, leases.c.stage == stage, leases.c.token == token)
        if term is None:
            return named
        return *named, leases.c.holder == term.holder, func.coalesce(leases.c.writes, 0) >= term.writes

    def refuse_in(self, connection: Connection, stage: Stage, token: int) -> NoReturn:
        """Say why the lease is not this process's any more: it was taken over, or the catalog has lost something."""
        query = select(leases.c.token, leases.c.writes).where(
            leases.c.pipeline == self.pipeline, leases.c.stage == stage
        )
        row = connection.execute(query).first()
        term = self.terms.find(stage, token)
        if term is None or (row is not None and row.token > token):
            raise FencedError(
                f"Pipeline {self.pipeline}: another process has taken over the stage {stage} "
                f"(this one held token {token}). Nothing was written; this process stops."
            )
        there = "has no lease of it" if row is None else f"is at write {row.writes or 0} of token {row.token}"
        self.refuse_behind(
            f"this process holds token {token} of the stage {stage} and has made its write {term.writes}, the catalog "
            f"{there}",
            connection,
        )

    def require_primary(self, connection: Connection | None = None) -> None:
        """Raise TransientError where the server is a standby, which may only not have come so far yet.

        `connection`: the one by which the catalog looked behind; others may lead to another server.
        """
        with nullcontext(connection) if connection is not None else self.read() as reading:
            if not database.is_standby(reading):
                return
        where = self.engine.url.render_as_string(hide_password=True)
        raise TransientError(
            f"Pipeline {self.pipeline}: the server that answers for the catalog {where} is a standby, which lacks what "
            "the primary has. Let ledger.catalog lead to the primary: where its URL names several servers, add "
            "target_session_attrs=read-write. Nothing was written; nothing is lost meanwhile."
        )

    def refuse_behind(self, evidence: str, connection: Connection | None = None) -> NoReturn:
        self.require_primary(connection)
        where = self.engine.url.render_as_string(hide_password=True)
        raise CatalogBehindError(
            f"Pipeline {self.pipeline}: the catalog {where} has lost transactions that it had confirmed: {evidence}. A "
            "standby that lacked them was promoted, or an older copy was put in its place. To go on from it could "
            "double what ClickHouse has; nothing was written, and this process stops. Let `oncehouse repair --plan` "
            "show what is missing and `oncehouse repair --apply` bring the catalog up to date; then start again."
        )

    def name_write(self, connection: Connection, stage: Stage, name: str) -> None:
        """Leave a name by which `was_committed` recognizes this transaction, where no process holds a token."""
        mine = (leases.c.pipeline == self.pipeline, leases.c.stage == stage)
        connection.execute(update(leases).where(*mine).values(last_write=name))

    def was_committed(self, connection: Connection, stage: Stage, name: str) -> bool:
        # With its lock, so that a commit that is still under way on the server is waited for.
        row = connection.execute(
            select(leases.c.last_write)
            .where(leases.c.pipeline == self.pipeline, leases.c.stage == stage)
            .with_for_update()
        ).first()
        return row is not None and row[0] == name

    def _transaction(self, run: Callable[[Connection], None]) -> None:
        try:
            with self._writer.begin() as connection:
                run(connection)
        except (DBAPIError, PoolTimeoutError) as error:
            raise self._wrapped(error) from error

    def _retry(self, attempt: Callable[[], Result]) -> Result:
        for seconds in self._retry_seconds:
            try:
                return attempt()
            except LockedError:
                raise
            except TransientError:
                time.sleep(seconds)
        return attempt()

    def _wrapped(self, error: DBAPIError | PoolTimeoutError) -> OncehouseError:
        wrapped = database.wrap_error(
            error,
            what=f"Pipeline {self.pipeline}",
            where=database.locate(self.engine, "the catalog"),
            damaged="`oncehouse repair --plan` shows from what it can be restored.",
        )
        return _CollisionError(str(wrapped)) if isinstance(error, IntegrityError) else wrapped


class _Snapshot(Catalog):
    def __init__(self, catalog: Catalog, connection: Connection) -> None:
        self.__dict__.update(catalog.__dict__)
        self._connection = connection

    def read(self) -> AbstractContextManager[Connection]:
        return nullcontext(self._connection)


class _CollisionError(PermanentError):
    """Two writers made the same row."""


def check_identity(pipeline: str, known: LedgerIdentity, declared: LedgerIdentity) -> None:
    if known.fingerprint != declared.fingerprint:
        raise ConfigurationError(
            f"Pipeline {pipeline}: the identity rule has changed since this ledger was made "
            f"(ledger: {format_rule(known)}; pipeline file: {format_rule(declared)}). Ids made by another rule would "
            "let duplicates through. Put the old rule back, or let `oncehouse rekey` show what the new one means."
        )
    if known.buckets != declared.buckets:
        raise ConfigurationError(
            f"Pipeline {pipeline}: identity.buckets is {declared.buckets}, the ledger was made with "
            f"{known.buckets}. Put {known.buckets} back, or change the ledger with `oncehouse rekey`."
        )
