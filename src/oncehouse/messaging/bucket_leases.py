"""Buckets of work shared between processes: each bucket is worked by one holder at a time, fenced by a token.

A *name* (an outbox, a stored inbox) has a fixed number of buckets; every process that works on it is a *member*. A
member calls `tend` about three times within `lease_seconds`: that tells the others it lives, renews its buckets, takes
free ones up to its fair share, and names those it holds beyond it, which it releases once nothing of them is under way.
Who dies loses its buckets when its lease has run out. All times are the database's own, so a wrong clock can neither
keep nor steal a bucket. A token grows with every holder: `fence` refuses the writes of a former one, in the same
transaction. What a bucket means and what is done with it is the caller's.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Engine,
    Float,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    String,
    Table,
    Text,
    delete,
    insert,
    select,
    update,
)

from oncehouse.common.database import DatabaseClock, begin
from oncehouse.errors import FencedError
from oncehouse.messaging.database import storage_parameters

LEASES_TABLE = "oncehouse_bucket_leases"
MEMBERS_TABLE = "oncehouse_bucket_members"
_NOBODY = ""
# Small tables that are updated every few seconds: room in the page for it, and vacuum that does not wait.
_BUSY_TABLE = {"fillfactor": 50, "autovacuum_vacuum_scale_factor": 0, "autovacuum_vacuum_threshold": 500}


@dataclass(frozen=True, kw_only=True)
class LeaseTables:
    leases: Table
    members: Table


@dataclass(frozen=True, kw_only=True)
class BucketLease:
    bucket: int
    holder: str
    """Empty when somebody released it."""
    token: int
    live: bool
    """Whether its time has not run out, by the database's clock."""
    seconds_left: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Member:
    holder: str
    live: bool
    asleep: bool
    """It waits to be notified; writers may leave others alone."""


@dataclass(frozen=True, kw_only=True)
class SharePlan:
    keep: tuple[int, ...]
    """Buckets to renew, the surplus among them."""
    take: tuple[int, ...]
    surplus: tuple[int, ...]
    """Of those kept: what belongs to others, to be released when nothing of it is under way."""


@dataclass(frozen=True, kw_only=True)
class Share:
    tokens: Mapping[int, int]
    """The buckets that are ours, each with its fencing token."""
    surplus: frozenset[int]
    members: int
    valid_until: float
    """By `time.monotonic`: nothing may be begun after it unless `tend` has been called again."""


def define_lease_tables(metadata: MetaData, schema: str | None = None) -> LeaseTables:
    """The two tables, shared by everything in this schema that has buckets."""
    leases = Table(
        LEASES_TABLE,
        metadata,
        Column("name", String(128)),
        Column("bucket", SmallInteger),
        Column("holder", Text, nullable=False),
        Column("token", BigInteger, nullable=False),
        Column("expires_at", Float(53), nullable=False),
        PrimaryKeyConstraint("name", "bucket"),
        schema=schema,
        **storage_parameters(_BUSY_TABLE),
        keep_existing=True,
    )
    members = Table(
        MEMBERS_TABLE,
        metadata,
        Column("name", String(128)),
        Column("holder", Text),
        Column("expires_at", Float(53), nullable=False),
        Column("asleep", Boolean, nullable=False),
        PrimaryKeyConstraint("name", "holder"),
        schema=schema,
        **storage_parameters(_BUSY_TABLE),
        keep_existing=True,
    )
    return LeaseTables(leases=leases, members=members)


@cache
def lease_tables(schema: str | None = None) -> LeaseTables:
    """The tables with metadata of their own, for those who have no other tables to put beside them."""
    return define_lease_tables(MetaData(), schema)


def plan_share(leases: Sequence[BucketLease], live_members: Collection[str], me: str) -> SharePlan:
    """What this member should hold. Pure: every member that sees the same rows comes to shares that fit together."""
    members = sorted({*live_members, me})
    least, more = divmod(len(leases), len(members))
    target = least + (members.index(me) < more)
    # One of ours that ran out and that nobody took is still ours: its token says so.
    mine = [lease.bucket for lease in leases if lease.holder == me]
    free = [lease.bucket for lease in leases if lease.holder != me and not lease.live]
    return SharePlan(
        keep=tuple(mine),
        take=tuple(free[: max(0, target - len(mine))]),
        surplus=tuple(mine[target:]),
    )


