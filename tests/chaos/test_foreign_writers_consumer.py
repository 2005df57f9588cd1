"""Others write into a table of the batch consumer after a lost answer, until it has forgotten the batch's token."""

from __future__ import annotations

import json

import pytest

from handler_tables import SHORT, SMALL_WINDOW, HandlerTables
from oncehouse.devstack.proxies.fault_proxy import FaultProxy
from oncehouse.devstack.proxies.faults import DropAnswer
from oncehouse.messaging import clickhouse_handler
from oncehouse.messaging.consumer import Batch, Consumer, MemoryBroker
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


def lose_an_answer(tables: HandlerTables, proxy: FaultProxy, *, others: int) -> MemoryBroker:
    tables.create(settings=SMALL_WINDOW)
    broker = MemoryBroker({"events": 1})
    for number in range(MESSAGES):
        broker.send("events", str(number).encode())
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
    # What the error says: delete what is there, and start again.
    tables.run("DELETE FROM {database}.events WHERE name = 'own'")
    tables.run("ALTER TABLE {database}.events MODIFY SETTING non_replicated_deduplication_window = 20000")
    consume(tables, broker, proxy)
    assert own_rows(tables) == (MESSAGES, MESSAGES)
    assert broker.committed("g", "events") == MESSAGES
    assert broker.messages("events.dlq") == []


@pytest.mark.scenario("foreign writers push a consumer's token out")
def test_a_batch_that_the_table_remembers_is_sent_again(tables, proxy):
    broker = lose_an_answer(tables, proxy, others=2)
    assert own_rows(tables) == (MESSAGES, MESSAGES)
    assert broker.committed("g", "events") == MESSAGES


@pytest.mark.defect("foreign writers push a consumer's token out")
def test_a_handler_that_counts_no_blocks_is_noticed(tables, proxy, monkeypatch):
    monkeypatch.setattr(clickhouse_handler, "blocks_between", lambda *_: 0)
    lose_an_answer(tables, proxy, others=1_001)
    assert own_rows(tables) == (2 * MESSAGES, MESSAGES)
