"""Back-fills, gaps and rewinds on the real ClickHouse: every row once, beside forward runs and after kills."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from etl_shop import BASE_MS, BOUND, FROM_OFFSETS, DiedError, Shop, open_shop
from oncehouse.clickhouse.client import Client
from oncehouse.common import failpoints
from oncehouse.errors import ConfigurationError, PermanentError
from oncehouse.etl.lineage.topic import Expectation, ExpectationKind, Template
from oncehouse.etl.state import backfill_transitions, topic_lease, transitions
from oncehouse.etl.state.decision import DueStep
from oncehouse.etl.state.next_backfill import DueJob, find_open_gaps
from oncehouse.etl.state.position import START, Position, before
from oncehouse.etl.state.topic_state import JobKind

MIDDLE = before(BASE_MS + 100)


@pytest.fixture(autouse=True)
def _lanes_that_failed_rest_for_long(monkeypatch):
    monkeypatch.setattr("oncehouse.etl.state.next_backfill.retry_seconds", lambda _failed: 3600)


@pytest.fixture
def shop(request, clickhouse, database, tmp_path) -> Iterator[Shop]:
    """150 rows, of which the forward runs take the last 50: the others are a gap."""
    with open_shop(clickhouse.url, database, tmp_path, getattr(request, "param", BOUND)) as shop:
        shop.add(0, 150)
        transitions.seek(shop.store, "Fact", MIDDLE)
        yield shop


both_kinds = pytest.mark.parametrize(
    "shop", [BOUND, FROM_OFFSETS], ids=["parameters", "offsets"], indirect=True
)


def order(shop: Shop, **named: object) -> None:
    wanted = {
        "after": START,
        "upto": None,
        "every_seconds": 0,
        "maxstep_rows": None,
        "is_emptied": False,
        "lease_seconds": 60,
        **named,
    }
    backfill_transitions.order_backfill(shop.store, shop.topic, **wanted)


@both_kinds
def test_a_back_fill_fills_the_gap_and_forward_runs_go_first(shop):
    order(shop)
    with shop.scheduler() as scheduler:
        assert isinstance(scheduler.decide()[0], DueStep)
        rounds = scheduler.run_until_idle()
    done = [(one.job_kind, one.rows) for each in rounds for one in each.outcomes]
    assert done == [("", 40), ("", 10), ("backfill", 40), ("backfill", 40), ("backfill", 20)]
    shop.check_exact()
    row = shop.offset()
    assert (find_open_gaps(row), row.topic_state.jobs) == ((), ())
    assert row.last == Position(time_ms=BASE_MS + 149, id=149)


def test_new_rows_are_taken_before_the_rest_of_a_back_fill(shop):
    order(shop, maxstep_rows=30)
    with shop.scheduler() as scheduler:
        lanes_of = []
        for turn in range(6):
            lanes_of += [one.job_kind for one in scheduler.run_round().outcomes]
            if turn == 2:
                shop.add(150, 10)
        scheduler.run_until_idle()
    assert lanes_of == ["", "", "backfill", "", "backfill", "backfill"]
    shop.check_exact()


def test_a_back_fill_keeps_its_own_pace(shop):
    order(shop, every_seconds=3600)
    done = shop.catch_up()
    assert [one.job_kind for one in done] == ["", "", "backfill"]
    job = shop.offset().topic_state.job(JobKind.BACKFILL)
    assert (job.rows, job.failed) == (40, 0)
    assert [(after.id, upto) for after, upto in find_open_gaps(shop.offset())] == [(39, MIDDLE)]


def test_a_range_that_is_covered_or_not_yet_reached_is_refused(shop):
    shop.catch_up()
    with pytest.raises(ConfigurationError, match="covered, and would be built a second time"):
        order(shop, after=MIDDLE)
    with pytest.raises(ConfigurationError, match="have not come that far"):
        order(shop, upto=Position(time_ms=BASE_MS + 150, id=0))
    with pytest.raises(ConfigurationError, match="nothing lies between"):
        order(shop, after=MIDDLE, upto=START)
    order(shop, upto=before(BASE_MS + 50))
    with pytest.raises(ConfigurationError, match="has a back-fill already"):
        order(shop)
    reload = replace(shop, topic=replace(shop.topic, template=Template.RELOAD))
    with pytest.raises(ConfigurationError, match="is a reload"):
        order(reload)
    shop.catch_up()
    assert shop.sql("SELECT count() FROM {db}.fact") == [(200,)]
    order(shop, after=before(BASE_MS + 20))  # overlaps what is there: only the gap in it is filled
    shop.catch_up()
    shop.check_exact()


def test_a_back_fill_whose_rows_are_not_as_expected_builds_nothing_and_forward_runs_go_on(shop):
    expected = (Expectation(check=ExpectationKind.VALUE, columns=("v",), at_least=1000),)
    topic = replace(shop.topic, expect=expected)
    order(shop)
    shop.catch_up(topic)
    job = shop.offset().topic_state.job(JobKind.BACKFILL)
    assert (job.failed, job.opened is None, shop.offset().state) == (1, False, topic_lease.DONE)
    shop.add(150, 10)
    shop.catch_up(topic)
    assert shop.sql("SELECT count(), min(v) FROM {db}.fact") == [(120, 1000)]


def test_a_cancelled_back_fill_leaves_its_gap(shop):
    order(shop)
    backfill_transitions.cancel_backfill(shop.store, "Fact")
    shop.catch_up()
    assert find_open_gaps(shop.offset()) == ((START, MIDDLE),)
    assert shop.sql("SELECT count() FROM {db}.fact") == [(100,)]


def test_rows_that_were_deleted_are_built_again_while_forward_runs_go_on(shop):
    order(shop)
    shop.catch_up()
    shop.run("DELETE FROM {db}.fact WHERE id BETWEEN 30 AND 69")
    shop.run("TRUNCATE TABLE {db}.counts")
    shop.run("INSERT INTO {db}.counts SELECT count() FROM {db}.fact")
    order(shop, after=before(BASE_MS + 30), upto=before(BASE_MS + 70), is_emptied=True)
    shop.add(150, 10)
    shop.catch_up()
    shop.check_exact()


def test_a_piece_without_rows_counts_as_covered_and_late_ones_in_it_are_seen(shop):
    shop.run("TRUNCATE TABLE {db}.stage")
    shop.add(100, 50)
    order(shop)
    shop.catch_up()
    assert find_open_gaps(shop.offset()) == ()
    shop.add(7, 1)
    shop.catch_up()
    assert [one.late for one in shop.offset().topic_state.segments] == [1, 0, 0]


POINTS = ("etl-before-next", "etl-after-next", "etl-after-insert", "etl-after-last")


def die_in_backfill(shop: Shop, monkeypatch, point: str) -> None:
    order(shop)

    def reach(name: str) -> None:
        if name == point:
            raise DiedError

    with shop.scheduler(hostid="dies") as scheduler:
        while not isinstance(scheduler.decide()[0], DueJob):
            scheduler.run_round()
        (step,) = scheduler.plan()
        with monkeypatch.context() as patch:
            patch.setattr(failpoints, "reach", reach)
            with pytest.raises(DiedError):
                scheduler._runner.perform(step)


@pytest.mark.parametrize("point", POINTS)
def test_a_back_fill_is_exact_after_a_kill(shop, monkeypatch, point):
    die_in_backfill(shop, monkeypatch, point)
    shop.add(150, 10)
    shop.catch_up(hostid="next")
    shop.check_exact()
    assert find_open_gaps(shop.offset()) == ()


def test_a_back_fill_that_is_cut_anew_after_a_kill_would_be_caught(shop, monkeypatch):
    """The seeded defect: the job's open range is forgotten, and its rows go in under other tokens."""
    die_in_backfill(shop, monkeypatch, "etl-after-insert")
    shop.store.change("Fact", lambda row, _now: forget(row))
    shop.catch_up(replace(shop.topic, maxstep_rows=33), hostid="next")
    with pytest.raises(AssertionError):
        shop.check_exact()


