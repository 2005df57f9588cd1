"""From tables of PostgreSQL to ClickHouse, by Debezium on Kafka Connect: `SELECT … FINAL` gives the rows it has."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
import yaml
from sqlalchemy import create_engine

from captured_database import CapturedDatabase, Columns
from live_pipeline import wait_until
from oncehouse.cli.app import run_command
from oncehouse.messaging.message import MESSAGE_ID
from oncehouse.messaging.outbox.outbox import Outbox

BIG_TRANSACTION = 20_000

TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN cents AS numeric(12, 2);
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer integer NOT NULL, amount cents NOT NULL, anything numeric, note text,
    placed timestamptz NOT NULL, local timestamp(3), day date, at time, paid boolean, ratio double precision,
    ident uuid, document jsonb, feeling mood NOT NULL, raw bytea, tags text[], counts integer[], span interval
);
ALTER TABLE orders REPLICA IDENTITY FULL;
CREATE TABLE seats (id integer, place integer, twice integer GENERATED ALWAYS AS (place * 2) STORED);
CREATE UNIQUE INDEX ON seats (place);
ALTER TABLE seats ADD PRIMARY KEY (id);
"""
ADD_ORDERS = """
INSERT INTO orders
SELECT i, mod(i, 7), i * 1.01, i::numeric / 3, 'note ' || i || repeat('x', mod(i, 40)),
    '2026-01-01 00:00:00.000001+00'::timestamptz + i * interval '61 seconds',
    '2026-01-01'::timestamp + i * interval '1.001 seconds', date '1950-01-01' + mod(i, 9000),
    time '00:00:00.000001' + i * interval '1 second', mod(i, 2) = 0, i / 7.0,
    md5(i::text)::uuid, jsonb_build_object('n', i, 'nothing', null),
    (ARRAY['sad', 'ok', 'happy'])[1 + mod(i, 3)]::mood,
    decode(md5(i::text), 'hex'), ARRAY['t' || i, NULL, ''], ARRAY[i, -i], i * interval '1 month 1 second'
FROM generate_series(%s::int, %s::int) i
"""
ORDERS: Columns = {
    "id": ("id", "id"),
    "customer": ("customer", "customer"),
    "amount": ("amount", "amount"),
    "anything": ("trim_scale(anything)::text", "anything"),
    "note": ("note", "note"),
    "placed": (
        "(extract(epoch FROM placed) * 1000000)::bigint",
        "toUnixTimestamp64Micro(placed)",
    ),
    "local": ("(extract(epoch FROM local) * 1000)::bigint", "toUnixTimestamp64Milli(local)"),
    "day": ("day", "day"),
    "at": ("(extract(epoch FROM at) * 1000000)::bigint", "at"),
    "paid": ("paid", "paid"),
    "ratio": ("ratio", "ratio"),
    "ident": ("ident", "ident"),
    "document": ("document::text", "document"),
    "feeling": ("feeling::text", "feeling"),
    "raw": ("upper(encode(raw, 'hex'))", "hex(raw)"),
    "tags": ("coalesce(tags, '{}')", "tags"),
    "counts": ("coalesce(counts, '{}')", "counts"),
}
TOUCH = "UPDATE seats SET place = place + 1 WHERE id = 5"
SEATS: Columns = {"id": ("id", "id"), "place": ("place", "place")}


@contextmanager
def in_transaction(cdc: CapturedDatabase) -> Iterator[psycopg.Connection]:
    with psycopg.connect(cdc.url) as connection:
        yield connection


def change_orders(cdc: CapturedDatabase) -> None:
    """Every kind of change, among them several of one row and of its key in one transaction."""
    with in_transaction(cdc) as one:
        one.execute(ADD_ORDERS, (1001, 1100))
        one.execute("UPDATE orders SET note = 'changed', amount = amount + 1 WHERE id BETWEEN 100 AND 300")
        one.execute("UPDATE orders SET note = 'changed again' WHERE id = 200")
        one.execute("DELETE FROM orders WHERE id BETWEEN 301 AND 400")
    with in_transaction(cdc) as two:
        two.execute("UPDATE orders SET id = id + 100000 WHERE id BETWEEN 1 AND 50")
        two.execute("DELETE FROM orders WHERE id = 100001")
        # A key that goes away and comes back is a row that was deleted and made anew.
        two.execute("UPDATE orders SET id = 7 WHERE id = 100007")
        two.execute(ADD_ORDERS, (350, 350))
    cdc.database.execute(
        "UPDATE orders SET anything = NULL, note = NULL, local = NULL, day = NULL, at = NULL, paid = NULL, "
        "ratio = NULL, ident = NULL, document = NULL, raw = NULL, tags = NULL, counts = NULL WHERE id = 500"
    )


