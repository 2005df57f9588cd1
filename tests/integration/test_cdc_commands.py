"""`oncehouse cdc` on a real PostgreSQL, with Kafka Connect in memory: files, refusals, and the watch on slots."""

import json

import psycopg
import pytest
import yaml

from fake_connect import serve_connect
from oncehouse.cli.app import run_command
from oncehouse.config.file_loader import load_pipeline

TABLES = """
CREATE SCHEMA sales;
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN cents AS numeric(12, 2) NOT NULL;
CREATE TABLE orders (id bigint, line int, amount cents, feeling mood, tags text[], note text, PRIMARY KEY (id, line));
CREATE TABLE sales.seats (id int PRIMARY KEY, place int, twice int GENERATED ALWAYS AS (place * 2) STORED);
CREATE TABLE sales.notes (id int PRIMARY KEY, note text, size int GENERATED ALWAYS AS (length(note)) STORED);
CREATE TABLE nokey (id int);
"""


@pytest.fixture
def shop(postgres_url, tmp_path):
    with (
        serve_connect() as fake,
        psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as connection,
    ):
        connection.execute(TABLES)
        made = Shop(tmp_path, connection, fake, postgres_url)
        yield made
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
        )


class Shop:
    def __init__(self, folder, connection, fake, url):
        self.folder, self.database, self.fake, self.url = folder, connection, fake, url
        self.file = folder / "messaging.yaml"
        self.settle()

    def settle(self, url=None, **cdc):
        settings = {
            "kafka": {"bootstrap_servers": "localhost:9092"},
            "database": url or self.url,
            "cdc": {"connect": self.fake.url, **cdc},
        }
        self.file.write_text(yaml.safe_dump(settings))

    def __call__(self, *words):
        return run_command(["cdc", *words, "--file", str(self.file)])

    def init(self, *words):
        return self("init", *words, "--prefix", "shop", "--folder", str(self.folder / "out"))

    def connector(self):
        return json.loads((self.folder / "out" / "shop.connector.json").read_text())["config"]


def test_init_reads_columns_and_keys_and_writes_files_that_load(shop, capsys):
    shop.database.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    assert shop.init("orders", "sales.seats", "--json", "--partitions", "7") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["warnings"] == []
    assert set(told["tables"]) == {"shop_public_orders", "shop_sales_seats"}
    assert told["tables"]["shop_public_orders"].endswith("--order-by id,line --yes")
    orders, seats = (load_pipeline(file) for file in told["files"][1:])
    assert orders.source.fields == {
        "id": "Int64",
        "line": "Int32",
        "amount": "Nullable(Decimal(12, 2))",
        "feeling": "LowCardinality(Nullable(String))",
        "tags": "Array(Nullable(String))",
        "note": "Nullable(String)",
        "_version": "UInt64",
        "_deleted": "UInt8",
    }
    assert list(seats.source.fields) == ["id", "place", "_version", "_deleted"]
    assert seats.source.topics == ("shop.sales.seats",)
    config = shop.connector()
    assert config["table.include.list"] == r"public\.orders,sales\.seats"
    assert "database.password" not in config
    assert config["topic.creation.default.partitions"] == "7"


def test_init_asks_for_whole_rows_in_the_log_and_changes_nothing_itself(shop, capsys):
    assert shop.init("orders", "sales.notes") == 2
    told = capsys.readouterr().err
    assert 'ALTER TABLE "public"."orders" REPLICA IDENTITY FULL;  -- amount, tags, note' in told
    assert "sales.notes: not possible with its generated columns" in told
    assert not (shop.folder / "out").exists()
    assert shop.init("orders", "--without-full") == 0
    assert "warning: public.orders: without REPLICA IDENTITY FULL" in capsys.readouterr().out


def test_init_does_not_publish_a_table_that_could_then_not_be_updated(shop, capsys):
    """PostgreSQL 18 itself shows why."""
    shop.database.execute(
        "ALTER TABLE sales.notes REPLICA IDENTITY FULL; INSERT INTO sales.notes VALUES (1, 'a')"
    )
    assert shop.init("sales.notes") == 2
    assert 'ALTER TABLE "sales"."notes" REPLICA IDENTITY DEFAULT' in capsys.readouterr().err
    shop.database.execute("CREATE PUBLICATION careless FOR TABLE sales.notes")
    with pytest.raises(psycopg.errors.InvalidColumnReference):
        shop.database.execute("UPDATE sales.notes SET note = 'b'")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nokey"], "public.nokey has no primary key"),
        (["nothere"], "public.nothere: there is no such table"),
        (["a b"], "is not a table that can be captured"),
        ([], "name the tables to follow"),
        (["orders", "--outbox", "orders"], "name the tables to follow, or an outbox table"),
        (
            ["--outbox", "orders"],
            "public.orders is not an outbox table: it has no column headers, key, topic, value",
        ),
        (["sales.seats", "--clickhouse", "nowhere"], "--clickhouse: "),
    ],
)
def test_init_refuses_what_cannot_be_followed(shop, capsys, words, told):
    assert shop.init(*words) == 2
    assert told in capsys.readouterr().err


