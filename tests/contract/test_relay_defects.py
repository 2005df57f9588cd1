"""What would go wrong in a relay made otherwise: each scenario holds for the relay as it is, and finds its defect.

One lane at a time, step by step, on PostgreSQL and with a Kafka in memory, so that nothing hangs on luck.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from sqlalchemy import Connection, Engine, delete, insert, select, update

from oncehouse.common.backoff import Backoff
from oncehouse.common.database import begin, open_engine
from oncehouse.messaging.bucket_leases import BucketLeases
from oncehouse.messaging.outbox.ids import make_id
from oncehouse.messaging.outbox.relay.postgres_store import PostgresStore
from oncehouse.messaging.outbox.relay.types import ClaimedRow, SendResult, SentPosition
from oncehouse.messaging.outbox.relay.worker import RelayWorker, RoundLimits
from oncehouse.messaging.outbox.tables import BUCKETS, bucket_of
from outbox_examples import TABLES, MemoryKafka, check_order, open_outbox, write

OUTBOX = TABLES.outbox
KEY = b"k"


class CrashError(Exception):
    """The process dies here."""


class Sound(PostgresStore):
    """The store as it is."""


class SettlesFirst(PostgresStore):
    def claim(self, tokens, **limits):
        rows = super().claim(tokens, **limits)
        places = [SentPosition(row.seq, 0, 0) for row in rows]
        self.settle(tokens, SendResult(acknowledged=[row.seq for row in rows], positions=places))
        return rows


class RemembersHowFar(PostgresStore):
    highest = 0

    def claim(self, tokens, **limits):
        rows = [row for row in super().claim(tokens, **limits) if row.seq > self.highest]
        self.highest = max([self.highest, *(row.seq for row in rows)])
        return rows


class ForgetsWhoIsParked(PostgresStore):
    def claim(self, tokens, **limits):
        return [row._replace(behind=None) for row in super().claim(tokens, **limits)]


class LocksRowsAlone(PostgresStore):
    """Rows claimed by SKIP LOCKED whatever their key, as queues often are: no buckets, no leases."""

    transaction: Connection | None = None

    def claim(self, tokens, **limits):
        self.transaction = self._engine.connect()
        waiting = select(OUTBOX).where(OUTBOX.c.parked_at.is_(None)).order_by(OUTBOX.c.seq).limit(2)
        found = self.transaction.execute(waiting.with_for_update(skip_locked=True)).all()
        if not found:
            self.transaction.close()
        return [
            ClaimedRow(r.seq, r.bucket, str(r.id), r.topic, r.key, r.value, r.headers, None) for r in found
        ]

    def settle(self, tokens, sent):
        self.transaction.execute(delete(OUTBOX).where(OUTBOX.c.seq.in_(sent.acknowledged)))
        self.transaction.commit()
        self.transaction.close()
        return len(sent.acknowledged)


@dataclass
class Sender:
    kafka: MemoryKafka
    before: list[Callable[[], None]] = field(default_factory=list)
    """What happens when rows have been claimed and not yet sent, once each."""

    def send(self, rows: Sequence[ClaimedRow], *, give_up_at: float) -> SendResult:
        if self.before:
            self.before.pop()()
        return self.kafka.take(rows)

    def close(self) -> None:
        pass


@dataclass
class Process:
    lane: RelayWorker
    sender: Sender
    store: PostgresStore
    tokens: Mapping[int, int]

    def step(self) -> int:
        return self.lane.run_round(self.tokens).claimed

    def finish(self) -> None:
        while self.step():
            pass


@dataclass
class RelaySetup:
    engine: Engine
    url: str
    kafka: MemoryKafka = field(default_factory=MemoryKafka)
    opened: list[PostgresStore] = field(default_factory=list)

    def start(self, kind: type[PostgresStore], *, tokens: Mapping[int, int] | None = None) -> Process:
        """A relay's process with one lane; it takes the buckets that are free, or believes it has these."""
        store = kind(open_engine(self.url, setting="database"), TABLES)
        self.opened.append(store)
        leases = BucketLeases(
            self.engine, name=TABLES.name, buckets=BUCKETS, holder=str(len(self.opened)), tables=TABLES.leases
        )
        sender = Sender(self.kafka)
        lane = RelayWorker(
            store=store,
            sender=sender,
            limits=RoundLimits(),
            backoff=Backoff(base_seconds=0, longest_seconds=0),
            may_continue=lambda: True,
            on_round=lambda _: None,
        )
        return Process(lane, sender, store, leases.renew().tokens if tokens is None else tokens)

    def numbers(self) -> list[int]:
        return [int(value) for value in self.kafka.values(KEY)]


