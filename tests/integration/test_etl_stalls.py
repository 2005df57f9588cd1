"""A host that stood still in the middle of a step: whatever it does when it wakes, and whatever the table has
forgotten by then, every row is in the Fact once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from etl_shop import BOUND, FROM_OFFSETS, DiedError, Shop, make_shop, open_shop
from oncehouse.cli.etl.topic_commands import parse_position
from oncehouse.clickhouse.client import connect
from oncehouse.clickhouse.insert import send_guard
from oncehouse.clickhouse.insert.deadline import read_moment
from oncehouse.common import failpoints
from oncehouse.config.pipeline import ClickHouse
from oncehouse.errors import OncehouseError, PermanentError
from oncehouse.etl.lineage.topic import LatePolicy
from oncehouse.etl.scheduler.scheduler import Scheduler, StepFailed
from oncehouse.etl.state import transitions
from oncehouse.etl.state.clickhouse_store import RocksDbOffsets
from oncehouse.etl.state.position import Position
from oncehouse.etl.state.topic_lease import LEASE_SECONDS
from oncehouse.etl.steps import late_row_repair, operation_builder, range_presence, step_planner
from oncehouse.etl.steps.destination_check import find_newest_row
from oncehouse.etl.steps.operations import Freeze


@pytest.fixture
def shop(request, clickhouse, database, tmp_path) -> Iterator[Shop]:
    kind = getattr(request, "param", "catalog")
    if kind == "server":  # offsets on the server, and a transform that takes its range as parameters
        client = connect(ClickHouse(url=clickhouse.url))
        yield make_shop(client, database, RocksDbOffsets(client, f"{database}.Offsets"), BOUND)
        return
    with open_shop(clickhouse.url, database, tmp_path, FROM_OFFSETS if kind == "view" else BOUND) as shop:
        yield shop


def meanwhile(monkeypatch: pytest.MonkeyPatch, point: str, act: Callable[[], None]) -> None:
    """The first process that comes to the point stands still there, while all this happens."""
    waiting = [act]

    def reach(name: str) -> None:
        if name == point and waiting:
            waiting.pop()()

    monkeypatch.setattr(failpoints, "reach", reach)


def forget_tokens(shop: Shop) -> None:
    """As if a thousand more inserts had come since."""
    for table in ("fact", "counts"):
        shop.run(f"ALTER TABLE {{db}}.{table} MODIFY SETTING non_replicated_deduplication_window = 0")


def perform_after_takeover(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, point: str, act: Callable[[], None] = lambda: None
) -> str:
    """Why a host's step was refused that stood still at the point. Another host has built the range meanwhile, and the
    table has forgotten it; then `act` was called."""
    shop.add(0, 40)
    slow = shop.runner("slow")
    with shop.scheduler() as scheduler:
        (decision,) = scheduler.decide()
    step = slow.plan_decision(decision)

    def take_over() -> None:
        transitions.unlock(shop.store, "Fact")
        shop.catch_up(hostid="quick")
        forget_tokens(shop)
        act()

    meanwhile(monkeypatch, point, take_over)
    with pytest.raises(OncehouseError) as refused:
        slow.perform(step)
    shop.check_exact()
    return str(refused.value)


@pytest.mark.parametrize("shop", ["catalog", "server", "view"], indirect=True)
def test_a_host_that_stood_still_for_longer_than_the_table_remembers_inserts_nothing(shop, monkeypatch):
    perform_after_takeover(shop, monkeypatch, "etl-after-next")


def test_an_insert_that_was_held_up_after_the_last_look_at_the_catalog_is_not_sent_late(shop, monkeypatch):
    """The host stands still between its sign of life and the first byte, and the table forgets meanwhile."""

    def pass_lease() -> None:
        now = read_moment()
        later = replace(now, boot_seconds=now.boot_seconds + LEASE_SECONDS)
        monkeypatch.setattr(send_guard, "read_moment", lambda: later)

    why = perform_after_takeover(shop, monkeypatch, "etl-before-insert", pass_lease)
    assert "Nothing was sent; the range runs again" in why


def die_after_the_insert(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def reach(name: str) -> None:
        if name == "etl-after-insert":
            raise DiedError

    with monkeypatch.context() as patch, shop.scheduler(hostid="dies") as scheduler:
        patch.setattr(failpoints, "reach", reach)
        (decision,) = scheduler.decide()
        scheduler._runner.perform(scheduler._runner.plan_decision(decision))


@pytest.fixture
def scattered(shop) -> Shop:
    """A step has rows for 150 partitions, each of which is a block, and the table remembers 100."""
    shop.run("DROP TABLE {db}.fact")
    shop.run(
        "CREATE TABLE {db}.fact (pos DateTime64(3), id UInt64, v UInt64, c UInt8) ENGINE = MergeTree "
        "PARTITION BY id % 150 ORDER BY (pos, id) SETTINGS non_replicated_deduplication_window = 100"
    )
    shop.add(0, 300)
    return replace(shop, topic=replace(shop.topic, maxstep_rows=1000))


def test_a_step_of_more_partitions_than_the_table_remembers_is_refused_with_what_helps(
    scattered, monkeypatch
):
    with pytest.raises(PermanentError, match="more than 100 partitions") as refused:
        die_after_the_insert(scattered, monkeypatch)
    assert scattered.sql("SELECT count() FROM {db}.fact") == [(0,)]
    why = str(refused.value)
    scattered.run(why[why.index("ALTER TABLE") : why.index(", or let")])
    transitions.pause(scattered.store, "Fact")
    transitions.resume(scattered.store, "Fact")  # its next attempt need not wait
    with pytest.raises(DiedError):
        die_after_the_insert(scattered, monkeypatch)
    scattered.catch_up(hostid="next")
    scattered.check_exact()


def test_a_step_of_more_partitions_than_the_table_remembers_would_be_caught(scattered, monkeypatch):
    """The seeded defect: no bound, so that a repeat doubles the partitions that were forgotten; and no count of blocks,
    by which it would be looked for them."""
    monkeypatch.setattr(range_presence, "find_forgetful", lambda *_: None)
    bounded = operation_builder.insert_settings
    monkeypatch.setattr(operation_builder, "insert_settings", lambda token, _most_blocks=0: bounded(token))
    with pytest.raises(DiedError):
        die_after_the_insert(scattered, monkeypatch)
    scattered.catch_up(hostid="next")
    with pytest.raises(AssertionError):
        scattered.check_exact()


def test_a_topic_whose_offsets_were_lost_does_not_build_its_table_a_second_time(shop):
    shop.add(0, 200)
    shop.catch_up()
    renamed = replace(shop.topic, topic="Renamed")
    with shop.scheduler(renamed) as scheduler:
        (outcome,) = scheduler.run_round().outcomes
    shop.check_exact()
    assert isinstance(outcome, StepFailed)
    assert "etl seek Renamed" in outcome.why


def lose_last_transactions(shop: Shop) -> None:
    """Two steps are built, of which the catalog forgets the second, and more rows come."""
    shop.add(0, 40)
    shop.catch_up()
    kept = shop.offset()
    shop.add(40, 25)
    shop.catch_up()
    shop.store.change("Fact", lambda _row, _now: kept)
    shop.add(65, 10)


def test_offsets_that_a_catalog_has_lost_stop_the_topic_with_the_seek_that_helps(shop):
    lose_last_transactions(shop)
    with shop.scheduler() as scheduler:
        (outcome,) = scheduler.run_round().outcomes
    assert isinstance(outcome, StepFailed)
    assert "holds 25 rows" in outcome.why
    assert shop.sql("SELECT count() FROM {db}.fact") == [(130,)]
    seek = re.search(r"etl seek Fact '([^']*)'", outcome.why)
    assert seek is not None
    transitions.seek(shop.store, "Fact", parse_position(seek[1]))
    shop.catch_up()
    shop.check_exact()


def test_offsets_lost_after_another_host_went_on_are_seen_by_the_host_that_was_there_before(shop):
    """What the catalog still has is what that host has written last; it never saw the other one's steps."""
    shop.add(0, 40)
    with shop.scheduler(hostid="first") as first, shop.scheduler(hostid="second") as second:
        first.run_until_idle()
        kept = shop.offset()
        shop.add(40, 25)
        second.run_until_idle()
        shop.store.change("Fact", lambda _row, _now: kept)
        shop.add(65, 10)
        (outcome,) = first.run_round().outcomes
    assert isinstance(outcome, StepFailed)
    assert "holds 25 rows" in outcome.why
    assert shop.sql("SELECT count() FROM {db}.fact") == [(130,)]