def test_init_leaves_files_alone_that_exist(shop, capsys):
    assert shop.init("sales.seats") == 0
    (shop.folder / "out" / "shop.connector.json").unlink()
    assert shop.init("sales.seats") == 2
    assert "shop_sales_seats.yaml exist already and nothing was written" in capsys.readouterr().err
    assert not (shop.folder / "out" / "shop.connector.json").exists()


def test_a_password_goes_to_connect_by_reference_and_is_never_shown(shop, capsys):
    shop.settle(url=shop.url.replace("postgres@", "postgres:hunter2@"))
    assert shop.init("sales.seats") == 0
    assert shop.connector()["database.password"] == "${env:CDC_DATABASE_PASSWORD}"
    out = capsys.readouterr()
    assert "takes the database's password from ${env:CDC_DATABASE_PASSWORD}" in out.out
    written = "".join(path.read_text() for path in (shop.folder / "out").iterdir())
    assert "hunter2" not in written + out.out + out.err
    assert shop.init("sales.seats", "--password", "hunter2") == 2
    assert "hunter2" not in capsys.readouterr().err


def test_apply_brings_a_connector_once_and_warns_of_a_plain_password(shop, capsys):
    assert shop.init("sales.seats") == 0
    file = shop.folder / "out" / "shop.connector.json"
    assert shop("apply", str(file)) == 0
    assert shop("apply", str(file)) == 0
    out = capsys.readouterr().out
    assert "shop: created, running" in out
    assert "shop: unchanged, running" in out
    assert shop.fake.puts == 1
    document = json.loads(file.read_text())
    document["config"]["database.password"] = "hunter2"
    file.write_text(json.dumps(document))
    assert shop("apply", str(file)) == 0
    told = capsys.readouterr().out
    assert "database.password is no reference" in told
    assert "hunter2" not in told
    assert shop("apply", str(file), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"connectors": {"shop": "unchanged"}}
    assert shop("apply", str(shop.folder / "none.json")) == 2


def write_log(shop, count):
    shop.database.execute("CREATE TABLE IF NOT EXISTS filler (t text)")
    shop.database.execute("INSERT INTO filler SELECT repeat('x', 1000) FROM generate_series(1, %s)", (count,))


def test_status_warns_before_the_log_fills_the_disk(shop, capsys):
    shop.database.execute("SELECT pg_create_logical_replication_slot('lonely', 'pgoutput')")
    assert shop("status", "--json") == 3
    (before,) = find(json.loads(capsys.readouterr().out)["slots"], "lonely")
    assert before["problems"] == [
        "it has no reader: start its connector, or drop the slot if it is not needed any more"
    ]
    write_log(shop, 3000)
    shop.settle(lag_limit="2MB", wal_disk="17MB", full_share=0.9)
    assert shop("status", "--json") == 3
    found = json.loads(capsys.readouterr().out)
    (after,) = find(found["slots"], "lonely")
    assert after["slot"]["kept_bytes"] >= before["slot"]["kept_bytes"] + 3_000_000
    assert after["slot"]["lag_bytes"] >= 3_000_000
    told = " ".join(after["problems"])
    assert "more than cdc.lag_limit (2MB)" in told
    assert "of the space for the log is used" in told
    assert after["room_bytes"] == max(17 * (1 << 20) - found["server"]["log_bytes"], 0)

    assert shop("status") == 3
    shown = capsys.readouterr().out
    assert "no connectors of PostgreSQL" in shown
    assert "warning: slot lonely: it has no reader" in shown


def find(slots, name):
    return [one for one in slots if one["slot"]["name"] == name]


def test_status_tells_of_connectors_and_of_slots_when_connect_is_away(shop, capsys):
    assert shop.init("sales.seats") == 0
    assert shop("apply", str(shop.folder / "out" / "shop.connector.json")) == 0
    shop.fake.fail("shop", "Caused by: org.postgresql.util.PSQLException: no pg_hba.conf entry")
    capsys.readouterr()
    assert shop("status", "--json") == 3
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert "connector shop failed: org.postgresql.util.PSQLException: no pg_hba.conf entry" in problems
    assert any("the database has no slot oncehouse_shop" in problem for problem in problems)
    shop.settle(connect="http://127.0.0.1:9")
    assert shop("status") == 3
    shown = capsys.readouterr().out
    assert "Kafka Connect at http://127.0.0.1:9 does not answer" in shown


def test_a_database_that_is_not_postgresql_has_no_log_to_follow(shop, capsys):
    shop.settle(url="sqlite:///other.db")
    for words in (["status"], ["init", "orders", "--prefix", "shop"]):
        assert shop(*words) == 2
        assert "database must be postgresql+psycopg://" in capsys.readouterr().err
    assert not (shop.folder / "other.db").exists()