def forget(row):
    jobs = tuple((job_kind, replace(job, opened=None)) for job_kind, job in row.topic_state.jobs)
    return replace(transitions.return_row(row), hostid="", topic_state=replace(row.topic_state, jobs=jobs))


def test_a_back_fill_that_failed_after_its_insert_is_not_built_twice(shop, monkeypatch):
    """No answer came, the rows are there; forward steps follow, which may push its token out of the memory."""
    shop.run("DROP TABLE {db}.counting SYNC")  # with views behind it nobody could tell whether they have it
    shop.catch_up()
    order(shop, maxstep_rows=100)
    send = Client.command

    def lose_the_answer(self, sql, parameters=None, settings=None):
        send(self, sql, parameters, settings)
        if sql.startswith("INSERT INTO") and ".`fact`" in sql:
            raise PermanentError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(Client, "command", lose_the_answer)
        shop.catch_up()
    job = shop.offset().topic_state.job(JobKind.BACKFILL)
    assert (job.why, shop.offset().job_kind) == ("no answer", "")
    shop.add(150, 10)
    shop.catch_up()
    assert shop.offset().topic_state.job(JobKind.BACKFILL).opened.steps_since == 1
    shop.run("ALTER TABLE {db}.fact MODIFY SETTING non_replicated_deduplication_window = 100")
    monkeypatch.setattr("oncehouse.etl.state.next_backfill.retry_seconds", lambda _failed: 0)
    shop.catch_up()
    assert shop.sql("SELECT count(), uniqExact(id) FROM {db}.fact") == [(320, 160)]


@both_kinds
def test_a_rewind_after_a_delete_builds_the_same_ranges_anew(shop):
    """The table still remembers their tokens; the generation makes them others."""
    order(shop)
    shop.catch_up()
    shop.run("DELETE FROM {db}.fact WHERE id >= 100")
    shop.run("TRUNCATE TABLE {db}.counts")
    shop.run("INSERT INTO {db}.counts SELECT count() FROM {db}.fact")
    transitions.seek(shop.store, "Fact", MIDDLE)
    shop.catch_up()
    shop.check_exact()


def test_a_rewind_under_the_old_tokens_would_be_caught(shop, monkeypatch):
    """The seeded defect: the generation does not move."""
    shop.catch_up()
    shop.run("DELETE FROM {db}.fact WHERE 1")
    row = transitions.seek(shop.store, "Fact", MIDDLE)
    shop.store.change("Fact", lambda row, _now: replace(row, generation=row.generation - 1))
    assert row.generation == 2, "the fixture and this test have sought"
    shop.catch_up()
    assert shop.sql("SELECT count() FROM {db}.fact") == [(0,)]


def test_a_rewind_is_exact_after_a_kill_in_its_first_step(shop, monkeypatch):
    order(shop)
    shop.catch_up()
    shop.run("TRUNCATE TABLE {db}.fact")
    shop.run("TRUNCATE TABLE {db}.counts")
    transitions.seek(shop.store, "Fact", START)

    def reach(name: str) -> None:
        if name == "etl-after-insert":
            raise DiedError

    with monkeypatch.context() as patch, shop.scheduler(hostid="dies") as scheduler:
        patch.setattr(failpoints, "reach", reach)
        (step,) = scheduler.plan()
        with pytest.raises(DiedError):
            scheduler._runner.perform(step)
    shop.catch_up(hostid="next")
    shop.check_exact()
