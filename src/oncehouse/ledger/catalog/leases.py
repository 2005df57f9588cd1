"""Leases: the right to run one stage of one pipeline, with a fencing token that only grows.

All times are the catalog's own, so a driver with a wrong clock can neither keep nor steal a lease. A process that takes
over gets a higher token, and the old holder's writes are refused. Where a catalog has lost the taking of a lease, the
holder's name and the marks outside of the catalog (`ledger/marks.py`) keep one token from being used by two.

Leases of messaging's buckets and of etl's topics stand apart. A stage is one row that one process wants, with its
writes counted; buckets are many rows that members share fairly; a topic's row has no token but is replaced as a whole
if it is unchanged, and may lie in ClickHouse. What is the same, a comparison of holder and time, is one line in each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from sqlalchemy import Connection, insert, select, update

from oncehouse.errors import LeaseHeldError, TransientError
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.monotonic_clock import read_uptime
from oncehouse.ledger.catalog.schema import leases
from oncehouse.ledger.lease_terms import Term
from oncehouse.ledger.models import Lease, Stage, format_holder


def acquire(catalog: Catalog, stage: Stage, *, holder: str, lease_seconds: float, above: int = 0) -> Lease:
    """Take the lease if it is free or has run out; raises LeaseHeldError that names the holder otherwise.

    `above`: the highest token that is known from elsewhere to have been given out. Raises CatalogBehindError where the
    catalog has lost what this process has seen of the stage.
    """
    before = catalog.terms.newest(stage)

    def run(connection: Connection) -> tuple[Lease, int]:
        # An upgrade may have overtaken a process that waited for the lease.
        catalog.require_version_in(connection)
        mine = (leases.c.pipeline == catalog.pipeline, leases.c.stage == stage)
        now = catalog.now_in(connection)
        row = connection.execute(select(leases).where(*mine).with_for_update()).first()
        token, writes = (0, 0) if row is None else (row.token, row.writes or 0)
        if before is not None and (token < before.token or writes < before.writes):
            catalog.refuse_behind(
                f"this process has made write {before.writes} of the stage {stage} under token {before.token}, the "
                f"catalog is at write {writes} of token {token}",
                connection,
            )
        values = {"token": max(token, above) + 1, "holder": holder, "expires_at": now + lease_seconds}
        if row is None:
            connection.execute(insert(leases).values(pipeline=catalog.pipeline, stage=stage, **values))
            return _lease(catalog, stage, values), writes
        if row.expires_at > now and row.holder != holder:
            raise LeaseHeldError(
                f"Pipeline {catalog.pipeline}: the stage {stage} is run by {format_holder(row.holder)} (token "
                f"{row.token}, its lease ends in {row.expires_at - now:.0f} s unless renewed). Stop that process, or "
                "wait until its lease has run out."
            )
        connection.execute(update(leases).where(*mine).values(**values, pause=None))
        return _lease(catalog, stage, values), writes

    lease, writes = catalog.change(run)
    catalog.terms.begin(stage, Term(token=lease.token, holder=holder, writes=writes))
    return lease


def renew(catalog: Catalog, lease: Lease, *, lease_seconds: float) -> None:
    def run(connection: Connection) -> None:
        renewed = connection.execute(
            update(leases)
            .where(*catalog.own_term(lease.stage, lease.token))
            .values(expires_at=catalog.clock + lease_seconds)
        )
        if renewed.rowcount != 1:
            catalog.refuse_in(connection, lease.stage, lease.token)

    catalog.change(run)


def require_held(catalog: Catalog, lease: Lease) -> None:
    """Raise FencedError or CatalogBehindError unless the catalog has the lease, and all that was written under it."""
    with catalog.read() as connection:
        held = select(leases.c.token).where(*catalog.own_term(lease.stage, lease.token))
        if connection.execute(held).first() is None:
            catalog.refuse_in(connection, lease.stage, lease.token)


def refuse_overtaken(catalog: Catalog, stage: Stage, token: int, *, known: int, where: str) -> NoReturn:
    """Raise FencedError where the catalog has a later lease than `token`, CatalogBehindError where it lost it.

    `known`: a token that was given to another process, as the file at `where` says.
    """
    newest = max((lease.token for lease in list_leases(catalog) if lease.stage is stage), default=0)
    if newest > token:
        with catalog.read() as connection:
            catalog.refuse_in(connection, stage, token)
    catalog.refuse_behind(
        f"another process was given token {known} of the stage {stage} ({where}), the catalog is at token {newest}"
    )


def read_writes(catalog: Catalog) -> dict[Stage, int]:
    """How many writes of each stage the catalog has."""
    mine = leases.c.pipeline == catalog.pipeline
    with catalog.read() as connection:
        rows = connection.execute(select(leases.c.stage, leases.c.writes).where(mine)).all()
    return {Stage(row.stage): row.writes or 0 for row in rows}


def release(catalog: Catalog, lease: Lease) -> None:
    """Let the next process start at once; a lease taken over meanwhile is left alone."""

    def run(connection: Connection) -> None:
        connection.execute(
            update(leases)
            .where(
                leases.c.pipeline == catalog.pipeline,
                leases.c.stage == lease.stage,
                leases.c.token == lease.token,
                leases.c.holder == lease.holder,
            )
            .values(expires_at=0.0, pause=None)
        )

    catalog.change(run)


def note_pause(catalog: Catalog, lease: Lease, pause: str | None) -> None:
    """Let others know what the holder waits for; raises FencedError when there is another holder."""

    def run(connection: Connection) -> None:
        connection.execute(
            update(leases)
            .where(leases.c.pipeline == catalog.pipeline, leases.c.stage == lease.stage)
            .values(pause=pause)
        )

    catalog.write(lease.stage, lease.token, run)


class LeasePauses:
    """What the holder of a lease waits for, by subject; safe to use from several threads.

    What the catalog could not take, because it is away itself, is written the next time.
    """

    def __init__(self, catalog: Catalog, lease: Lease) -> None:
        self._catalog = catalog
        self._lease = lease
        self._lock = threading.Lock()
        self._reasons: dict[str, str] = {}
        self._written: str | None = None

    def set(self, subject: str, reason: str | None) -> None:
        """Raises FencedError when there is another holder."""
        with self._lock:
            if reason is None:
                self._reasons.pop(subject, None)
            else:
                self._reasons[subject] = reason
        self.write()

    def write(self) -> None:
        with self._lock:
            pause = "; ".join(self._reasons.values()) or None
            if pause == self._written:
                return
            with suppress(TransientError):
                note_pause(self._catalog, self._lease, pause)
                self._written = pause


def list_leases(catalog: Catalog) -> tuple[Lease, ...]:
    with catalog.read() as connection:
        rows = connection.execute(
            select(leases).where(leases.c.pipeline == catalog.pipeline).order_by(leases.c.stage)
        ).all()
    return tuple(
        Lease(
            pipeline=row.pipeline,
            stage=Stage(row.stage),
            token=row.token,
            holder=row.holder,
            expires_at=row.expires_at,
            pause=row.pause,
        )
        for row in rows
    )


class Heartbeat:
    """Renews leases in the background, at a third of their length; reports once when one is lost."""

    def __init__(
        self,
        catalog: Catalog,
        held: tuple[Lease, ...],
        *,
        lease_seconds: float,
        on_lost: Callable[[Exception], None],
        on_resumed: Callable[[], None] = lambda: None,
        read_passed: Callable[[], float] = read_uptime,
    ) -> None:
        """`on_resumed` is asked, after more time without a renewal than leases last, whether they are still ours."""
        self._catalog = catalog
        self._held = held
        self._lease_seconds = lease_seconds
        self._on_lost = on_lost
        self._on_resumed = on_resumed
        self._read_passed = read_passed
        self._renewed_at = read_passed()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="oncehouse-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._lease_seconds / 3):
            try:
                self._renew()
            except TransientError:
                continue  # the catalog is away: no process can write anything meanwhile
            except Exception as error:  # noqa: BLE001 - a thread's edge: a lease that is not renewed is lost
                self._on_lost(error)
                return

    def _renew(self) -> None:
        for lease in self._held:
            renew(self._catalog, lease, lease_seconds=self._lease_seconds)
        now = self._read_passed()
        if now - self._renewed_at > self._lease_seconds:
            # Another process may have had them meanwhile, and the catalog may have lost that.
            self._on_resumed()
        self._renewed_at = now


def _lease(catalog: Catalog, stage: Stage, values: dict[str, object]) -> Lease:
    return Lease(
        pipeline=catalog.pipeline,
        stage=stage,
        token=int(str(values["token"])),
        holder=str(values["holder"]),
        expires_at=float(str(values["expires_at"])),
    )
