"""Records what a real Debezium says about a real PostgreSQL: `python tests/recordings/record_debezium.py`.

Starts PostgreSQL, Kafka and Kafka Connect with Debezium (fetched once), lets a table live through a snapshot,
inserts, updates, deletes, a changed key, a COPY and a TRUNCATE, and writes every message, with and without its
schema, to `debezium-postgres.jsonl` beside this file. Needs Java, the dev stack and about a minute.
"""

# ruff: noqa: E501 - rows are easier to read whole
from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Consumer, TopicPartition

from oncehouse.devstack.jars import connect_jars, debezium_jars
from oncehouse.devstack.java import LOGGING_JARS, find_java, spark_jars
from oncehouse.devstack.stack import Stack

TARGET = Path(__file__).with_name("debezium-postgres.jsonl")

TABLE = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TABLE orders (
    id bigint PRIMARY KEY, small smallint, whole integer, real_ real, double_ double precision, flag boolean,
    price numeric(38, 10), anything numeric, name text, code char(4), day date, at_time time(3), at_micro time,
    stamp3 timestamp(3), stamp6 timestamp, zoned timestamptz, ident uuid, document jsonb, feeling mood,
    bits bit(5), flags bit varying(40), raw bytea, tags text[], numbers integer[], span interval
);
ALTER TABLE orders REPLICA IDENTITY FULL;
CREATE TABLE notes (line text, number integer);
ALTER TABLE notes REPLICA IDENTITY FULL;
"""
COLUMNS = (
    "id, small, whole, real_, double_, flag, price, anything, name, code, day, at_time, at_micro, stamp3, stamp6, "
    "zoned, ident, document, feeling, bits, flags, raw, tags, numbers, span"
)
ROWS = [
    """(1, -32768, -2147483648, 1.5, 'NaN', true, 9999999999999999999999999999.9999999999, 12.340, E'Zoë \\U0001F600', 'ab',
    '1970-01-01', '00:00:00', '23:59:59.999999', '1970-01-01 00:00:00', '2262-04-11 23:47:16.854775',
    '2026-11-15 12:00:00+02', '123e4567-e89b-12d3-a456-426614174000', '{"a": [1, null]}', 'happy', B'10101',
    B'1000000000000000000000000000000000000001', '\\x00ff', ARRAY['x', NULL, ''], ARRAY[1, -2], '1 month 2 days 3 seconds')""",
    """(9223372036854775807, 32767, 2147483647, -0.0, 'Infinity', false, -0.0000000001, 1e30, '', '    ',
    '2149-06-06', '23:59:59.999', '00:00:00.000001', '1900-01-01 00:00:00.001', '1900-01-01 00:00:00',
    '1900-01-01 00:00:00+00', '00000000-0000-0000-0000-000000000000', '[]', 'sad', B'00000', B'', '', '{}', '{}', '0')""",
    "(3" + ", NULL" * 24 + ")",
]
CHANGES = [
    f"INSERT INTO orders ({COLUMNS}) VALUES {ROWS[1]}",
    "UPDATE orders SET name = 'second', whole = 7 WHERE id = 1; UPDATE orders SET name = 'third' WHERE id = 1",
    "UPDATE orders SET id = 30 WHERE id = 3",
    "DELETE FROM orders WHERE id = 30",
    "INSERT INTO notes VALUES ('one', 1)",
    "TRUNCATE notes",
]


def write_properties(path: Path, settings: dict[str, object]) -> str:
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
    return str(path)


def connector(name: str, *, schemas: bool, plugin_port: int) -> dict[str, object]:
    converter = "org.apache.kafka.connect.json.JsonConverter"
    return {
        "name": name,
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": "127.0.0.1",
        "database.port": plugin_port,
        "database.user": "postgres",
        "database.password": "unused",
        "database.dbname": "postgres",
        "topic.prefix": name,
        "plugin.name": "pgoutput",
        "slot.name": name,
        "publication.name": name,
        "table.include.list": "public.orders,public.notes",
        "skipped.operations": "none",
        "key.converter": converter,
        "value.converter": converter,
        "key.converter.schemas.enable": str(schemas).lower(),
        "value.converter.schemas.enable": str(schemas).lower(),
        "topic.creation.default.replication.factor": 1,
        "topic.creation.default.partitions": 1,
        "errors.log.enable": "true",
    }


def start_connect(folder: Path, servers: str, postgres_port: int) -> subprocess.Popen[bytes]:
    plugins = folder / "plugins" / "debezium"
    plugins.mkdir(parents=True)
    for jar in debezium_jars(print):
        (plugins / jar.name).symlink_to(jar)
    worker = write_properties(
        folder / "worker.properties",
        {
            "bootstrap.servers": servers,
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "offset.storage.file.filename": folder / "offsets",
            "offset.flush.interval.ms": 1000,
            "plugin.path": plugins.parent,
            "plugin.discovery": "only_scan",
            "listeners": "http://127.0.0.1:0",
        },
    )
    files = [
        write_properties(
            folder / f"{name}.properties", connector(name, schemas=schemas, plugin_port=postgres_port)
        )
        for name, schemas in (("plain", False), ("described", True))
    ]
    jars = os.pathsep.join(str(jar) for jar in [*spark_jars(*LOGGING_JARS), *connect_jars(print)])
    command = [find_java(), "-Xmx400m", "-cp", jars, "org.apache.kafka.connect.cli.ConnectStandalone", worker]
    log = (folder / "connect.log").open("wb")
    return subprocess.Popen([*command, *files], stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def read_topic(consumer: Consumer, topic: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    consumer.assign([TopicPartition(topic, 0, 0)])
    end = time.monotonic() + 5
    while time.monotonic() < end:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            key, value = message.key(), message.value()
            found.append({"topic": topic, "key": key and key.decode(), "value": value and value.decode()})
    return found


def wait_for_streaming(
    folder: Path, process: subprocess.Popen[bytes], connection: psycopg.Connection[Any]
) -> None:
    """Both connectors have read their snapshot and follow the log."""
    end = time.monotonic() + 180
    active = "SELECT count(*) FROM pg_replication_slots WHERE active"
    while connection.execute(active).fetchone() != (2,):
        if time.monotonic() > end or process.poll() is not None:
            raise SystemExit((folder / "connect.log").read_text(errors="replace")[-6000:])
        time.sleep(1)
    time.sleep(5)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="record-debezium-") as name:
        folder = Path(name)
        stack = Stack(folder=folder / "stack")
        stack.up(["kafka", "postgres"])
        try:
            record(folder, stack)
        finally:
            stack.down()


def record(folder: Path, stack: Stack) -> None:
    url = stack.postgres.url.replace("+psycopg", "")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLE)
        for row in (ROWS[0], ROWS[2]):
            connection.execute(f"INSERT INTO orders ({COLUMNS}) VALUES {row}")
        port = int(stack.postgres.place.ports["postgres"])
        process = start_connect(folder, stack.kafka.bootstrap_servers, port)
        try:
            wait_for_streaming(folder, process, connection)
            for change in CHANGES:
                connection.execute(change)
            with connection.cursor().copy("COPY orders (id, name) FROM STDIN") as copy:
                copy.write("101\tcopied\n102\tcopied\n")
            time.sleep(8)
        finally:
            process.terminate()
            process.wait(60)
    consumer = Consumer({"bootstrap.servers": stack.kafka.bootstrap_servers, "group.id": "recorder"})
    messages = [
        message
        for prefix in ("plain", "described")
        for table in ("orders", "notes")
        for message in read_topic(consumer, f"{prefix}.public.{table}")
    ]
    consumer.close()
    TARGET.write_text("".join(json.dumps(message) + "\n" for message in messages), encoding="utf-8")
    print(f"{len(messages)} messages in {TARGET}")


if __name__ == "__main__":
    main()