@pytest.fixture
def setup(postgres_url) -> Iterator[RelaySetup]:
    with open_outbox(postgres_url) as engine:
        made = RelaySetup(engine, postgres_url)
        yield made
        for store in made.opened:
            store.close()


def write_numbers(setup: RelaySetup, *numbers: int) -> None:
    write(setup.engine, [(KEY, b"%d" % number) for number in numbers])


def scenarios(defect: type[PostgresStore], wrong: str):
    return pytest.mark.parametrize(
        ("kind", "wrong"), [(Sound, None), (defect, wrong)], ids=["sound", "defect"]
    )


def expect(found: str | None, wrong: str | None) -> None:
    assert (found is None) == (wrong is None), found
    assert wrong is None or wrong in found


@scenarios(SettlesFirst, "missing")
def test_a_process_that_dies_before_it_sent_what_it_claimed_loses_nothing(setup, kind, wrong):
    write_numbers(setup, 0, 1, 2)
    first = setup.start(kind)

    def die() -> None:
        raise CrashError

    first.sender.before.append(die)
    with pytest.raises(CrashError):
        first.step()
    # Whoever comes next has the buckets under a token of its own; here it is enough that it goes on.
    setup.start(Sound, tokens=first.tokens).finish()
    expect(check_order(setup.numbers(), 3), wrong)


@scenarios(RemembersHowFar, "missing")
def test_a_row_that_commits_late_is_sent_all_the_same(setup, kind, wrong):
    process = setup.start(kind)
    with begin(setup.engine, whose="test") as late:
        values = {"id": make_id(), "bucket": bucket_of(KEY, make_id()), "topic": "orders", "key": KEY}
        late.execute(insert(OUTBOX).values(value=b"0", **values))
        write(setup.engine, [(b"another", b"0")])
        process.finish()
    process.finish()
    expect(check_order(setup.numbers(), 1), wrong)


@scenarios(ForgetsWhoIsParked, "came after")
def test_nothing_overtakes_a_parked_message_of_its_key(setup, kind, wrong):
    write_numbers(setup, 0)
    write(setup.engine, [(KEY, b"poison")])
    process = setup.start(kind)
    process.finish()
    write_numbers(setup, 2)
    process.finish()
    numbers = setup.numbers()
    expect(check_order(numbers, max(numbers) + 1) and f"{numbers[-1]} came after {numbers[0]}", wrong)


@scenarios(LocksRowsAlone, "came after")
def test_a_second_relay_sends_nothing_of_a_key_that_the_first_is_at(setup, kind, wrong):
    write_numbers(setup, 0, 1, 2, 3)
    first = setup.start(kind)
    second = setup.start(kind, tokens=None if kind is Sound else first.tokens)
    first.sender.before.append(second.step)
    first.step()
    first.finish()
    expect(check_order(setup.numbers(), 4), wrong)


@pytest.mark.parametrize("fenced", [True, False], ids=["sound", "defect"])
def test_without_a_crash_nothing_is_sent_twice(setup, fenced):
    write_numbers(setup, 0, 1)
    first = setup.start(Sound)
    # The defect: the second believes it holds the first one's buckets.
    second = setup.start(Sound, tokens=None if fenced else first.tokens)
    first.sender.before.append(second.finish)
    first.finish()
    assert check_order(setup.numbers(), 2) is None
    assert (setup.numbers() == [0, 1]) == fenced


def test_a_relay_that_slept_through_its_lease_only_repeats_and_changes_nothing(setup):
    write_numbers(setup, 0, 1)
    first = setup.start(Sound)

    def take_over() -> None:
        for table in (TABLES.leases.leases, TABLES.leases.members):
            with begin(setup.engine, whose="test") as connection:
                connection.execute(update(table).values(expires_at=1.0))
        write_numbers(setup, 2)
        second = setup.start(Sound)
        assert set(second.tokens) == set(first.tokens)
        second.step()
        write_numbers(setup, 3)

    first.sender.before.append(take_over)
    first.step()
    assert setup.numbers() == [0, 1, 2, 0, 1]
    with setup.engine.connect() as connection:
        assert connection.execute(select(OUTBOX.c.value)).scalars().all() == [b"3"]
    assert first.step() == 0, "its buckets are another's now"
    assert first.lane.run_round({}).claimed == 0


def test_a_relay_that_could_not_renew_its_leases_sends_nothing_of_what_it_claimed(setup):
    write_numbers(setup, 0)
    first = setup.start(Sound)
    first.lane._may_continue = lambda: False
    assert first.lane.run_round(first.tokens).error == "the leases could not be renewed in time"
    assert setup.numbers() == []