class BucketLeases:
    """One member's hold on the buckets of a name. Calls may come from several threads, one `tend` at a time."""

    def __init__(
        self,
        engine: Engine,
        *,
        name: str,
        buckets: int,
        holder: str,
        lease_seconds: float = 15.0,
        tables: LeaseTables | None = None,
    ) -> None:
        self.name = name
        self.holder = holder
        self.lease_seconds = lease_seconds
        self._engine = engine
        self._buckets = buckets
        self._tables = tables or lease_tables()
        self._joined = False

    def tend(self, *, asleep: bool = False) -> Share:
        """Say that we live, renew, take what is free and ours by right. Raises TransientError without a database."""
        begun_at = time.monotonic()
        with begin(self._engine, whose=f"Buckets of {self.name}") as connection:
            self._sign_in(connection, asleep=asleep)
            # In one order for all and with their locks: two members never wait for each other in a circle.
            leases = read_leases(connection, self._tables, self.name, lock=True)
            members = read_members(connection, self._tables, self.name)
            live = [member.holder for member in members if member.live]
            plan = plan_share(leases, live, self.holder)
            tokens = {lease.bucket: lease.token for lease in leases if lease.bucket in plan.keep}
            tokens |= {lease.bucket: lease.token + 1 for lease in leases if lease.bucket in plan.take}
            self._write(connection, plan)
            if len(live) < len(members):
                self._forget_the_dead(connection)
        self._joined = True
        return Share(
            tokens=tokens,
            surplus=frozenset(plan.surplus),
            members=len(live),
            valid_until=begun_at + self.lease_seconds,
        )

    def say_asleep(self, *, asleep: bool) -> None:
        """Tell writers whether a notification is wanted, between two calls of `tend`."""
        members = self._tables.members
        with begin(self._engine, whose=f"Buckets of {self.name}") as connection:
            connection.execute(
                update(members)
                .where(members.c.name == self.name, members.c.holder == self.holder)
                .values(asleep=asleep)
            )

    def release(self, tokens: Mapping[int, int]) -> None:
        """Let others take these at once. What was taken over meanwhile is left alone."""
        leases = self._tables.leases
        if not tokens:
            return
        with begin(self._engine, whose=f"Buckets of {self.name}") as connection:
            held = lock_held(connection, self._tables, self.name, tokens, holder=self.holder)
            connection.execute(
                update(leases)
                .where(leases.c.name == self.name, leases.c.bucket.in_(sorted(held)))
                .values(expires_at=0.0, holder=_NOBODY)
            )

    def leave(self, tokens: Mapping[int, int]) -> None:
        """Release everything and be no member any more."""
        self.release(tokens)
        members = self._tables.members
        with begin(self._engine, whose=f"Buckets of {self.name}") as connection:
            connection.execute(
                delete(members).where(members.c.name == self.name, members.c.holder == self.holder)
            )
        self._joined = False

    def fence(self, connection: Connection, tokens: Mapping[int, int]) -> None:
        """Hold these buckets until the caller's transaction ends; raises FencedError when one is ours no longer.

        On SQLite the transaction must have been begun as a writing one (`databases.begin`).
        """
        lost = sorted(
            set(tokens) - lock_held(connection, self._tables, self.name, tokens, holder=self.holder)
        )
        if lost:
            raise FencedError(
                f"{self.name}: another process has taken over {len(lost)} buckets of {self.holder} (the first: "
                f"{lost[0]}). Nothing of them was written."
            )

    def _sign_in(self, connection: Connection, *, asleep: bool) -> None:
        members, expires_at = self._tables.members, DatabaseClock() + self.lease_seconds
        mine = (members.c.name == self.name, members.c.holder == self.holder)
        signed = connection.execute(update(members).where(*mine).values(expires_at=expires_at, asleep=asleep))
        if signed.rowcount == 0:
            connection.execute(
                insert(members).values(
                    name=self.name, holder=self.holder, expires_at=expires_at, asleep=asleep
                )
            )
        if not self._joined:
            make_buckets(connection, self._tables, self.name, self._buckets)

    def _write(self, connection: Connection, plan: SharePlan) -> None:
        leases, expires_at = self._tables.leases, DatabaseClock() + self.lease_seconds
        for buckets, more in ((plan.keep, 0), (plan.take, 1)):
            if buckets:
                connection.execute(
                    update(leases)
                    .where(leases.c.name == self.name, leases.c.bucket.in_(buckets))
                    .values(expires_at=expires_at, holder=self.holder, token=leases.c.token + more)
                )

    def _forget_the_dead(self, connection: Connection) -> None:
        members = self._tables.members
        long_gone = DatabaseClock() - 20 * self.lease_seconds
        connection.execute(
            delete(members).where(members.c.name == self.name, members.c.expires_at < long_gone)
        )


