"""Sources that pause, or have nothing to bring: their Facts are built up to where it is known that nothing comes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from etl_shop import BASE_MS, BOUND, FROM_OFFSETS, Shop, open_shop
from oncehouse.cli.app import run_command
from oncehouse.etl.lineage.topic import Topic
from oncehouse.etl.scheduler.scheduler import Scheduler
from oncehouse.etl.state.decision import WaitingTopic
from oncehouse.etl.state.declarations import declare
from oncehouse.etl.state.position import MAX_ID, Position


@pytest.fixture
def shop(clickhouse, database, tmp_path) -> Iterator[Shop]:
    with open_shop(clickhouse.url, database, tmp_path) as shop:
        yield shop


def test_the_last_rows_of_a_source_that_pauses_are_built_when_they_are_older_than_the_delay(shop):
    delayed = replace(shop.topic, delay_seconds=0.05)
    shop.add(0, 100)  # a millisecond apart, and long ago
    shop.catch_up(delayed)
    shop.check_exact()


def test_rows_wait_until_they_are_older_than_the_delay_by_the_clock_of_clickhouse(shop):
    delayed = replace(shop.topic, delay_seconds=1.5)
    shop.run("INSERT INTO {db}.stage SELECT now64(3), number, 1 FROM numbers(10)")
    with shop.scheduler(delayed) as scheduler:
        scheduler.run_until_idle()
        assert shop.sql("SELECT count() FROM {db}.fact") == [(0,)]
        (decision,) = scheduler.decide()
        assert isinstance(decision, WaitingTopic)
        time.sleep(1.6)
        scheduler.run_until_idle()
    shop.check_exact()


def test_rows_from_the_future_wait_for_their_time(shop):
    shop.add(0, 10)
    shop.run("INSERT INTO {db}.stage SELECT now64(3) + INTERVAL 1 HOUR, 99, 1")
    shop.catch_up()
    assert shop.sql("SELECT count() FROM {db}.fact") == [(20,)]
    assert shop.offset().last.time_ms > BASE_MS


def make_other(shop: Shop) -> Topic:
    """A second source, with one old row, which then brings nothing."""
    shop.run("CREATE TABLE {db}.other AS {db}.stage ENGINE = MergeTree ORDER BY (pos, id)")
    shop.run(f"INSERT INTO {{db}}.other SELECT fromUnixTimestamp64Milli(toInt64({BASE_MS})), 1, 1")
    return replace(shop.topic, depends_on=(*shop.topic.depends_on, f"{shop.database}.other"))


def lineage(shop: Shop, *topics: Topic) -> tuple[Topic, ...]:
    return (
        Topic(topic="Stage", dst=f"{shop.database}.stage"),
        Topic(topic="Other", dst=f"{shop.database}.other"),
        *topics,
    )


def catch_up(shop: Shop, *topics: Topic) -> None:
    with Scheduler(shop.client, shop.store, lineage(shop, *topics), folder=Path()) as scheduler:
        scheduler.run_until_idle()


def test_a_quiet_source_that_is_declared_to_have_come_further_holds_nothing_up(shop):
    topic = make_other(shop)
    shop.add(0, 50)
    catch_up(shop, topic)
    assert shop.sql("SELECT uniqExact(id) FROM {db}.fact") == [(1,)]
    declare(shop.store, "Other", Position(time_ms=BASE_MS + 20, id=0), consumer="loader")
    catch_up(shop, topic)
    assert shop.sql("SELECT uniqExact(id) FROM {db}.fact") == [(20,)], "20 ms itself may still come"
    declare(shop.store, "Other", Position(time_ms=BASE_MS + 49, id=MAX_ID), consumer="loader")
    catch_up(shop, topic)
    shop.check_exact()


def test_rows_after_what_a_loader_has_declared_wait_though_they_are_there(shop):
    declare(shop.store, "Stage", Position(time_ms=BASE_MS + 9, id=9), consumer="loader")
    shop.add(30, 10)
    shop.add(0, 10)
    catch_up(shop, shop.topic)
    assert shop.sql("SELECT uniqExact(id), max(id) FROM {db}.fact") == [(10, 9)]
    shop.add(10, 20)
    declare(shop.store, "Stage", Position(time_ms=BASE_MS + 100, id=0), consumer="loader")
    catch_up(shop, shop.topic)
    shop.check_exact()


def test_what_any_tool_writes_into_the_offsets_is_a_declaration(clickhouse, database, tmp_path):
    with open_shop(clickhouse.url, database, tmp_path, FROM_OFFSETS) as shop:
        topic = make_other(shop)
        shop.add(0, 50)
        shop.run(
            "INSERT INTO {db}.Offsets (topic, last, consumer) "
            "SELECT 'Other', (now64(3) - INTERVAL 5 SECOND, 0), 'cron'"
        )
        catch_up(shop, topic)
        shop.check_exact()


def test_a_fact_with_nothing_to_build_holds_up_no_fact_that_is_made_of_it(shop):
    shop.run("CREATE TABLE {db}.other AS {db}.stage ENGINE = MergeTree ORDER BY (pos, id)")
    shop.run("CREATE TABLE {db}.between AS {db}.fact ENGINE = MergeTree ORDER BY (pos, id)")
    shop.run(
        "CREATE VIEW {db}.BetweenTransform AS SELECT pos, id, v, 1 AS c FROM {db}.other WHERE "
        + BOUND.replace("{db}", shop.database)
    )
    between = replace(
        shop.topic,
        topic="Between",
        dst=f"{shop.database}.between",
        depends_on=(f"{shop.database}.other",),
        transform=f"{shop.database}.BetweenTransform",
    )
    shop.run("ALTER TABLE {db}.between MODIFY SETTING non_replicated_deduplication_window = 1000")
    fact = replace(shop.topic, depends_on=(*shop.topic.depends_on, between.dst))
    shop.add(0, 50)
    catch_up(shop, between, fact)
    assert shop.sql("SELECT count() FROM {db}.fact") == [(0,)], "nothing is known of the other source"
    declare(shop.store, "Other", Position(time_ms=BASE_MS + 49, id=MAX_ID), consumer="loader")
    catch_up(shop, between, fact)
    shop.check_exact()


def test_a_person_declares_and_withdraws_and_the_status_says_who_did(shop, tmp_path, capsys):
    make_other(shop)
    shop.add(0, 50)
    (tmp_path / "lineage").mkdir()
    (tmp_path / "lineage" / "all.yaml").write_text(f"""topics:
  - {{topic: Stage, dst: {shop.database}.stage}}
  - {{topic: Other, dst: {shop.database}.other}}
  - {{topic: Fact, dst: {shop.database}.fact, transform: {shop.database}.FactTransform,
     depends_on: [{shop.database}.stage, {shop.database}.other]}}