def force_seek(shop: Shop, last: Position) -> None:
    """As `etl seek --force` does."""
    newest = find_newest_row(shop.client, shop.topic.dst)
    transitions.seek(shop.store, "Fact", last, drops_open=True, forced_upto=newest)


def test_a_fact_is_built_beside_rows_that_are_there_where_that_was_forced(shop):
    lose_last_transactions(shop)
    force_seek(shop, shop.offset().last)
    shop.catch_up()
    assert shop.sql("SELECT count(), uniqExact(id, c) FROM {db}.fact") == [(200, 150)]


def test_offsets_that_are_lost_after_a_forced_seek_stop_the_topic_too(shop):
    """The seek allowed the rows that were there at that time, and none that came later."""
    lose_last_transactions(shop)
    force_seek(shop, shop.offset().last)
    kept = shop.offset()
    shop.catch_up()
    after = shop.offset()
    shop.add(75, 10)
    shop.catch_up()
    built = shop.sql("SELECT count() FROM {db}.fact")
    for lost, rows in ((after, 10), (kept, 15)):  # a step from `kept` ends five rows later than the first
        shop.store.change("Fact", lambda _row, _now, lost=lost: lost)
        with shop.scheduler() as scheduler:
            (outcome,) = scheduler.run_round().outcomes
        assert isinstance(outcome, StepFailed)
        assert f"holds {rows} rows" in outcome.why
    assert shop.sql("SELECT count() FROM {db}.fact") == built


