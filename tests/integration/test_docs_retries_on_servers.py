"""The examples of docs/retries.md that need Kafka and ClickHouse do what the page says."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from oncehouse.cli.app import run_command
from oncehouse.messaging import Consumer

PAGE = (Path(__file__).parents[2] / "docs" / "retries.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.long
def test_batches_come_into_clickhouse_and_what_the_table_refuses_is_listed_shown_replayed_and_purged(
    kafka, kafka_admin, clickhouse, clickhouse_client, database, produce, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("messaging.yaml").write_text(f"kafka: {{bootstrap_servers: '{kafka.bootstrap_servers}'}}\n")
    kafka_admin.create_topics([NewTopic("orders", num_partitions=1, replication_factor=1)])["orders"].result(
        30
    )
    produce("orders", [b'{"id": 1, "customer": "ann"}', b'{"id": "x", "customer": "bob"}', b"not json"])
    clickhouse_client.command(blocks("sql")[0].replace("orders", f"{database}.orders", 1))
    program = blocks("python")[2].replace("localhost:9092", kafka.bootstrap_servers)
    program = program.replace("http://localhost:8123/shop", f"{clickhouse.url}/{database}")
    made: list[Consumer] = []

    def note(consumer: Consumer) -> None:
        made.append(consumer)

    monkeypatch.setattr(Consumer, "run", note)
    exec(compile(program, "docs/retries.md", "exec"), {"__name__": "load"})
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    thread = threading.Thread(target=made[0].run)
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while not run_list(capsys) and time.monotonic() < deadline:
            time.sleep(0.2)
        listed = run_list(capsys)
    finally:
        made[0].stop()
        thread.join(60)
    assert sorted(listed) == ["JSONDecodeError", "PermanentError"]
    assert clickhouse_client.query(f"SELECT id, customer FROM {database}.orders").result_rows == [(1, "ann")]
    for line in blocks("sh")[0].splitlines():
        assert run_command([*line.split()[1:], *(["--yes"] if "purge" in line else [])]) == 0
    shown = capsys.readouterr().out
    assert "from orders/0/" in shown
    assert "0 sent, 0 replayed before" in shown
    assert "no dead letters to purge" in shown
    assert run_command(["dlq", "replay", "orders"]) == 0
    assert "2 sent" in capsys.readouterr().out
    kafka_admin.delete_topics(["orders", "orders.dlq"])


def run_list(capsys) -> dict[str, object]:
    capsys.readouterr()
    if run_command(["dlq", "list", "orders", "--json"]) != 0:
        return {}
    errors: dict[str, object] = json.loads(capsys.readouterr().out)["errors"]
    return errors if len(errors) == 2 else {}
