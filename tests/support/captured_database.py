"""A PostgreSQL database whose tables are followed into ClickHouse, by the commands that users type.

The oracle is PostgreSQL itself: `SELECT … FINAL` must give the rows that it has, value by value.
"""

from __future__ import annotations

import json
import re
import shlex
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import yaml
from clickhouse_connect.driver.client import Client
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession

from live_pipeline import PATIENCE_SECONDS, wait_until
from oncehouse.cli.app import run_command
from oncehouse.config.file_loader import load_pipeline
from oncehouse.config.pipeline import Pipeline
from oncehouse.devstack.kafka_connect import Connect
from oncehouse.pipeline.run import run_pipeline

Columns = Mapping[str, tuple[str, str]]
"""Column -> its value in PostgreSQL's and in ClickHouse's words, which must be equal."""

# Quick enough for a test; sizes and times of the file are for production.
_QUICK = {
    "epoch": {"max_wait": 0.1},
    "batch": {"min_rows": 1, "max_wait": 0.1, "min_interval": 0.1},
    "spark": {"master": "local[2]"},
}


class CapturedDatabase:
    def __init__(
        self,
        *,
        folder: Path,
        prefix: str,
        connect: Connect,
        postgres_url: str,
        bootstrap_servers: str,
        clickhouse_url: str,
        client: Client,
        spark: SparkSession,
    ) -> None:
        self.folder, self.prefix = folder, prefix
        self.connect = connect
        self.servers = bootstrap_servers
        self.clickhouse_url = clickhouse_url
        self.client, self.spark = client, spark
        self.url = postgres_url.replace("+psycopg", "")
        self.database = psycopg.connect(self.url, autocommit=True)
        self.messaging = folder / "messaging.yaml"
        self._settle(postgres_url)

    def _settle(self, database: str) -> None:
        settings = {
            "kafka": {"bootstrap_servers": self.servers},
            "database": database,
            "cdc": {"connect": self.connect.url},
        }
        self.messaging.write_text(yaml.safe_dump(settings), encoding="utf-8")

    def use_password(self, password: str) -> str:
        """Give the database's user a password, tell Connect of it in a file, and return the reference to that."""
        self._settle(self.url.replace("postgresql://postgres@", f"postgresql+psycopg://postgres:{password}@"))
        file = self.connect.secrets / f"{self.prefix}.properties"
        file.write_text(f"password={password}\n", encoding="utf-8")
        return f"${{file:{file}:password}}"

    # The commands

    def command(self, *words: str) -> int:
        return run_command([*words, "--file", str(self.messaging)])

    def follow(self, *words: str) -> None:
        places = ["--folder", str(self.folder), "--clickhouse", self.clickhouse_url, "--partitions", "2"]
        assert self.command("cdc", "init", *words, "--prefix", self.prefix, *places) == 0
        file = self.folder / f"{self.prefix}.connector.json"
        document = json.loads(file.read_text(encoding="utf-8"))
        # Connect notes down with the heartbeat how far it is; nobody shall wait ten seconds for that.
        document["config"]["heartbeat.interval.ms"] = "1000"
        file.write_text(json.dumps(document), encoding="utf-8")
        assert self.command("cdc", "apply", str(file)) == 0

    def pipeline_file(self, table: str) -> Path:
        return self.folder / f"{self.prefix}_public_{table}.yaml"

    def create_table(self, table: str) -> None:
        """By the very command that the file shows at its top."""
        file = self.pipeline_file(table)
        found = re.search(r"^#   oncehouse (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
        assert found is not None
        words = [str(file) if word == file.name else word for word in shlex.split(found[1])]
        assert run_command(words) == 0

    def run(self, table: str) -> None:
        """Take what is in Kafka now to ClickHouse."""
        run_pipeline(self._load(table), once=True, spark=self.spark, say=lambda _: None)

    def _load(self, table: str) -> Pipeline:
        return load_pipeline(self.pipeline_file(table))

    def edit(self, table: str, change: Callable[[dict[str, Any]], None] = lambda _: None) -> None:
        """Change the written file, as a user would."""
        file = self.pipeline_file(table)
        text = file.read_text(encoding="utf-8")
        comments = "".join(line + "\n" for line in text.splitlines() if line.startswith("#"))
        document = yaml.safe_load(text) | _QUICK
        change(document)
        file.write_text(comments + yaml.safe_dump(document, sort_keys=False), encoding="utf-8")

    def reconnect(self) -> None:
        """After the server was killed."""
        self.database.close()
        self.database = psycopg.connect(self.url, autocommit=True)

    # What has come how far

    def wait_for_kafka(self, touch: str) -> None:
        """All that is committed is in Kafka: Connect notes down only what Kafka has acknowledged.

        `touch` changes a row that is followed, so that there is something to note down. A slow machine may need long
        for what was written meanwhile: it is given up only when nothing more is noted down.
        """
        here = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint"
        (place,) = self.database.execute(here).fetchone() or (0,)
        self.database.execute(touch)
        noted, deadline = -1, 0.0
        while noted <= place:
            before, noted = noted, self._noted()
            if noted > before:
                deadline = time.monotonic() + PATIENCE_SECONDS
            assert time.monotonic() < deadline, f"stands at {noted}, before {place}: {self._ask('status')}"
            time.sleep(0.5)  # asking is dear: the worker reads the topic of offsets

    def _noted(self) -> int:
        found = self._ask("offsets")["offsets"]
        return max((int(one["offset"].get("lsn") or 0) for one in found), default=0)

    def _ask(self, what: str) -> Any:
        url = f"{self.connect.url}/connectors/{self.prefix}/{what}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.load(answer)

    def count_records(self, topic: str) -> int:
        return sum(end for _, end in self._ends(topic))

    def _ends(self, topic: str) -> list[tuple[int, int]]:
        consumer = Consumer(
            {"bootstrap.servers": self.servers, "group.id": "captured-database", "log_level": 0}
        )
        try:
            found = consumer.list_topics(topic, timeout=20).topics[topic].partitions
            return [
                (number, consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=20)[1])
                for number in found
            ]
        finally:
            consumer.close()

    def read_records(self, topic: str) -> Iterator[Any]:
        """Every message of a topic so far."""
        ends = [(number, end) for number, end in self._ends(topic) if end]
        consumer = Consumer(
            {"bootstrap.servers": self.servers, "group.id": "captured-database", "log_level": 0}
        )
        consumer.assign([TopicPartition(topic, number, 0) for number, _ in ends])
        left = sum(end for _, end in ends)
        deadline = time.monotonic() + 60
        while left and time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                left -= 1
                yield message
        consumer.close()
        assert left == 0, f"{topic}: {left} records could not be read"

    def repeat_records(self, topic: str, most: int) -> int:
        """Send the first records of each partition again, as a connector does that has not noted how far it was."""
        producer = Producer({"bootstrap.servers": self.servers, "enable.idempotence": True})
        repeated = 0
        for message in list(self.read_records(topic)):
            if message.offset() < most:
                producer.produce(
                    topic,
                    message.value(),
                    message.key(),
                    partition=message.partition(),
                    headers=message.headers(),
                )
                repeated += message.value() is not None
        assert producer.flush(60) == 0
        return repeated

    # What came out

    def rows_of_postgres(self, table: str, columns: Columns) -> list[tuple[Any, ...]]:
        words = ", ".join(source for source, _ in columns.values())
        return sorted(self.database.execute(f"SELECT {words} FROM {table}").fetchall())

    def rows_of_clickhouse(self, table: str, columns: Columns) -> list[tuple[Any, ...]]:
        words = ", ".join(target for _, target in columns.values())
        return sorted(self.client.query(f"SELECT {words} FROM {table} FINAL").result_rows)

    def assert_same(self, table: str, target: str, columns: Columns) -> None:
        """`target` in ClickHouse shows with FINAL exactly the rows of the table in PostgreSQL."""
        expected = {repr(row) for row in self.rows_of_postgres(table, columns)}
        rows = self.rows_of_clickhouse(target, columns)
        found = {repr(row) for row in rows}
        lost, strange = sorted(expected - found), sorted(found - expected)
        assert not lost, f"{len(lost)} rows are lost or old, among them {lost[:2]}; instead {strange[:2]}"
        assert not strange, f"{len(strange)} rows are too many, among them {strange[:2]}"
        assert len(rows) == len(found), f"{len(rows) - len(found)} rows are doubled"

    def close(self) -> None:
        """Take the connectors back and drop their slots, or the database could not be dropped."""
        for name in json.load(urllib.request.urlopen(f"{self.connect.url}/connectors", timeout=20)):
            request = urllib.request.Request(f"{self.connect.url}/connectors/{name}", method="DELETE")
            urllib.request.urlopen(request, timeout=30).close()
        drop = (
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            "WHERE database = current_database() AND NOT active"
        )
        left = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"

        def gone() -> bool:
            self.database.execute(drop)
            return self.database.execute(left).fetchone() == (0,)

        try:
            wait_until(gone, "the slots to be free")
        finally:
            self.database.close()
