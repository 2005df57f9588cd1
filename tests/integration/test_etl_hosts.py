"""Several hosts and one topic: races on every store, take-overs of a host that still inserts, clocks that differ."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from etl_shop import BASE_MS, BOUND, FROM_OFFSETS, DiedError, Shop, make_shop, open_shop
from oncehouse.clickhouse.client import connect
from oncehouse.common import failpoints
from oncehouse.config.pipeline import ClickHouse
from oncehouse.etl.scheduler import step_runner
from oncehouse.etl.scheduler.scheduler import Scheduler, StepFailed
from oncehouse.etl.scheduler.step_runner import StepDone
from oncehouse.etl.state import topic_lease, transitions
from oncehouse.etl.state.clickhouse_store import KeeperMapOffsets
from oncehouse.etl.state.position import Position
from oncehouse.etl.state.sql_store import CatalogOffsets
from oncehouse.etl.state.topic_lease import TopicWorker
from oncehouse.etl.state.transitions import OffsetStore
from oncehouse.etl.steps import stale_queries
from oncehouse.etl.steps.operations import Insert, Operation
from oncehouse.etl.steps.step_planner import StepPlanner
from oncehouse.ledger.catalog.database import Catalog


@pytest.fixture
def shop(request, clickhouse, database, tmp_path) -> Iterator[Shop]:
    with open_shop(clickhouse.url, database, tmp_path, getattr(request, "param", BOUND)) as shop:
        yield shop


@contextmanager
def two_catalogs(url: str) -> Iterator[list[OffsetStore]]:
    catalogs = [Catalog(url, "etl") for _ in range(2)]
    try:
        yield [CatalogOffsets(catalog) for catalog in catalogs]
    finally:
        for catalog in catalogs:
            catalog.close()


@pytest.fixture(params=["sqlite", "postgresql", "keepermap"])
def two_hosts(request, clickhouse, database, tmp_path) -> Iterator[list[Shop]]:
    """The same shop as each of two hosts sees it."""
    client = connect(ClickHouse(url=clickhouse.url))
    if request.param == "keepermap":
        request.getfixturevalue("zookeeper")
        path = f"/{uuid.uuid4().hex}"
        stores: list[OffsetStore] = [KeeperMapOffsets(client, f"{database}.Offsets", path) for _ in range(2)]
        yield [shop := make_shop(client, database, stores[0], BOUND), replace(shop, store=stores[1])]
        return
    url = f"sqlite:///{tmp_path / 'offsets.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_url")
    with two_catalogs(url) as stores:
        yield [shop := make_shop(client, database, stores[0], BOUND), replace(shop, store=stores[1])]


def race(hosts: list[Shop], end: Position) -> list[object]:
    """Both run rounds as fast as they can until the topic has come to its end."""
    outcomes: list[object] = []

    def work(shop: Shop, hostid: str) -> None:
        worker = TopicWorker(hostid=hostid)
        with Scheduler(shop.client, shop.store, (shop.topic,), folder=Path(), worker=worker) as scheduler:
            for _ in range(500):
                outcomes.extend(scheduler.run_round().outcomes)
                row = shop.store.read_all().offsets.get("Fact")
                if row is not None and row.last == end:
                    return

    threads = [threading.Thread(target=work, args=(shop, f"host{at}")) for at, shop in enumerate(hosts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def test_two_hosts_that_race_share_the_work_and_never_double_it(two_hosts):
    two_hosts[0].add(0, 400)
    outcomes = race(two_hosts, Position(time_ms=BASE_MS + 399, id=399))
    assert not [one for one in outcomes if isinstance(one, StepFailed)]
    assert sum(one.rows for one in outcomes if isinstance(one, StepDone)) == 400
    two_hosts[0].check_exact()


def test_hosts_that_do_not_look_who_holds_the_topic_would_be_caught(shop, monkeypatch):
    """The seeded defect: the second host begins from what it saw, and cuts the range otherwise."""
    shop.add(0, 100)
    slow, quick = shop.runner("slow"), shop.runner("quick")
    (decision,) = decide(shop)
    first = slow.plan_decision(decision)
    second = quick.plan_decision(replace(decision, topic=replace(decision.topic, maxstep_rows=30)))
    monkeypatch.setattr(transitions, "check_unmoved", lambda *_arguments: None)
    monkeypatch.setattr(transitions, "check_held", lambda *_arguments: None)
    slow._begin(first, first.operations[0], threading.Lock())
    quick.perform(second)
    slow._work.carry_out(first.operations[-2], first)
    shop.catch_up()
    with pytest.raises(AssertionError):
        shop.check_exact()


def decide(shop: Shop):
    with shop.scheduler() as scheduler:
        return scheduler.decide()


def wait_until(is_so: Callable[[], bool]) -> None:
    for _ in range(600):
        if is_so():
            return
        time.sleep(0.05)
    raise AssertionError("it never came to that")


def running(shop: Shop) -> list[str]:
    return stale_queries._find_running(shop.client, shop.topic)


def allow_sleep(operation: Operation) -> Operation:
    if not isinstance(operation, Insert):
        return operation
    return replace(
        operation, settings={**operation.settings, "function_sleep_max_microseconds_per_block": 10**9}
    )


@contextmanager
def a_host_that_sleeps_in_its_insert(shop: Shop) -> Iterator[threading.Thread]:
    """Its insert takes long; nobody keeps its lease alive."""
    shop.make_view(BOUND, "AND NOT ignore(sleepEachRow(0.25))")
    (decision,) = decide(shop)
    sleeping = shop.runner("sleeps")
    planned = sleeping.plan_decision(decision)
    step = replace(planned, operations=tuple(allow_sleep(one) for one in planned.operations))
    failures: list[Exception] = []

    def work() -> None:
        try:
            sleeping.perform(step)
        except Exception as error:  # noqa: BLE001 - a thread's edge: it was taken over, which the test looks at
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: bool(running(shop)))
    shop.make_view(BOUND)
    try:
        yield thread
    finally:
        thread.join()
    assert failures, "it lost the topic, so it must not have committed"


def test_who_takes_over_ends_the_insert_of_the_older_holder_first(shop):
    """By its query id, and before it works on the topic itself."""
    shop.add(0, 40)
    with a_host_that_sleeps_in_its_insert(shop) as sleeping:
        (older,) = running(shop)
        shop.catch_up(hostid="next")
        assert running(shop) == []
        sleeping.join()
        shop.check_exact()
    shop.run("SYSTEM FLUSH LOGS query_log")
    ended = shop.sql(
        f"SELECT DISTINCT exception_code FROM system.query_log WHERE query_id = '{older}' AND exception_code != 0"
    )
    assert ended == [(394,)], "the server says that it was cancelled"


def test_a_take_over_that_lets_the_older_insert_run_would_be_caught(shop, monkeypatch):
    """The seeded defect: nobody ends it, so it goes on beside the new holder's work."""
    shop.add(0, 40)
    monkeypatch.setattr(step_runner, "end_inserts", lambda *_arguments: 0)
    with a_host_that_sleeps_in_its_insert(shop) as sleeping:
        shop.catch_up(hostid="next")
        assert running(shop), "nobody ended it"
        assert sleeping.is_alive()
        stale_queries.end_inserts(shop.client, shop.topic)


