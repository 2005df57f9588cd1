"""A sync's lease, held by a run or a backfill, with the token that its transactions are checked against.

The lease only keeps two processes from doing the same work. What keeps data right is that a number is taken, and a
reading confirmed, in transactions that `fence` has let through.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from sqlalchemy import Connection, Engine

from oncehouse.errors import OncehouseError
from oncehouse.messaging.bucket_leases import BucketLeases, read_members
from oncehouse.messaging.database import transact
from oncehouse.sync.model.declaration import Declaration
from oncehouse.sync.tables import ABSENT, lease_tables

_ONLY_BUCKET = 0
# The first holder by name gets a free lease: those that wait come before the runs that try once and leave.
_RUN, _WAITING = "sync", "fill"


@dataclass(kw_only=True)
class SyncLease:
    engine: Engine
    leases: BucketLeases
    tokens: Mapping[int, int]
    renew_at: float
    is_wanted: bool = False
    """A backfill waits for it, which does all that a run does: a run that has no end gives way."""

    def renew(self) -> bool:
        """Whether the lease is still ours; asks the database only when a third of its time has passed."""
        if time.monotonic() < self.renew_at:
            return True
        begun_at = time.monotonic()
        share = self.leases.renew()
        self.tokens = share.tokens
        self.renew_at = begun_at + self.leases.lease_seconds / 3
        # Another run that looks in at this moment is a member too, but does not wait.
        self.is_wanted = bool(share.surplus) and self._is_waited_for()
        return self.is_held

    def _is_waited_for(self) -> bool:
        with transact(self.engine, f"Who waits for {self.leases.name}", absent=ABSENT) as connection:
            members = read_members(connection, lease_tables, self.leases.name)
        return any(one.live and one.holder.startswith(f"{_WAITING}-") for one in members)

    @property
    def is_held(self) -> bool:
        return _ONLY_BUCKET in self.tokens

    def fence(self, connection: Connection) -> None:
        """Keep the lease ours until the caller's transaction ends; raises FencedError when it is ours no longer."""
        self.leases.fence(connection, self.tokens)


@contextmanager
def hold_lease(
    engine: Engine, declared: Declaration, *, wait: Callable[[], bool] | None = None
) -> Iterator[SyncLease | None]:
    """None where another process holds it. `wait` pauses before the next look, and says whether to look again."""
    leases = BucketLeases(
        engine,
        name=f"sync:{declared.name}",
        buckets=1,
        # New for each run: two threads of a process must not pass for one holder.
        holder=f"{_WAITING if wait else _RUN}-{uuid.uuid4()}",
        lease_seconds=declared.lease_seconds,
        tables=lease_tables,
    )
    hold = SyncLease(engine=engine, leases=leases, tokens={}, renew_at=0.0)
    try:
        hold.renew()
        while wait is not None and not hold.is_held and wait():
            hold.renew_at = 0.0
            hold.renew()
        yield hold if hold.is_held else None
    finally:
        with suppress(OncehouseError):  # it runs out by itself
            leases.leave(hold.tokens)