""")
    file = tmp_path / "etl.yaml"
    file.write_text(
        f"clickhouse: {{url: '{shop.client.config.url}'}}\ndatabase: {shop.database}\nlineage: lineage\n"
    )

    def command(*words: str) -> tuple[int, dict]:
        code = run_command(["etl", *words, "--file", str(file), "--json"])
        printed = capsys.readouterr().out
        return code, json.loads(printed.splitlines()[-1]) if code == 0 and printed else {}

    assert command("init", "--yes")[0] == 0
    assert command("run", "--once")[0] == 0
    (status,) = command("status")[1]["topics"]
    assert status["declared"] == []
    assert status["reason"].endswith(f"up to which {shop.database}.other has come")
    assert command("declare", "Other", "2026-01-01T00:00:00.020", "--as", "loader")[0] == 0
    assert command("run", "--once")[0] == 0
    assert shop.sql("SELECT uniqExact(id) FROM {db}.fact") == [(20,)]
    (status,) = command("status")[1]["topics"]
    (declared,) = status["declared"]
    assert (declared["table"], declared["consumer"]) == (f"{shop.database}.other", "loader")
    assert command("declare", "Other", "2026-01-02")[0] == 1, "another loader's"
    assert command("declare", "Fact", "2026-01-02")[0] == 2, "no source"
    assert command("declare", "Other")[0] == 2
    assert command("declare", "Other", "--withdraw")[0] == 0
    (status,) = command("status")[1]["topics"]
    assert status["declared"] == []
