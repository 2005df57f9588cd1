"""Buckets shared between members, on each database: fair shares, take-over, fencing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Engine, delete, insert, select, update

from oncehouse.common.database import begin, open_engine
from oncehouse.errors import FencedError
from oncehouse.messaging.bucket_leases import BucketLeases, read_leases, read_members
from oncehouse.messaging.outbox.tables import create_outbox, outbox_tables

TABLES = outbox_tables("outbox")


@pytest.fixture
def engine(catalog_url) -> Iterator[Engine]:
    opened = open_engine(catalog_url, setting="database")
    with begin(opened, whose="test") as connection:
        create_outbox(connection, TABLES)
    yield opened
    opened.dispose()


@pytest.fixture
def join(engine) -> Callable[..., BucketLeases]:
    def make(holder: str, name: str = "outbox") -> BucketLeases:
        return BucketLeases(engine, name=name, buckets=8, holder=holder, tables=TABLES.leases)

    return make


def run_out(engine: Engine, holder: str) -> None:
    """As if this member had died a lease ago."""
    for table in (TABLES.leases.leases, TABLES.leases.members):
        with begin(engine, whose="test") as connection:
            connection.execute(update(table).where(table.c.holder == holder).values(expires_at=1.0))


def test_one_member_holds_all_and_a_second_gets_its_half_when_it_is_given_up(join):
    a, b = join("a"), join("b")
    assert sorted(a.renew().tokens) == list(range(8))
    assert b.renew().tokens == {}
    share = a.renew()
    assert sorted(share.surplus) == [4, 5, 6, 7]
    assert len(share.tokens) == 8, "what is surplus is held until it is released"
    a.release({bucket: share.tokens[bucket] for bucket in share.surplus})
    assert sorted(b.renew().tokens) == [4, 5, 6, 7]
    assert sorted(a.renew().tokens) == [0, 1, 2, 3]
    assert a.renew().surplus == frozenset()


def test_what_a_dead_member_held_is_taken_with_higher_tokens_and_its_writes_are_refused(engine, join):
    a, b = join("a"), join("b")
    held = a.renew().tokens
    run_out(engine, "a")
    taken = b.renew().tokens
    assert sorted(taken) == sorted(held)
    assert all(taken[bucket] == held[bucket] + 1 for bucket in held)
    with begin(engine, whose="test") as connection:
        b.fence(connection, taken)
        with pytest.raises(FencedError, match="taken over 8 buckets of a"):
            a.fence(connection, held)
    a.release(held)
    assert b.renew().tokens == taken, "a former holder releases nothing"


def test_of_two_members_that_were_given_one_token_only_the_one_in_the_database_works(engine, join):
    """The database has lost that a took its buckets, and gives their tokens once more."""
    a, b = join("a"), join("b")
    a.leave(a.renew().tokens)
    leases = TABLES.leases.leases
    with engine.connect() as connection:
        before = [dict(row) for row in connection.execute(select(leases)).mappings()]
    held = a.renew().tokens
    with begin(engine, whose="test") as connection:
        connection.execute(delete(leases))
        connection.execute(insert(leases), before)
        connection.execute(delete(TABLES.leases.members))
    assert b.renew().tokens == held
    with begin(engine, whose="test") as connection:
        b.fence(connection, held)
        with pytest.raises(FencedError, match="taken over 8 buckets of a"):
            a.fence(connection, held)
    a.release(held)
    assert b.renew().tokens == held, "who was forgotten releases nothing"


def test_a_member_whose_lease_ran_out_goes_on_when_nobody_took_its_buckets(engine, join):
    a = join("a")
    held = a.renew().tokens
    run_out(engine, "a")
    assert a.renew().tokens == held


def test_who_leaves_is_no_member_and_leaves_its_buckets_free(engine, join):
    a, b = join("a"), join("b")
    a.leave(a.renew().tokens)
    with engine.connect() as connection:
        assert read_members(connection, TABLES.leases, "outbox") == ()
        assert not any(lease.live for lease in read_leases(connection, TABLES.leases, "outbox"))
    assert len(b.renew().tokens) == 8


def test_names_do_not_meet(join):
    assert len(join("a", name="one").renew().tokens) == 8
    assert len(join("b", name="two").renew().tokens) == 8


def test_a_sleeper_says_so_until_it_wakes(engine, join):
    a = join("a")
    members = TABLES.leases.members
    for asleep, say in ((True, a.renew), (False, a.set_asleep)):
        say(asleep=asleep)
        with engine.connect() as connection:
            assert connection.execute(select(members.c.asleep)).scalars().all() == [asleep]


def test_members_that_died_long_ago_are_forgotten(engine, join):
    join("a").renew()
    run_out(engine, "a")
    share = join("b").renew()
    assert share.members == 1
    with engine.connect() as connection:
        assert [m.holder for m in read_members(connection, TABLES.leases, "outbox")] == ["b"]
