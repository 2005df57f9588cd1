"""Others write into a table of the batch consumer after a lost answer, until it has forgotten the batch's token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from consumer_handlers import InsertAndDie
from handler_tables import SHORT, SMALL_WINDOW, HandlerTables
from live_pipeline import wait_until
from oncehouse.devstack.proxies.fault_proxy import FaultProxy
from oncehouse.devstack.proxies.faults import DropAnswer
from oncehouse.messaging import repeated_insert
from oncehouse.messaging.clock import SystemClock
from oncehouse.messaging.consumer import Batch, Consumer, MemoryBroker, process_workers
from oncehouse.messaging.retries.retry_topics import DeadLetterTopic

MESSAGES = 20


@pytest.fixture
def tables(clickhouse, clickhouse_client, database) -> HandlerTables:
    return HandlerTables(server=clickhouse, client=clickhouse_client, database=database)


def consume(tables: HandlerTables, broker: MemoryBroker, proxy: FaultProxy, *, others: int = 0) -> None:
    """A consumer's life. Others insert so many blocks before its first repeat."""
    send = tables.handler(
        lambda batch: [{"id": json.loads(value), "name": "own"} for value in batch.values],
        url=tables.url_through(proxy),
        **SHORT,
    )
    waiting = [others] if others else []

    def handle(batch: Batch) -> None:
        if batch.attempt > 1 and waiting:
            tables.insert_as_others(waiting.pop())
        send(batch)

    consumer = Consumer(group="g", broker=broker)
    consumer.batch("events", retries=DeadLetterTopic())(handle)
    consumer.run_until_idle(for_seconds=30)


def own_rows(tables: HandlerTables) -> tuple[int, int]:
    """Rows of messages, and different ones."""
    (found,) = tables.ask("SELECT count(), uniqExact(id) FROM {database}.events WHERE name = 'own'")
    return found


def send_messages(broker: MemoryBroker) -> None:
    before = len(broker.messages("events"))
    for number in range(before, before + MESSAGES):
        broker.send("events", str(number).encode())


def lose_an_answer(tables: HandlerTables, proxy: FaultProxy, *, others: int) -> MemoryBroker:
    tables.create(settings=SMALL_WINDOW)
    broker = MemoryBroker({"events": 1})
    send_messages(broker)
    proxy.inject(DropAnswer())
    consume(tables, broker, proxy, others=others)
    assert proxy.happened[DropAnswer] == 1
    return broker


@pytest.mark.scenario("foreign writers push a consumer's token out")
def test_a_batch_that_the_table_may_have_forgotten_stops_its_partition(tables, proxy, caplog):
    broker = lose_an_answer(tables, proxy, others=1_001)
    assert own_rows(tables) == (MESSAGES, MESSAGES)
    assert "It may have forgotten the batch, so nothing is sent" in caplog.text
    assert broker.committed("g", "events") == 0
    # What the error says where all rows are there.
    broker._group("g").committed["events", 0] = (MESSAGES, "")  # as Kafka's own tool leaves it
    send_messages(broker)
    consume(tables, broker, proxy)
    assert own_rows(tables) == (2 * MESSAGES, 2 * MESSAGES)
    assert broker.committed("g", "events") == 2 * MESSAGES
    assert broker.messages("events.dlq") == []


@pytest.mark.scenario("foreign writers push a consumer's token out")
def test_a_batch_that_the_table_remembers_is_sent_again(tables, proxy):
    broker = lose_an_answer(tables, proxy, others=2)
    assert own_rows(tables) == (MESSAGES, MESSAGES)
    assert broker.committed("g", "events") == MESSAGES


def lose_a_process(tables: HandlerTables, proxy: FaultProxy, folder: Path) -> None:
    """The process of a handler dies with the answer, and others write before another one gets the repeat."""
    tables.create(settings=SMALL_WINDOW)
    broker = MemoryBroker({"events": 1}, clock=SystemClock())
    send_messages(broker)
    consumer = Consumer(group="g", broker=broker)
    consumer.batch("events", isolation="process", concurrency=1)(
        InsertAndDie(url=tables.url_through(proxy), folder=str(folder))
    )
    proxy.inject(DropAnswer())
    with running(consumer):
        wait_until(lambda: proxy.happened[DropAnswer], "an answer that is lost")
        wait_until(lambda: own_rows(tables) == (MESSAGES, MESSAGES), "the rows")
        tables.insert_as_others(1_001)
        (folder / "go").touch()
        wait_until(
            lambda: broker.committed("g", "events") or any(of.stopped for of in consumer.health().partitions),
            "the repeat",
        )


@contextmanager
def running(consumer: Consumer) -> Iterator[None]:
    thread = Thread(target=consumer.run)
    thread.start()
    try:
        yield
    finally:
        consumer.stop()
        thread.join(60)


@pytest.mark.scenario("foreign writers push a consumer's token out")
def test_a_process_that_gets_the_repeat_of_another_one_counts_too(tables, proxy, tmp_path):
    lose_a_process(tables, proxy, tmp_path)
    assert own_rows(tables) == (MESSAGES, MESSAGES)


@pytest.mark.defect("foreign writers push a consumer's token out")
def test_a_process_that_does_not_know_what_another_one_sent_is_noticed(tables, proxy, tmp_path, monkeypatch):
    monkeypatch.setattr(process_workers.ProcessWorkers, "_keep_sent", lambda *_: None)
    lose_a_process(tables, proxy, tmp_path)
    assert own_rows(tables) == (2 * MESSAGES, MESSAGES)


@pytest.mark.defect("foreign writers push a consumer's token out")
def test_a_handler_that_counts_no_blocks_is_noticed(tables, proxy, monkeypatch):
    monkeypatch.setattr(repeated_insert, "blocks_between", lambda *_: 0)
    lose_an_answer(tables, proxy, others=1_001)
    assert own_rows(tables) == (2 * MESSAGES, MESSAGES)