def test_rebuilt_tables_are_not_put_in_place_by_a_host_that_lost_its_topic(shop):
    shop.add(0, 40)
    (decision,) = decide(shop)
    slept = shop.runner("slept")
    step = slept.plan_decision(decision)
    slept._begin(step, step.operations[0], threading.Lock())
    shop.catch_up(hostid="next")
    with pytest.raises(topic_lease.MutexError, match="no longer held by slept"):
        slept._work._check_mine(step)


@pytest.mark.parametrize("shop", [BOUND, FROM_OFFSETS], ids=["catalog", "server"], indirect=True)
@pytest.mark.parametrize("skew_seconds", [-86_400, 86_400])
def test_a_host_whose_clock_differs_neither_takes_over_nor_loses_its_place(shop, monkeypatch, skew_seconds):
    """Leases, paces and positions go by the store's clock and by the data."""
    shop.add(0, 100)
    real = time.time
    with shop.scheduler(hostid="right") as right, shop.scheduler(hostid="wrong") as wrong:
        (decision,) = right.decide()
        step = right._runner.plan_decision(decision)
        right._runner._begin(step, step.operations[0], threading.Lock())
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: real() + skew_seconds)
            patch.setattr(time, "time_ns", lambda: int((real() + skew_seconds) * 1e9))
            (held,) = wrong.decide()
            assert getattr(held, "reason", "") == "right works on it"
            right._runner._work.carry_out(step.operations[-2], step)
            right._runner._write_last(step.operations[-1], None, threading.Lock())
            rounds = wrong.run_until_idle()
    assert sum(one.rows for each in rounds for one in each.outcomes if isinstance(one, StepDone)) == 60
    assert shop.offset().last == Position(time_ms=BASE_MS + 99, id=99)
    shop.check_exact()


