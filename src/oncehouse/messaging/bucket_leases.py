"""Buckets of work shared between processes: each bucket is worked by one holder at a time, fenced by a token.

A *name* (an outbox, a stored inbox) has a fixed number of buckets; every process that works on it is a *member*. A
member calls `renew` about three times within `lease_seconds`: that shows the others it lives, renews its buckets, takes
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
_NO_HOLDER = ""
# Small tables that are updated every few seconds: free space in each page, and an eager vacuum.
_BUSY_TABLE = {"fillfactor": 50, "autovacuum_vacuum_scale_factor": 0, "autovacuum_vacuum_threshold": 500}


@dataclass(frozen=True, kw_only=True)
class LeaseTables:
    leases: Table
    members: Table


@dataclass(frozen=True, kw_only=True)
class BucketLease:
    bucket: int
    holder: str
    """Empty if the bucket was released."""
    token: int
    live: bool
    """Whether it has not expired, by the database's clock."""
    seconds_left: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Member:
    holder: str
    live: bool
    asleep: bool
    """It waits for a notification; writers notify only members that sleep."""


@dataclass(frozen=True, kw_only=True)
class SharePlan:
    keep: tuple[int, ...]
    """Buckets to renew, the surplus among them."""
    take: tuple[int, ...]
    surplus: tuple[int, ...]
    """Of those kept: buckets beyond the fair share, to be released once no work of theirs is under way."""


@dataclass(frozen=True, kw_only=True)
class Share:
    tokens: Mapping[int, int]
    """The buckets held by this member, each with its fencing token."""
    surplus: frozenset[int]
    members: int
    valid_until: float
    """By `time.monotonic`: no work may begin after it unless `renew` was called again."""


def define_lease_tables(metadata: MetaData, schema: str | None = None) -> LeaseTables:
    """The two tables, shared by all outboxes and inboxes of this schema."""
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
    """The tables in metadata of their own, for callers without other tables."""
    return define_lease_tables(MetaData(), schema)


def plan_share(leases: Sequence[BucketLease], live_members: Collection[str], me: str) -> SharePlan:
    """What this member should hold. Pure: members that see the same rows compute shares that do not overlap."""
    members = sorted({*live_members, me})
    least, more = divmod(len(leases), len(members))
    target = least + (members.index(me) < more)
    # An expired bucket that no other member took is still held by this one: its token is unchanged.
    mine = [lease.bucket for lease in leases if lease.holder == me]
    free = [lease.bucket for lease in leases if lease.holder != me and not lease.live]
    return SharePlan(
        keep=tuple(mine),
        take=tuple(free[: max(0, target - len(mine))]),
        surplus=tuple(mine[target:]),
    )


class BucketLeases:
    """One member's leases on the buckets of a name. Thread-safe, but for one `renew` at a time."""

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

    def renew(self, *, asleep: bool = False) -> Share:
        """Extend membership and leases, and take free buckets up to the fair share. May raise TransientError."""
        started_at = time.monotonic()
        with begin(self._engine, whose=f"Buckets of {self.name}") as connection:
            self._register(connection, asleep=asleep)
            # Locked in one order by all members, so that two members cannot deadlock.
            leases = read_leases(connection, self._tables, self.name, lock=True)
            members = read_members(connection, self._tables, self.name)
            live = [member.holder for member in members if member.live]
            plan = plan_share(leases, live, self.holder)
            tokens = {lease.bucket: lease.token for lease in leases if lease.bucket in plan.keep}
            tokens |= {lease.bucket: lease.token + 1 for lease in leases if lease.bucket in plan.take}
            self._write(connection, plan)
            if len(live) < len(members):
                self._delete_dead_members(connection)
        self._joined = True
        return Share(
            tokens=tokens,
            surplus=frozenset(plan.surplus),
            members=len(live),
            valid_until=started_at + self.lease_seconds,
        )

    def set_asleep(self, *, asleep: bool) -> None:
        """Say whether writers should notify this member, between two calls of `renew`."""
        members = self._tables.members
        with begin(self._engine, whose=f"Buckets of {self.name}") as connection:
            connection.execute(
                update(members)
                .where(members.c.name == self.name, members.c.holder == self.holder)
                .values(asleep=asleep)
            )

    def release(self, tokens: Mapping[int, int]) -> None:
        """Let other members take these at once. Buckets that were taken over already are left alone."""
        leases = self._tables.leases
        if not tokens:
            return
        with begin(self._engine, whose=f"Buckets of {self.name}") as connection:
            held = lock_held(connection, self._tables, self.name, tokens, holder=self.holder)
            connection.execute(
                update(leases)
                .where(leases.c.name == self.name, leases.c.bucket.in_(sorted(held)))
                .values(expires_at=0.0, holder=_NO_HOLDER)
            )

    def leave(self, tokens: Mapping[int, int]) -> None:
        """Release all buckets and end the membership."""
        self.release(tokens)
        members = self._tables.members
        with begin(self._engine, whose=f"Buckets of {self.name}") as connection:
            connection.execute(
                delete(members).where(members.c.name == self.name, members.c.holder == self.holder)
            )
        self._joined = False

    def fence(self, connection: Connection, tokens: Mapping[int, int]) -> None:
        """Lock these buckets until the caller's transaction ends; raises FencedError if another member holds one.

        On SQLite the transaction must have been begun as a writing one (`common.database.begin`).
        """
        lost = sorted(
            set(tokens) - lock_held(connection, self._tables, self.name, tokens, holder=self.holder)
        )
        if lost:
            raise FencedError(
                f"{self.name}: another process has taken over {len(lost)} buckets of {self.holder} (the first: "
                f"{lost[0]}). Nothing of them was written."
            )

    def _register(self, connection: Connection, *, asleep: bool) -> None:
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
            create_buckets(connection, self._tables, self.name, self._buckets)

    def _write(self, connection: Connection, plan: SharePlan) -> None:
        leases, expires_at = self._tables.leases, DatabaseClock() + self.lease_seconds
        for buckets, more in ((plan.keep, 0), (plan.take, 1)):
            if buckets:
                connection.execute(
                    update(leases)
                    .where(leases.c.name == self.name, leases.c.bucket.in_(buckets))
                    .values(expires_at=expires_at, holder=self.holder, token=leases.c.token + more)
                )

    def _delete_dead_members(self, connection: Connection) -> None:
        members = self._tables.members
        long_expired = DatabaseClock() - 20 * self.lease_seconds
        connection.execute(
            delete(members).where(members.c.name == self.name, members.c.expires_at < long_expired)
        )


def create_buckets(connection: Connection, tables: LeaseTables, name: str, buckets: int) -> None:
    """Insert the rows of a name's buckets, without a holder; existing rows stay as they are."""
    from sqlalchemy.dialects import postgresql, sqlite

    # Both dialects have ON CONFLICT, each in a construct of its own.
    new = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(tables.leases)
    rows = [
        {"name": name, "bucket": bucket, "holder": _NO_HOLDER, "token": 0, "expires_at": 0.0}
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
    """Which of these buckets still have these tokens; no member can take those until the transaction ends.

    `holder` must hold them, too: a database that lost a committed takeover can issue its token a second time.
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
    """For administrative changes: no holder can write to these buckets until the transaction ends."""
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
    query = select(
        leases.c.bucket,
        leases.c.holder,
        leases.c.token,
        (leases.c.expires_at - DatabaseClock()).label("seconds_left"),
    )
    query = query.where(leases.c.name == name).order_by(leases.c.bucket)
    rows = connection.execute(query.with_for_update() if lock else query)
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
