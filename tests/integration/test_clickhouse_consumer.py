"""Kafka to ClickHouse by the batch consumer and its ready handler: a kill -9 after the insert doubles no row."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

import pytest

MESSAGES = 3_000

PROGRAM = """
import os, signal, sys, threading, time, uuid
from oncehouse.messaging import Consumer
from oncehouse.messaging.clickhouse_handler import ClickHouseHandler

servers, group, topic, url, kills, expected, defect = sys.argv[1:]
insert = ClickHouseHandler(url=url, table="numbers", rows=lambda batch: [{"n": int(value)} for value in batch.values])
# A member that comes back under its name gets its partitions at once.
consumer = Consumer(group=group, bootstrap_servers=servers, options={"group.instance.id": "one"})
calls = 0

class Renamed:
    def __init__(self, batch):
        self.values, self.token = batch.values, uuid.uuid4().hex

@consumer.batch(topic, size=400, wait=0.2)
def handle(batch):
    global calls
    insert(Renamed(batch) if defect == "token left out" else batch)
    calls += 1
    if calls == int(kills):
        os.kill(os.getpid(), signal.SIGKILL)  # the rows are there, their offsets are not

def stop_when_all_is_there():
    while int(insert.client.query("SELECT uniqExact(n) FROM numbers")[0][0]) < int(expected):
        time.sleep(0.1)
    consumer.stop()

threading.Thread(target=stop_when_all_is_there, daemon=True).start()
consumer.run()
"""


@pytest.mark.parametrize("defect", ["none", "token left out"])
def test_a_kill_between_insert_and_commit_doubles_no_row(
    kafka, clickhouse, clickhouse_client, database, topic, produce, defect
):
    source = topic(partitions=2)
    for partition in range(2):
        values = [b"%d" % number for number in range(partition, MESSAGES, 2)]
        produce(source, values, partition=partition)
    clickhouse_client.command(
        f"CREATE TABLE {database}.numbers (n UInt64) ENGINE = MergeTree ORDER BY n "
        "SETTINGS non_replicated_deduplication_window = 20000"
    )
    group = uuid.uuid4().hex

    def run(kills):
        arguments = [kafka.bootstrap_servers, group, source, f"{clickhouse.url}/{database}", str(kills)]
        called = [sys.executable, "-c", PROGRAM, *arguments, str(MESSAGES), defect]
        return subprocess.run(called, env=os.environ, timeout=120, check=False).returncode

    assert run(kills=1) == -9
    assert run(kills=2) == -9
    assert run(kills=0) == 0
    ((rows, unique),) = clickhouse_client.query(
        f"SELECT count(), uniqExact(n) FROM {database}.numbers"
    ).result_rows
    assert unique == MESSAGES
    if defect == "none":
        assert rows == MESSAGES
    else:
        assert rows > MESSAGES  # the scenario finds the defect that it was made for