def test_a_lease_by_the_hosts_own_clock_would_be_caught(shop, monkeypatch):
    """The seeded defect: a host whose clock is ahead takes a topic from one that lives."""
    shop.add(0, 100)
    real, is_held = time.time, topic_lease.is_held
    monkeypatch.setattr(
        "oncehouse.etl.scheduler.due_steps.is_held",
        lambda row, hostid, _now, lease: is_held(row, hostid, int((real() + 86_400) * 1000), lease),
    )
    with shop.scheduler(hostid="right") as right, shop.scheduler(hostid="wrong") as wrong:
        (decision,) = right.decide()
        step = right._runner.plan_decision(decision)
        right._runner._begin(step, step.operations[0], threading.Lock())
        (taken,) = wrong.decide()
    assert getattr(taken, "reason", "") != "right works on it"


def die_at(shop: Shop, monkeypatch, point: str) -> None:
    def reach(name: str) -> None:
        if name == point:
            raise DiedError

    (decision,) = decide(shop)
    dying = shop.runner("dies")
    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "reach", reach)
        with pytest.raises(DiedError):
            dying.perform(dying.plan_decision(decision))


def insert_before_next(patch: pytest.MonkeyPatch) -> None:
    def begin(self, step, operation, lock):
        self._work.carry_out(next(one for one in step.operations if isinstance(one, Insert)), step)
        failpoints.reach("etl-before-next")
        return self._write_next(step, operation, lock)

    patch.setattr(step_runner.StepRunner, "_begin", begin)
    patch.setattr(transitions, "beat", lambda *_arguments: None)  # nor does it look whose topic it is


def take_open_for_done(patch: pytest.MonkeyPatch) -> None:
    """Whoever comes next believes that an open range was built."""

    def plan(self, decision, _prepared):
        row = decision.offset
        self.store.change(row.topic, lambda now, _ms: replace(now, last=now.next, state="", hostid=""))

    patch.setattr(StepPlanner, "_plan_repeat", plan)


def cut_anew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("oncehouse.etl.state.models.Offset.is_open", property(lambda _row: False))


def keep_last(patch: pytest.MonkeyPatch) -> None:
    real = transitions.commit

    def commit(store, worker, topic, **named):
        last = store.read_all().offsets[topic].last
        row = real(store, worker, topic, **named)
        return store.change(topic, lambda now, _ms: replace(now, last=last, next=last)) if row else row

    patch.setattr(transitions, "commit", commit)


DEFECTS = {
    "etl-before-next": insert_before_next,
    "etl-after-next": take_open_for_done,
    "etl-after-insert": cut_anew,
    "etl-after-last": keep_last,
}


@pytest.mark.parametrize("point", DEFECTS)
def test_each_point_of_death_has_a_defect_that_would_be_caught(shop, monkeypatch, point):
    """More rows come between the death and the next run, so that a range that is cut anew is another one."""
    shop.add(0, 5)
    shop.catch_up()
    shop.add(5, 30)
    with monkeypatch.context() as patch:
        DEFECTS[point](patch)
        die_at(shop, monkeypatch, point)
        shop.add(35, 30)
        if point != "etl-after-last":
            shop.catch_up(hostid="next")
    shop.catch_up(hostid="next")
    with pytest.raises(AssertionError):
        shop.check_exact()


@pytest.mark.parametrize("point", DEFECTS)
def test_without_the_defect_the_same_death_leaves_the_fact_exact(shop, monkeypatch, point):
    shop.add(0, 30)
    die_at(shop, monkeypatch, point)
    shop.add(30, 30)
    shop.catch_up(hostid="next")
    shop.check_exact()