def make_buckets(connection: Connection, tables: LeaseTables, name: str, buckets: int) -> None:
    """The rows of a name's buckets, held by nobody; those that are there stay as they are."""
    from sqlalchemy.dialects import postgresql, sqlite

    # The two dialects spell it alike, and each has it in a construct of its own.
    new = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(tables.leases)
    rows = [
        {"name": name, "bucket": bucket, "holder": _NOBODY, "token": 0, "expires_at": 0.0}
        for bucket in range(buckets)
    ]
    connection.execute(new.values(rows).on_conflict_do_nothing())


def lock_held(
    connection: Connection,
    tables: LeaseTables,
    name: str,
    tokens: Mapping[int, int],
    *,
    holder: str | None = None,
) -> set[int]:
    """Which of these buckets still have these tokens; nobody can take those until the transaction ends.

    `holder`: who must have them, for a database that has lost the taking of a bucket may give its token once more.
    """
    leases = tables.leases
    rows = connection.execute(
        select(leases.c.bucket, leases.c.token, leases.c.holder)
        .where(leases.c.name == name, leases.c.bucket.in_(sorted(tokens)))
        .order_by(leases.c.bucket)
        .with_for_update(read=True)
    )
    return {row.bucket for row in rows if tokens[row.bucket] == row.token and holder in (None, row.holder)}


def lock_buckets(connection: Connection, tables: LeaseTables, name: str, buckets: Iterable[int]) -> None:
    """For a person's hand: no holder can write to these buckets until the transaction ends, whoever it is."""
    leases = tables.leases
    connection.execute(
        select(leases.c.bucket)
        .where(leases.c.name == name, leases.c.bucket.in_(sorted(buckets)))
        .order_by(leases.c.bucket)
        .with_for_update()
    ).all()


def read_leases(
    connection: Connection, tables: LeaseTables, name: str, *, lock: bool = False
) -> tuple[BucketLease, ...]:
    leases = tables.leases
    asked = select(
        leases.c.bucket,
        leases.c.holder,
        leases.c.token,
        (leases.c.expires_at - DatabaseClock()).label("seconds_left"),
    )
    asked = asked.where(leases.c.name == name).order_by(leases.c.bucket)
    rows = connection.execute(asked.with_for_update() if lock else asked)
    return tuple(
        BucketLease(
            bucket=row.bucket,
            holder=row.holder,
            token=row.token,
            live=row.seconds_left > 0,
            seconds_left=max(0.0, row.seconds_left),
        )
        for row in rows
    )


def read_members(connection: Connection, tables: LeaseTables, name: str) -> tuple[Member, ...]:
    members = tables.members
    rows = connection.execute(
        select(members.c.holder, members.c.asleep, (members.c.expires_at > DatabaseClock()).label("live"))
        .where(members.c.name == name)
        .order_by(members.c.holder)
    )
    return tuple(Member(holder=row.holder, live=bool(row.live), asleep=row.asleep) for row in rows)
