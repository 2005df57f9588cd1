"""Inserts of one table are bounded, whatever partitions they come from, and its window is checked for as many."""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from oncehouse.errors import ConfigurationError, TransientError
from oncehouse.messaging import clickhouse_handler
from oncehouse.messaging.clickhouse_handler import ClickHouseHandler
from oncehouse.messaging.insert_turns import InsertTurns
from table_facts import make_table_facts

FACTS = make_table_facts(
    database="shop",
    table="events",
    uuid="6a0b8c1e-0000-4000-8000-000000000000",
    sorting_key="id",
    window_blocks=20_000,
)


@dataclass
class SteppedTime:
    """Time that passes only while a turn is awaited."""

    seconds: float = 100.0
    slept: list[float] = field(default_factory=list)

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.seconds += seconds


@dataclass(frozen=True)
class Batch:
    token: str


def rows_of(batch: Batch) -> bytes:
    return b"" if batch.token == "empty" else b'{"id": 1}'


def make_handler(**options):
    return ClickHouseHandler(
        **{"url": "http://127.0.0.1:9/shop", "table": "events", "rows": rows_of, **options}
    )


@pytest.fixture
def sent(monkeypatch):
    """The tokens of batches, as they were sent."""
    found: list[str] = []
    monkeypatch.setattr(clickhouse_handler, "describe_table", lambda *_: FACTS)
    monkeypatch.setattr(clickhouse_handler, "read_views", lambda *_: [])
    monkeypatch.setattr(clickhouse_handler, "send_rows", lambda *_, token, **__: found.append(token))
    return found


def test_a_turn_begins_an_interval_after_the_one_before():
    time = SteppedTime()
    turns = InsertTurns(0.5, now=time.now, sleep=time.sleep)
    began = []
    for _ in range(4):
        assert turns.wait(10)
        began.append(time.seconds)
    assert began == [100.0, 100.5, 101.0, 101.5]
    time.seconds += 60
    assert turns.wait(0)
    assert time.seconds == 161.5


def test_threads_do_not_share_a_turn():
    """Each gets a place of its own, though time stands still."""
    slept: list[float] = []
    turns = InsertTurns(0.25, now=lambda: 0.0, sleep=slept.append)
    threads = [threading.Thread(target=turns.wait, args=(100,)) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    places = [0.0, *sorted(slept)]
    assert len(places) == 40
    assert {later - earlier for earlier, later in pairwise(places)} == {0.25}


def test_a_turn_that_would_come_too_late_is_not_taken():
    time = SteppedTime()
    turns = InsertTurns(60, now=time.now, sleep=time.sleep)
    assert turns.wait(0)
    assert not turns.wait(59)
    assert time.slept == []
    assert turns.wait(60)
    assert time.slept == [60.0]


def test_all_handlers_of_a_table_take_turns_and_an_empty_batch_takes_none(sent):
    handlers = [
        make_handler(),
        make_handler(table="shop.events"),
        make_handler(url="http://127.0.0.1:9/shop/"),
    ]
    time = SteppedTime()
    assert len({id(handler._turns) for handler in handlers}) == 1
    assert make_handler(table="other")._turns is not handlers[0]._turns
    assert make_handler(url="http://127.0.0.1:9/other")._turns is not handlers[0]._turns
    handlers[0]._turns._now, handlers[0]._turns._sleep = time.now, time.sleep
    for handler in handlers:
        for token in ("empty", "full"):
            handler(Batch(token))
    assert sent == ["empty", "full"] * 3
    assert time.slept == pytest.approx([0.1, 0.1])


def test_a_process_keeps_to_its_share(sent):
    assert make_handler(inserts_per_second=4, processes=8)._turns.interval_seconds == 2.0


def test_handlers_of_a_table_have_one_rate():
    first = make_handler()
    with pytest.raises(
        ConfigurationError, match=r"another handler of this process inserts into shop\.events"
    ):
        make_handler(inserts_per_second=5)
    del first
    assert make_handler(inserts_per_second=5)._turns.interval_seconds == 0.2


def test_a_batch_whose_turn_would_come_too_late_is_tried_again(sent):
    handler = make_handler(inserts_per_second=0.001, retry_horizon="1m")
    handler(Batch("first"))
    with pytest.raises(
        TransientError, match=r"batch second: its turn would come after 60 s.* once each 1000 s"
    ):
        handler(Batch("second"))
    assert sent == ["first"]


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        ({"inserts_per_second": 10}, None),
        ({"inserts_per_second": 100}, 120_000),
        ({"inserts_per_second": 100, "processes": 50}, 120_000),
        ({"inserts_per_second": 20, "insert_timeout": "1m", "retry_horizon": "1m"}, None),
    ],
)
def test_the_window_is_checked_for_the_rate_that_is_given(sent, monkeypatch, options, needed):
    handler = make_handler(**options)
    if needed is None:
        handler.check()
        return
    with pytest.raises(ConfigurationError, match=f"the last 20000 blocks, a retry needs {needed} "):
        handler.check()
    monkeypatch.setattr(clickhouse_handler, "describe_table", lambda *_: replace(FACTS, window_blocks=needed))
    handler.check()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inserts_per_second": 0}, "inserts_per_second must be a number that is more than 0"),
        ({"inserts_per_second": float("inf")}, "inserts_per_second must be a number"),
        ({"inserts_per_second": float("nan")}, "inserts_per_second must be a number"),
        ({"processes": 0}, "processes must be a whole number from 1"),
        ({"processes": 1.5}, "processes must be a whole number from 1"),
    ],
)
def test_rates_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        make_handler(**options)


def test_a_handler_that_is_sent_to_another_process_takes_its_turns_there():
    handler = make_handler(inserts_per_second=2)
    again = pickle.loads(pickle.dumps(handler))
    assert again._turns is handler._turns