def test_offsets_that_a_catalog_has_lost_would_be_doubled_where_none_looks_for_rows(shop, monkeypatch):
    """The seeded defect."""
    lose_last_transactions(shop)
    monkeypatch.setattr(step_planner, "refuse_rows_ahead", lambda *_: None)
    shop.catch_up()
    with pytest.raises(AssertionError):
        shop.check_exact()


def test_a_fact_is_not_read_at_a_time_of_which_only_some_rows_are_built(shop):
    """A step that was cut between rows of one time has not come to that time, for whoever joins with it."""
    shop.add(0, 60, at_ms=100)
    shop.run(
        "CREATE TABLE {db}.joined (pos DateTime64(3), id UInt64, n UInt64) ENGINE = MergeTree ORDER BY (pos, id) "
        "SETTINGS non_replicated_deduplication_window = 1000"
    )
    shop.run(
        "CREATE VIEW {db}.JoinedTransform AS SELECT s.pos AS pos, s.id AS id, f.n AS n FROM "
        f"(SELECT * FROM {{db}}.stage WHERE {BOUND}) AS s LEFT JOIN "
        "(SELECT id, count() AS n FROM {db}.fact GROUP BY id) AS f ON s.id = f.id"
    )
    joined = replace(
        shop.topic,
        topic="Joined",
        dst=f"{shop.database}.joined",
        depends_on=(f"{shop.database}.stage", f"{shop.database}.fact"),
        transform=f"{shop.database}.JoinedTransform",
        maxstep_rows=1000,
    )
    with Scheduler(shop.client, shop.store, (shop.topic, joined), folder=Path()) as scheduler:
        scheduler.run_until_idle()
    assert shop.sql("SELECT count(), countIf(n = 2) FROM {db}.joined") == [(60, 60)]


def test_late_rows_are_written_down_whole_though_another_host_fills_its_own_list(shop, monkeypatch):
    """The host that slept gives the name to what it filled itself, never to what another one has just begun."""
    shop.add(0, 40)
    shop.catch_up()
    shop.add(1000, 30, at_ms=5)
    repairing = replace(shop.topic, late=LatePolicy.REPAIR)
    with shop.scheduler(repairing, hostid="slow") as scheduler:
        scheduler.find_late_rows(at_once=True)
        (step,) = scheduler.plan()
        freeze = next(one for one in step.operations if isinstance(one, Freeze))
        command = shop.client.command

        def stand_still(sql: str, *arguments: object) -> None:
            if sql.startswith("RENAME TABLE"):  # another host has begun to fill its list by now
                monkeypatch.setattr(shop.client, "command", command)
                made = f"`{shop.database}`.`fact_late{freeze.number}_new`"
                shop.run(f"DROP TABLE IF EXISTS {made} SYNC")
                shop.run(f"CREATE TABLE {made} (time_ms Int64, id UInt64) ENGINE = MergeTree ORDER BY id")
            command(sql, *arguments)

        monkeypatch.setattr(shop.client, "command", stand_still)
        assert late_row_repair.record_late_rows(shop.client, repairing, freeze) == 30
    shop.catch_up(repairing)
    shop.check_exact()
