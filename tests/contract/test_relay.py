"""The relay on each database, with a Kafka in memory: what is sent, what is parked, what is left when it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from sqlalchemy import Engine, create_engine, func, select, update

from live_pipeline import wait_until
from oncehouse.common.database import begin
from oncehouse.errors import ConfigurationError, PermanentError
from oncehouse.messaging.outbox import open as opening
from oncehouse.messaging.outbox import parked
from oncehouse.messaging.outbox.parked import ParkedSelection
from oncehouse.messaging.outbox.relay.progress import RelayProgress
from oncehouse.messaging.outbox.relay.relay import Relay
from oncehouse.messaging.outbox.relay.settings import RelaySettings
from oncehouse.messaging.outbox.relay.types import ClaimedRow, SendResult
from oncehouse.messaging.outbox.status import OutboxStatus, read_status
from outbox_examples import TABLES, MemoryKafka, check_order, open_outbox, write

NEVER_SECONDS = 3600.0


@pytest.fixture
def engine(catalog_url) -> Iterator[Engine]:
    with open_outbox(catalog_url) as engine:
        yield engine


@pytest.fixture
def memory_kafka() -> MemoryKafka:
    return MemoryKafka()


@pytest.fixture
def make_relay(catalog_url, engine, memory_kafka) -> Callable[..., Relay]:
    def make(**settings: object) -> Relay:
        return Relay(
            database=catalog_url,
            bootstrap_servers="nowhere:1",
            settings=RelaySettings(**{"longest_backoff": 0.01} | settings),
            open_sender=memory_kafka.open_sender,
        )

    return make


@contextmanager
def running(*relays: Relay) -> Iterator[None]:
    """Relays in threads of their own until the block ends; what they raise is raised here."""
    stop, errors = threading.Event(), []

    def run(relay: Relay) -> None:
        try:
            relay.run(stop=stop)
        except Exception as error:  # noqa: BLE001 - handed to the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=[relay]) for relay in relays]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


def read(engine: Engine) -> OutboxStatus:
    with engine.connect() as connection:
        return read_status(connection, TABLES)


def count_rows(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(TABLES.outbox)).scalar_one()


def test_all_that_waits_is_sent_once_in_order_and_the_table_is_empty(engine, memory_kafka, make_relay):
    for number in range(300):
        write(engine, [(f"key {number % 7}".encode(), str(number // 7).encode())])
    seen: list[RelayProgress] = []
    done = make_relay(round_rows=20).run(once=True, progress=seen.append)
    assert (done.sent, done.parked, done.failures) == (300, 0, 0)
    assert len(memory_kafka.messages) == 300
    for key in range(7):
        numbers = [int(value) for value in memory_kafka.values(f"key {key}".encode())]
        assert check_order(numbers, len(range(key, 300, 7))) is None
    assert count_rows(engine) == 0
    assert max(progress.sent for progress in seen) == 300


def test_rows_that_are_kept_say_where_they_are_in_kafka(engine, memory_kafka, make_relay):
    write(engine, [(b"a", b"1"), (b"a", b"2")])
    make_relay(keep="1h").run(once=True)
    with engine.connect() as connection:
        found = connection.execute(select(TABLES.outbox.c.sent_offset).order_by(TABLES.outbox.c.seq))
        assert found.scalars().all() == [0, 1]
    assert read(engine).sent_kept == 2
    make_relay(keep="1h").run(once=True)
    assert len(memory_kafka.messages) == 2


def test_a_poison_row_parks_its_key_and_nothing_else(engine, memory_kafka, make_relay):
    write(engine, [(b"a", b"poison"), (b"a", b"1"), (b"b", b"2")])
    make_relay().run(once=True)
    write(engine, [(b"a", b"3"), (b"b", b"4")])
    done = make_relay().run(once=True)
    assert memory_kafka.values() == [b"2", b"4"]
    status = read(engine)
    assert (status.waiting, status.parked, status.behind) == (0, 1, 2)
    assert status.parked_messages[0].error == "too bad"
    memory_kafka.refuses = False
    parked.retry(engine, TABLES, ParkedSelection(all=True))
    make_relay().run(once=True)
    assert memory_kafka.values(b"a") == [b"poison", b"1", b"3"]
    assert count_rows(engine) == 0
    assert done.parked == 1


def test_while_kafka_is_away_nothing_is_parked_and_the_failure_is_told(engine, memory_kafka, make_relay):
    write(engine, [(b"a", b"1"), (b"a", b"2")])
    memory_kafka.error = "broker away"
    with running(make_relay()):
        wait_until(lambda: read(engine).attempts >= 3, "three attempts")
        status = read(engine)
        assert (status.waiting, status.parked, status.failing) == (2, 0, 1)
        assert status.last_error == "broker away"
        memory_kafka.error = None
        wait_until(lambda: count_rows(engine) == 0, "an empty table")
    assert memory_kafka.values() == [b"1", b"2"]


def test_a_relay_that_ends_leaves_its_buckets_to_the_next_at_once(engine, make_relay):
    with running(make_relay()):
        wait_until(lambda: any(relay.buckets for relay in read(engine).relays), "a relay with buckets")
    status = read(engine)
    assert (status.relays, status.free_buckets) == ((), 64)


def test_relays_share_the_buckets_and_send_nothing_twice(engine, memory_kafka, make_relay):
    written = 0
    with running(make_relay(lease=3), make_relay(lease=3)):
        wait_until(lambda: sorted(relay.buckets for relay in read(engine).relays) == [32, 32], "halves")
        for number in range(50):
            write(engine, [(f"key {key}".encode(), str(number).encode()) for key in range(10)])
            written += 10
        wait_until(lambda: count_rows(engine) == 0, "an empty table")
    assert len(memory_kafka.messages) == written
    for key in range(10):
        assert check_order([int(v) for v in memory_kafka.values(f"key {key}".encode())], 50) is None


def test_an_idle_relay_is_woken_by_a_writer(engine, memory_kafka, make_relay):
    if engine.dialect.name == "sqlite":
        pytest.skip("SQLite wakes nobody")
    with running(make_relay(idle_poll=NEVER_SECONDS, lease=NEVER_SECONDS)):
        wait_until(lambda: any(relay.asleep for relay in read(engine).relays), "a relay asleep")
        for number in range(3):
            write(engine, [(b"a", str(number).encode())])
            wait_until(lambda: count_rows(engine) == 0, "an empty table")
    assert memory_kafka.values() == [b"0", b"1", b"2"]


class PausedSender:
    """Its process is paused while it sends: the leases run out, and another relay has had the buckets meanwhile."""

    def __init__(self, engine: Engine, may_continue: Callable[[], bool], answers: list[bool]) -> None:
        self._engine, self._may_go_on, self._answers = engine, may_continue, answers

    def send(self, rows: Sequence[ClaimedRow], *, give_up_at: float) -> SendResult:
        leases = TABLES.leases.leases
        with begin(self._engine, whose="test") as connection:
            connection.execute(
                update(leases).values(holder="another", token=leases.c.token + 1, expires_at=0.0)
            )
        tended_by = time.monotonic() + 1.5
        while self._may_go_on() and time.monotonic() < tended_by:
            time.sleep(0.02)
        self._answers.append(self._may_go_on())
        return SendResult(acknowledged=(), error="given up")

    def close(self) -> None:
        pass


def test_what_was_claimed_before_a_pause_is_given_up_though_the_relay_holds_leases_again(engine, catalog_url):
    write(engine, [(b"a", b"1")])
    answers: list[bool] = []
    relay = Relay(
        database=catalog_url,
        bootstrap_servers="nowhere:1",
        settings=RelaySettings(lease=1, lanes=1),
        open_sender=lambda may_continue: PausedSender(engine, may_continue, answers),
    )
    with running(relay):
        wait_until(lambda: bool(answers), "an answer")
    assert answers[0] is False


def test_what_ends_a_lane_ends_the_relay(engine, make_relay):
    write(engine, [(b"a", b"1")])
    relay = make_relay()
    relay._store.settle = lambda *_: (_ for _ in ()).throw(PermanentError("no rights"))
    with pytest.raises(PermanentError, match="no rights"):
        relay.run(once=True)
    assert count_rows(engine) == 1


def test_an_outbox_that_was_never_made_is_told_with_what_makes_it(engine, make_relay, catalog_url):
    with begin(engine, whose="test") as connection:
        TABLES.outbox.drop(connection)
    with pytest.raises(ConfigurationError, match="outbox init --yes"):
        make_relay().run(once=True)
    with pytest.raises(ConfigurationError, match="outbox init --yes"), opening.open_outbox(catalog_url):
        pass


def test_the_rights_that_the_page_names_are_enough(postgres_url, memory_kafka):
    rights = """
        CREATE ROLE outbox_writer LOGIN; CREATE ROLE outbox_relay LOGIN;
        GRANT INSERT ON oncehouse_outbox TO outbox_writer;
        GRANT SELECT ON oncehouse_bucket_members TO outbox_writer;
        GRANT SELECT, UPDATE, DELETE ON oncehouse_outbox TO outbox_relay;
        GRANT SELECT, INSERT, UPDATE, DELETE ON oncehouse_bucket_leases, oncehouse_bucket_members TO outbox_relay;
    """
    with open_outbox(postgres_url) as owner:
        with owner.begin() as connection:
            connection.exec_driver_sql(rights)
        try:
            writer = create_engine(postgres_url.replace("postgres@", "outbox_writer@"))
            write(writer, [(b"a", b"1"), (b"b", b"poison")])
            writer.dispose()
            relay = Relay(
                database=postgres_url.replace("postgres@", "outbox_relay@"),
                bootstrap_servers="nowhere:1",
                settings=RelaySettings(keep=0),
                open_sender=memory_kafka.open_sender,
            )
            assert relay.run(once=True).sent == 1
        finally:
            with owner.begin() as connection:
                connection.exec_driver_sql(
                    "DROP OWNED BY outbox_writer, outbox_relay; DROP ROLE outbox_writer, outbox_relay"
                )
