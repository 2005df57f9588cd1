"""Late rows on the real ClickHouse: counted, stopped at, or repaired exactly once, wherever a process dies."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from etl_shop import BASE_MS, BOUND, FROM_OFFSETS, DiedError, Shop, open_shop
from oncehouse.common import failpoints
from oncehouse.errors import ConfigurationError
from oncehouse.etl.lineage.topic import Expectation, ExpectationKind, LatePolicy, Template, Topic
from oncehouse.etl.scheduler.late_rows import read_insertions
from oncehouse.etl.scheduler.scheduler import Scheduler, StepFailed
from oncehouse.etl.state import topic_lease, transitions
from oncehouse.etl.state.coverage import count_late
from oncehouse.etl.state.decision import WaitingTopic


@pytest.fixture(autouse=True)
def _lanes_that_failed_rest_for_long(monkeypatch):
    monkeypatch.setattr("oncehouse.etl.state.next_backfill.retry_seconds", lambda _failed: 3600)


@pytest.fixture
def shop(request, clickhouse, database, tmp_path) -> Iterator[Shop]:
    with open_shop(clickhouse.url, database, tmp_path, getattr(request, "param", BOUND)) as shop:
        yield shop


def late_rows(shop: Shop) -> int:
    return count_late(shop.offset().topic_state.segments)


def repairing(shop: Shop) -> Topic:
    return replace(shop.topic, late=LatePolicy.REPAIR)


def test_late_rows_are_counted_also_those_of_a_time_that_has_rows(shop):
    shop.add(100, 90)
    shop.catch_up()
    shop.check_exact()
    assert late_rows(shop) == 0
    shop.add(1, 3, at_ms=150)  # a time in the middle of a range, with rows of its own
    shop.add(0, 1, at_ms=5)  # before all others
    shop.catch_up()
    assert late_rows(shop) == 4
    shop.catch_up()
    assert late_rows(shop) == 4
    assert shop.sql("SELECT count() FROM {db}.fact") == [(180,)]


def test_rows_that_are_removed_are_not_taken_for_late_ones_and_hide_none_that_come_after(shop):
    shop.add(100, 90)
    shop.catch_up()
    shop.run("DELETE FROM {db}.stage WHERE id < 110")
    shop.add(500, 1)  # in order; the next look sees ten rows fewer behind it
    shop.catch_up()
    assert late_rows(shop) == 0
    shop.add(1, 2, at_ms=101)
    shop.catch_up()
    assert late_rows(shop) == 2


def test_a_source_without_new_inserts_is_not_counted_again(shop, monkeypatch):
    shop.add(100, 90)
    source = f"{shop.database}.stage"
    with shop.scheduler() as scheduler:
        scheduler.run_until_idle()
        monkeypatch.setattr(
            "oncehouse.etl.scheduler.late_rows.count_covered", lambda _client, asked: [0 for _ in asked]
        )
        assert not scheduler.find_late_rows(at_once=True)
        before = read_insertions(shop.client, [source])
        shop.add(1, 1, at_ms=100)
        assert read_insertions(shop.client, [source]) != before
        assert scheduler.find_late_rows(at_once=True)


def test_of_all_hosts_one_looks_at_a_time(shop):
    with shop.scheduler(hostid="a") as a, shop.scheduler(hostid="b") as b:
        assert [one._late.take_turn(60) for one in (a, b, a)] == [True, False, False]
        assert b._late.take_turn(0)


def test_rows_further_back_than_asked_for_are_not_looked_at(shop):
    for first in (0, 100_000, 200_000):
        shop.add(first, 40)
        shop.catch_up()
    shop.add(999, 1, at_ms=20)
    shop.catch_up(replace(shop.topic, late_within_seconds=50))
    assert late_rows(shop) == 0
    shop.catch_up(replace(shop.topic, late_within_seconds=500))
    assert late_rows(shop) == 1


def test_a_topic_that_shall_stop_stops_until_somebody_lets_the_rows_pass(shop):
    topic = replace(shop.topic, late=LatePolicy.STOP)
    shop.add(100, 50)
    shop.catch_up(topic)
    shop.add(1, 1, at_ms=120)
    shop.catch_up(topic)
    shop.add(200, 10)
    shop.catch_up(topic)
    with shop.scheduler(topic) as scheduler:
        (decision,) = scheduler.decide()
    assert isinstance(decision, WaitingTopic)
    assert decision.reason.startswith("1 rows came late")
    assert shop.sql("SELECT count() FROM {db}.fact") == [(100,)]
    transitions.resume(shop.store, "Fact")
    shop.catch_up(topic)
    assert shop.sql("SELECT count() FROM {db}.fact") == [(120,)]
    assert late_rows(shop) == 1


@pytest.mark.parametrize("shop", [BOUND, FROM_OFFSETS], ids=["parameters", "offsets"], indirect=True)
def test_a_repair_builds_the_late_rows_once_and_no_others(shop):
    shop.add(100, 90)
    shop.catch_up()
    for turn in range(2):
        shop.add(1 + turn, 1, at_ms=120)
        shop.add(10 + turn, 1, at_ms=3)
        done = shop.catch_up(repairing(shop))
        shop.check_exact()
        assert [one.job_kind for one in done] == ["repair"] * len(done)
        assert (late_rows(shop), shop.offset().topic_state.repaired) == (0, 2 + 2 * turn)
    assert shop.offset().last.time_ms == BASE_MS + 189
    left = shop.sql("SELECT count() FROM system.tables WHERE database = '{db}' AND name LIKE '%late%'")
    assert left == [(0,)]


def test_a_repair_of_many_rows_goes_on_where_it_ended(shop, monkeypatch):
    monkeypatch.setattr("oncehouse.etl.steps.late_row_repair.REPAIR_ROWS", 7)
    shop.add(100, 40)
    shop.catch_up()
    shop.add(1000, 30, at_ms=110)
    done = shop.catch_up(repairing(shop))
    assert sum(one.rows for one in done) == 30
    assert max(one.rows for one in done) == 7
    shop.check_exact()
    assert late_rows(shop) == 0


POINTS = ("etl-before-next", "etl-after-next", "etl-after-insert", "etl-after-last")


def die_in_repair(shop: Shop, monkeypatch, point: str) -> None:
    """A process that finds two late rows and dies at a point of their repair."""
    shop.add(100, 60)
    shop.catch_up()
    shop.add(1, 2, at_ms=120)
    with shop.scheduler() as scheduler:
        scheduler.run_until_idle()

    def reach(name: str) -> None:
        if name == point:
            raise DiedError

    with monkeypatch.context() as patch, shop.scheduler(repairing(shop), hostid="dies") as scheduler:
        patch.setattr(failpoints, "reach", reach)
        (step,) = scheduler.plan()
        with pytest.raises(DiedError):
            scheduler._runner.perform(step)


@pytest.mark.parametrize("point", POINTS)
def test_a_repair_is_exact_after_a_kill_though_more_rows_come_late(shop, monkeypatch, point):
    die_in_repair(shop, monkeypatch, point)
    shop.add(5, 2, at_ms=121)  # not those that the dead process had written down
    shop.catch_up(repairing(shop), hostid="next")
    shop.check_exact()
    assert late_rows(shop) == 0


def test_a_repair_whose_token_differs_between_attempts_would_be_caught(shop, monkeypatch):
    """The seeded defect: the rows that were written down go in a second time where none looks for them."""
    monkeypatch.setattr("oncehouse.etl.steps.range_presence.find_forgetful", lambda *_: None)
    die_in_repair(shop, monkeypatch, "etl-after-insert")
    monkeypatch.setattr("oncehouse.etl.steps.operation_builder.token_of", lambda *_range: uuid.uuid4().hex)
    shop.catch_up(repairing(shop), hostid="next")
    with pytest.raises(AssertionError):
        shop.check_exact()


def test_a_repair_that_is_put_off_leaves_the_forward_runs_alone_and_ends_later(shop, monkeypatch):
    shop.add(100, 40)
    shop.catch_up()
    shop.add(1, 2, at_ms=120)
    with monkeypatch.context() as patch, shop.scheduler(repairing(shop)) as scheduler:
        patch.setattr("oncehouse.etl.scheduler.step_runner.record_late_rows", refuse)
        rounds = scheduler.run_until_idle()
        failed = [one for each in rounds for one in each.outcomes if isinstance(one, StepFailed)]
        assert len(failed) == 1
        shop.add(300, 10)
        scheduler.run_until_idle()
    assert shop.sql("SELECT count() FROM {db}.fact") == [(100,)]
    (_, job), *_ = shop.offset().topic_state.jobs
    assert (job.failed, job.why, shop.offset().state) == (1, "no", topic_lease.DONE)
    assert job.opened is not None
    monkeypatch.setattr("oncehouse.etl.state.next_backfill.retry_seconds", lambda _failed: 0)
    shop.catch_up(repairing(shop))
    shop.check_exact()


def test_what_is_expected_of_rows_holds_for_late_ones_and_says_nothing_of_their_number(shop):
    expected = (
        Expectation(check=ExpectationKind.VALUE, columns=("v",), at_most=5000),
        Expectation(check=ExpectationKind.ROWS, at_least=50),
    )
    topic = replace(repairing(shop), expect=expected)
    shop.add(100, 40)
    shop.catch_up(topic)
    shop.add(1, 2, at_ms=120)
    shop.catch_up(topic)
    shop.check_exact()
    shop.add(900, 1, at_ms=121)  # its v is 9000
    shop.catch_up(topic)
    (_, job), *_ = shop.offset().topic_state.jobs
    assert "v" in job.why
    assert "9000" in job.why
    assert shop.sql("SELECT count() FROM {db}.fact") == [(84,)]


def refuse(*_arguments: object) -> int:
    raise ConfigurationError("no")


def test_a_table_that_cannot_tell_its_rows_is_not_repaired(shop):
    shop.run("DROP TABLE {db}.counting SYNC")
    shop.run("DROP TABLE {db}.fact SYNC")
    shop.run(
        "CREATE TABLE {db}.fact (id UInt64, v UInt64, c UInt8) ENGINE = MergeTree ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 1000"
    )
    shop.run(
        f"CREATE OR REPLACE VIEW {{db}}.FactTransform AS SELECT id, v, 1 AS c FROM {{db}}.stage WHERE {BOUND}"
    )
    shop.add(100, 40)
    shop.catch_up()
    shop.add(1, 1, at_ms=120)
    shop.catch_up(repairing(shop))
    (_, job), *_ = shop.offset().topic_state.jobs
    assert "columns pos and id" in job.why


@pytest.mark.parametrize("template", [Template.RANGE, Template.RELOAD])
def test_what_is_rebuilt_is_rebuilt_from_its_late_rows_on(shop, template):
    shop.run("CREATE TABLE {db}.days (day Date, n UInt64) ENGINE = MergeTree PARTITION BY day ORDER BY day")
    where = (
        "WHERE pos >= toStartOfDay(toTimeZone({last_time:DateTime64(3)}, 'UTC')) "
        "AND pos <= {next_time:DateTime64(3)}"
    )
    shop.run(
        "CREATE OR REPLACE VIEW {db}.FactTransform AS SELECT toDate(pos, 'UTC') AS day, count() AS n "
        f"FROM {{db}}.stage {where if template is Template.RANGE else ''} GROUP BY day"
    )
    topic = replace(
        shop.topic,
        dst=f"{shop.database}.days",
        template=template,
        range_column="day" if template is Template.RANGE else None,
        late=LatePolicy.REPAIR,
        late_within_seconds=30 * 86400,
    )
    hour_ms = 3_600_000
    for day in range(3):
        shop.add(100 * day, 10, at_ms=day * 24 * hour_ms + hour_ms)
        shop.catch_up(topic)
    shop.add(1000, 5, at_ms=2 * hour_ms)
    done = shop.catch_up(topic)
    assert [one.job_kind for one in done] == ["repair"]
    assert shop.sql("SELECT n FROM {db}.days ORDER BY day") == [(15,), (10,), (10,)]
    assert late_rows(shop) == 0


def add_from_the_future(shop: Shop) -> None:
    shop.run("INSERT INTO {db}.stage SELECT now64(3) + INTERVAL 40 YEAR, 7, 70")


def test_a_row_with_a_wrong_date_waits_and_makes_no_other_row_late(shop):
    shop.add(0, 50)
    add_from_the_future(shop)
    shop.catch_up()
    shop.add(100, 50)  # in order, though behind the one from the future
    shop.catch_up()
    assert late_rows(shop) == 0
    assert shop.sql("SELECT count(), uniqExact(id), max(pos) < now() FROM {db}.fact") == [(200, 100, 1)]
    shop.run("DELETE FROM {db}.stage WHERE pos > now()")
    shop.check_exact()


@pytest.mark.parametrize(("ahead_seconds", "built"), [(86400, 11), (50 * 366 * 86400, 50)])
def test_a_row_from_the_future_is_not_taken_for_the_time_that_a_source_has_come_to(
    shop, ahead_seconds, built
):
    """With the seeded defect, no bound, the Fact is built without what the other source has yet to bring."""
    shop.run("CREATE TABLE {db}.other AS {db}.stage ENGINE = MergeTree ORDER BY (pos, id)")
    shop.run(f"INSERT INTO {{db}}.other SELECT fromUnixTimestamp64Milli(toInt64({BASE_MS + 10})), 1, 1")
    shop.run("INSERT INTO {db}.other SELECT now64(3) + INTERVAL 40 YEAR, 7, 70")
    shop.add(0, 50)
    topic = replace(shop.topic, depends_on=(*shop.topic.depends_on, f"{shop.database}.other"))
    with Scheduler(
        shop.client, shop.store, (topic,), folder=Path(), ahead_seconds=ahead_seconds
    ) as scheduler:
        scheduler.run_until_idle()
    assert shop.sql("SELECT uniqExact(id) FROM {db}.fact") == [(built,)]


def test_rows_whose_position_is_the_time_of_their_insert_are_built_once(shop):
    """Inserts side by side, of which a slower one may come with an older time, while processes come and go."""
    topic = replace(repairing(shop), delay_seconds=0.02)
    shop.run("ALTER TABLE {db}.stage MODIFY COLUMN pos DateTime64(3) DEFAULT now64(3)")

    def insert(first: int) -> None:
        for start in range(first, first + 200, 40):
            shop.run(f"INSERT INTO {{db}}.stage (id, v) SELECT number, number * 10 FROM numbers({start}, 40)")

    with ThreadPoolExecutor(max_workers=3) as pool:
        writers = [pool.submit(insert, first) for first in (0, 1000, 2000)]
        while not all(writer.done() for writer in writers):
            with shop.scheduler(topic, hostid=uuid.uuid4().hex, lease_seconds=0) as scheduler:
                scheduler.run_round()
        for writer in writers:
            writer.result()
    shop.run(
        "INSERT INTO {db}.stage SELECT now64(3) + INTERVAL 1 MINUTE, 9999, 0"
    )  # the delay is past for all others
    shop.catch_up(topic)
    shop.run("DELETE FROM {db}.stage WHERE id = 9999")
    shop.check_exact()
    assert shop.sql("SELECT count() FROM {db}.stage") == [(600,)]