def take_the_seat_of_a_row_that_goes(cdc: CapturedDatabase) -> None:
    """A row is written to the log before the deletion of the one whose key it takes, and takes effect after it.

    Its insert stands in the log when it waits for its place, which a transaction holds that ends later.
    """
    urls = [psycopg.connect(cdc.url) for _ in range(3)]
    leaver, taker, holder = urls
    holder.execute("INSERT INTO seats VALUES (99, 77)")

    def take() -> None:
        taker.execute("INSERT INTO seats VALUES (1, 77)")
        taker.commit()

    waiting = threading.Thread(target=take)
    waiting.start()
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    wait_until(lambda: cdc.database.execute(blocked).fetchone() == (1,), "the insert to wait")
    leaver.execute("DELETE FROM seats WHERE id = 1")
    leaver.commit()
    holder.rollback()
    waiting.join(60)
    for connection in urls:
        connection.close()


def add_wrong_tables(document: dict[str, object]) -> None:
    """Beside the right table, two that a careless set-up would make of the same changes."""
    source, name = document["source"], document["tables"][0]["name"]
    source["fields"] = {**source["fields"], "_position": "String"}
    document["shape"] = {
        "columns": {"_lsn": {"type": "UInt64", "sql": "CAST(split_part(_position, ':', 1) AS UBIGINT)"}}
    }
    columns = {field: field for field in ("id", "place", "_version", "_deleted")}
    document["tables"] = [
        {"name": name, "columns": dict(columns)},
        {"name": f"{name}_by_lsn", "columns": columns | {"_lsn": "_lsn"}},
        {"name": f"{name}_undeleted", "columns": dict(columns)},
    ]


def test_final_equals_the_tables_of_postgresql_after_crashes_repeats_and_every_kind_of_change(
    cdc, stack, database, clickhouse_client, capsys
):
    cdc.database.execute(TABLES)
    cdc.database.execute(ADD_ORDERS, (1, 500))
    cdc.database.execute("INSERT INTO seats SELECT i, i + 100 FROM generate_series(1, 5) i")
    cdc.follow("orders", "public.seats")
    cdc.edit("orders")
    cdc.edit("seats", add_wrong_tables)
    cdc.create_table("orders")
    cdc.create_table("seats")
    orders, seats = (f"{cdc.prefix}.public.{name}" for name in ("orders", "seats"))
    for name, engine in (
        ("by_lsn", "ReplacingMergeTree(_lsn, _deleted)"),
        ("undeleted", "ReplacingMergeTree(_version)"),
    ):
        made = clickhouse_client.query(f"SHOW CREATE TABLE {database}.seats_{name}").result_rows[0][0]
        clickhouse_client.command(f"DROP TABLE {database}.seats_{name} SYNC")
        clickhouse_client.command(made.replace("ReplacingMergeTree(_version, _deleted)", engine))

    change_orders(cdc)
    cdc.database.execute("DELETE FROM seats WHERE id = 3")
    cdc.wait_for_kafka(TOUCH)
    before = cdc.count_records(orders)
    with in_transaction(cdc) as big:
        big.execute(ADD_ORDERS, (200_001, 200_000 + BIG_TRANSACTION))
    wait_until(lambda: cdc.count_records(orders) > before + 2_000, "some of the big transaction")
    stack.kill("connect")
    assert cdc.count_records(orders) < before + BIG_TRANSACTION, "the big transaction was through already"
    cdc.run("orders")
    cdc.database.execute("UPDATE orders SET note = 'while nobody looked' WHERE id % 100 = 0")
    cdc.database.execute("DELETE FROM orders WHERE id % 100 = 1")
    stack.start("connect")
    take_the_seat_of_a_row_that_goes(cdc)
    cdc.wait_for_kafka(TOUCH)
    repeated = cdc.repeat_records(orders, 400)
    assert cdc.repeat_records(seats, 400) > 0
    for table in ("orders", "seats"):
        cdc.run(table)

    assert repeated > 400
    cdc.assert_same("orders", f"{database}.orders", ORDERS)
    (span,) = clickhouse_client.query(
        f"SELECT span FROM {database}.orders FINAL WHERE id = 100014"
    ).result_rows[0]
    assert span == "P1Y2M0DT0H0M14S"

    assert (1, 77) in cdc.rows_of_postgres("seats", SEATS)
    cdc.assert_same("seats", f"{database}.seats", SEATS)
    # Versions by the place in the log take the deletion for newer than the row that came after it.
    with pytest.raises(AssertionError, match=r"1 rows are lost or old, among them \['\(1, 77\)'\]"):
        cdc.assert_same("seats", f"{database}.seats_by_lsn", SEATS)
    with pytest.raises(AssertionError, match="1 rows are too many"):
        cdc.assert_same("seats", f"{database}.seats_undeleted", SEATS)

    capsys.readouterr()
    cdc.command("cdc", "status", "--json")
    found = json.loads(capsys.readouterr().out)
    (connector,) = found["connectors"]
    assert (connector["state"], [task["state"] for task in connector["tasks"]]) == ("RUNNING", ["RUNNING"])
    (report,) = [one for one in found["slots"] if one["slot"]["name"] == connector["slot"]]
    assert report["slot"]["active"]
    assert report["problems"] == []


