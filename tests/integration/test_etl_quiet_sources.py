"""Sources that pause, or have nothing to bring: their Facts are built up to where it is known that nothing comes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from etl_world import BASE_MS, Shop, open_shop

from oncehouse.etl.planning import Waiting


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
        assert isinstance(decision, Waiting)
        time.sleep(1.6)
        scheduler.run_until_idle()
    shop.check_exact()


def test_rows_from_the_future_wait_for_their_time(shop):
    shop.add(0, 10)
    shop.run("INSERT INTO {db}.stage SELECT now64(3) + INTERVAL 1 HOUR, 99, 1")
    shop.catch_up()
    assert shop.sql("SELECT count() FROM {db}.fact") == [(20,)]
    assert shop.offset().last.time_ms > BASE_MS