def test_a_row_of_the_outbox_reaches_clickhouse_once_with_its_id_though_connect_repeats_it(
    cdc, database, topic
):
    outbox, events = Outbox(), topic(partitions=2)
    engine = create_engine(cdc.url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        outbox.create(connection)
    added = {}

    def add(numbers: range, *, commit: bool = True) -> None:
        with engine.connect() as connection:
            for number in numbers:
                value = json.dumps({"number": number}).encode()
                id_ = outbox.add(connection, events, f"key {number % 5}", value, {"trace": "a"})
                if commit:
                    added[number] = str(id_)
            # Gone at once: the log has what Debezium needs, and the table stays empty.
            connection.execute(outbox.table.delete())
            (connection.commit if commit else connection.rollback)()

    with engine.begin() as connection:
        added[0] = str(outbox.add(connection, events, "key 0", b'{"number": 0}'))
    reference = cdc.use_password("hunter2")
    cdc.follow("--outbox", outbox.table.name, "--password", reference)
    with urllib.request.urlopen(f"{cdc.connect.url}/connectors/{cdc.prefix}/config", timeout=20) as answer:
        shown = answer.read().decode()
    assert reference in shown
    assert "hunter2" not in shown
    add(range(1, 1000))
    add(range(5000, 5100), commit=False)
    add(range(1000, 1500))
    wait_until(lambda: cdc.count_records(events) >= len(added), "all of the outbox")
    assert cdc.repeat_records(events, 100) > 100

    for message in cdc.read_records(events):
        headers = dict(message.headers())
        assert headers[MESSAGE_ID].decode() == added[json.loads(message.value())["number"]]
        assert headers["oncehouse-headers"] == (
            None if message.value() == b'{"number": 0}' else b'[["trace","a"]]'
        )
    document = {
        "pipeline": "outbox",
        "source": {
            "kafka": {"bootstrap_servers": cdc.servers, "topics": [events]},
            "format": "json",
            "fields": {"number": "UInt64"},
        },
        "identity": {"headers": [MESSAGE_ID]},
        "tables": [{"name": "events"}],
        "clickhouse": {"url": cdc.clickhouse_url},
        "ledger": {"catalog": f"sqlite:///{cdc.folder}/outbox.db", "files": str(cdc.folder / "outbox")},
    }
    cdc.pipeline_file("outbox").write_text(yaml.safe_dump(document), encoding="utf-8")
    cdc.edit("outbox")
    assert (
        run_command(["table", "create", str(cdc.pipeline_file("outbox")), "--order-by", "number", "--yes"])
        == 0
    )
    cdc.run("outbox")
    rows = cdc.client.query(f"SELECT number FROM {database}.events ORDER BY number").result_rows
    assert [number for (number,) in rows] == sorted(added)
    engine.dispose()
