"""The example of the scheduler, small, as a user runs it; and that its comparison notices what is wrong."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from dataclasses import asdict

import pyarrow as pa
import pytest

from etl_example import EXAMPLE, read_table, run_example
from oncehouse.cli.app import run_command


@pytest.fixture
def example(monkeypatch):
    """The example's modules, importable as it imports them itself."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import run
    import shop

    yield run, shop
    for name in ("run", "shop"):
        sys.modules.pop(name, None)


@pytest.mark.servers
def test_the_example_ends_with_facts_equal_to_an_independent_join():
    done = run_example(EXAMPLE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed the scheduler" in done.stdout
    table = read_table(done.stdout)
    assert list(table) == ["dwh.customers", "dwh.orders", "dwh.payments", "dwh.large", "dwh.daily"]
    assert all(row[0] == row[1] and row[2:] == ["0", "0"] for row in table.values())
    assert table["dwh.orders"][0] == "2,000"  # the last ones too: the sources declare that nothing more comes


class FakeFacts:
    """Answers the queries of the comparison."""

    def __init__(self, facts):
        self.facts = facts

    def query(self, sql):
        return self.facts[sql.rpartition(" ")[2]]


def spoilt(facts, table, change):
    return {**facts, table: change(facts[table])}


@pytest.mark.parametrize(
    ("table", "change", "told"),
    [
        ("dwh.orders", lambda rows: rows[1:], "1         0"),
        ("dwh.orders", lambda rows: [*rows, rows[7]], "0         1"),
        ("dwh.payments", lambda rows: [(*rows[0][:3], "xx", *rows[0][4:]), *rows[1:]], "1         1"),
        ("dwh.daily", lambda rows: [(*rows[0][:3], rows[0][3] + 1), *rows[1:]], "1         1"),
    ],
)
def test_the_comparison_notices_one_row_lost_doubled_or_wrong(example, capsys, table, change, told):
    run, shop = example
    facts = shop.expect_facts(shop.make_shop(200, hours=10, seed=1))
    assert run.compare(FakeFacts(facts), facts) == 0
    assert run.compare(FakeFacts(spoilt(facts, table, change)), facts) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines()[6:] if line.startswith(table)]
    assert line.endswith(told)


JOINS = {
    "dwh.orders": "SELECT id, time_ms, customer, country, quantity FROM placed",
    "dwh.large": "SELECT id, time_ms, country, quantity FROM placed WHERE quantity >= 8",
    "dwh.payments": "SELECT p.id, p.time_ms, o.id, o.country, o.quantity, p.amount "
    "FROM payments p JOIN placed o ON o.id = p.order",
    "dwh.daily": "SELECT date_format(timestamp_millis(p.time_ms), 'yyyy-MM-dd'), o.country, count(*), sum(p.amount) "
    "FROM payments p JOIN placed o ON o.id = p.order GROUP BY ALL",
    "dwh.customers": "SELECT customer, max_by(country, id) FROM customers GROUP BY customer",
}


@pytest.mark.long
def test_the_join_that_the_facts_are_compared_with_is_the_one_that_spark_computes(example, spark):
    _, shop = example
    # By default Spark would cut these few rows into two hundred pieces for every join and grouping.
    small = spark.newSession()
    small.conf.set("spark.sql.shuffle.partitions", "2")
    made = shop.make_shop(2000, hours=18, seed=7)
    facts = shop.expect_facts(made)
    for name in ("orders", "payments", "customers"):
        rows = pa.Table.from_pylist([asdict(row) for row in getattr(made, name)])
        small.createDataFrame(rows).createOrReplaceTempView(name)
    # For each order the latest state of its customer that is not after it.
    small.sql(
        "SELECT o.id, o.time_ms, o.customer, o.quantity, max_by(c.country, c.id) AS country FROM orders o "
        "LEFT JOIN customers c ON c.customer = o.customer AND c.time_ms <= o.time_ms GROUP BY ALL"
    ).createOrReplaceTempView("placed")
    for table, sql in JOINS.items():
        assert Counter(tuple(row) for row in small.sql(sql).collect()) == Counter(facts[table]), table


def test_the_systems_of_the_example_send_every_row_once(example):
    run, shop = example
    made = shop.make_shop(500, hours=10, seed=3)
    ids = {"stage.orders": [], "stage.payments": [], "stage.customers": []}
    for hour in range(1, made.hours + 1):
        for table, rows in run.arrivals(made, hour).items():
            ids[table] += [row["id"] for row in rows]
    for table, sent in zip(ids, (made.orders, made.payments, made.customers), strict=True):
        assert ids[table] == [row.id for row in sent]


@pytest.fixture
def shop_folder(clickhouse, clickhouse_client, tmp_path, monkeypatch):
    """A small shop with one topic, and the commands to look at it."""
    database = f"etl_{os.urandom(6).hex()}"
    (tmp_path / "lineage").mkdir()
    (tmp_path / "etl.yaml").write_text(
        f"clickhouse: {{url: '{clickhouse.url}'}}\ndatabase: {database}\noffsets: {{store: rocksdb}}\n"
        f"lineage: lineage\n"
    )
    (tmp_path / "lineage" / "shop.yaml").write_text(
        f"topics:\n  - {{topic: Stage, dst: {database}.stage}}\n"
        f"  - {{topic: Fact, dst: {database}.fact, depends_on: {database}.stage}}\n"
    )
    monkeypatch.chdir(tmp_path)
    yield database
    clickhouse_client.command(f"DROP DATABASE IF EXISTS {database} SYNC")


def command(capsys, *words: str, code: int = 0):
    capsys.readouterr()
    assert run_command(["etl", *words, "--json"]) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_topic_from_init_to_its_log_by_commands_alone(shop_folder, clickhouse_client, capsys):
    database, run = shop_folder, clickhouse_client.command
    assert run_command(["etl", "status"]) == 2
    assert "`oncehouse etl init --yes` makes them" in capsys.readouterr().err
    (shown,) = command(capsys, "init")
    assert not shown["ran"]
    assert run(f"EXISTS DATABASE {database}") == 0
    (made,) = command(capsys, "init", "--yes")
    assert made["statements"] == shown["statements"]
    columns = "(id UInt64, pos DateTime64(3, 'UTC')) ENGINE = MergeTree ORDER BY (pos, id)"
    run(f"CREATE TABLE {database}.stage {columns}")
    run(f"CREATE TABLE {database}.fact {columns} SETTINGS non_replicated_deduplication_window = 1000")
    (found,) = command(capsys, "check", code=2)
    assert [finding["what"] for finding in found["findings"]] == [
        f"the transform view {database}.FactTransform does not exist"
    ]
    span = f"(SELECT (last, next) FROM {database}.OffsetsLocal WHERE topic = 'Fact')"
    run(
        f"CREATE VIEW {database}.FactTransform AS WITH {span} AS span "
        f"SELECT id, pos FROM {database}.stage WHERE (pos, id) > span.1 AND (pos, id) <= span.2"
    )
    (found,) = command(capsys, "check")
    assert (found["findings"], [change["kind"] for change in found["changes"]]) == ([], ["added", "added"])
    (status,) = command(capsys, "status")
    assert status["topics"][0]["reason"] == f"no rows yet in {database}.stage"
    command(capsys, "log", "create", "Fact", "--yes")

    run(f"INSERT INTO {database}.stage SELECT number, '2026-05-01 10:00:00.000' FROM numbers(1, 10)")
    (plan,) = command(capsys, "plan")
    (step,) = plan["steps"]
    assert (step["topic"], step["rows"], step["next"]["id"]) == ("Fact", 10, 10)
    assert run(f"SELECT count() FROM {database}.fact") == 0
    *_, end = command(capsys, "run", "--once")
    assert (end["steps"], end["rows"], end["failed"]) == ({"Fact": 1}, {"Fact": 10}, {})
    assert run(f"SELECT count() FROM {database}.fact") == 10
    assert command(capsys, "sync") == [{"changes": [], "written": False}]

    command(capsys, "pause", "Fact")
    run(f"INSERT INTO {database}.stage SELECT number, '2026-05-01 11:00:00.000' FROM numbers(11, 5)")
    command(capsys, "run", "--once")
    (status,) = command(capsys, "status")
    assert (status["topics"][0]["decision"], status["topics"][0]["lag_seconds"]) == (
        "paused",
        {f"{database}.stage": 3600.0},
    )
    command(capsys, "resume", "Fact")
    command(capsys, "run", "--once")
    assert run(f"SELECT (count(), uniqExact(id)) FROM {database}.fact") == "(15,15)"
    # Rows that are still there would be doubled; once they are deleted, the same range is built anew.
    assert run_command(["etl", "seek", "Fact", "2026-05-01T10:00:00,10"]) == 2
    assert "still holds 5 rows" in capsys.readouterr().err
    run(f"DELETE FROM {database}.fact WHERE id > 10")
    (sought,) = command(capsys, "seek", "Fact", "2026-05-01T10:00:00,10")
    assert (sought["last"], sought["generation"]) == ({"time_ms": 1777629600000, "id": 10}, 1)
    command(capsys, "run", "--once")
    assert run(f"SELECT (count(), uniqExact(id)) FROM {database}.fact") == "(15,15)"
    run("SYSTEM FLUSH LOGS query_log")
    (log,) = command(capsys, "log", "--topic", "Fact")
    assert sorted((row["rows"], row["repeated"]) for row in log["log"]) == [
        (5, False),
        (5, False),
        (10, False),
    ]


def make_fact(database: str, run) -> None:
    columns = "(id UInt64, pos DateTime64(3, 'UTC')) ENGINE = MergeTree ORDER BY (pos, id)"
    run(f"CREATE TABLE {database}.stage {columns}")
    run(f"CREATE TABLE {database}.fact {columns} SETTINGS non_replicated_deduplication_window = 1000")
    run(
        f"CREATE VIEW {database}.FactTransform AS SELECT id, pos FROM {database}.stage "
        "WHERE (pos, id) > ({last_time:DateTime64(3)}, {last_id:UInt64}) "
        "AND (pos, id) <= ({next_time:DateTime64(3)}, {next_id:UInt64})"
    )


def test_gaps_back_fills_and_late_rows_are_shown_and_ordered_by_commands(
    shop_folder, clickhouse_client, tmp_path, capsys
):
    database, run = shop_folder, clickhouse_client.command
    command(capsys, "init", "--yes")
    make_fact(database, run)
    run(f"INSERT INTO {database}.stage SELECT number, '2026-05-01 10:00:00.000' FROM numbers(0, 10)")
    run(f"INSERT INTO {database}.stage SELECT number, '2026-05-01 11:00:00.000' FROM numbers(0, 10)")
    command(capsys, "seek", "Fact", "2026-05-01T11:00:00")
    command(capsys, "run", "--once")
    (status,) = command(capsys, "status")
    (topic,) = status["topics"]
    assert ([gap["rows"] for gap in topic["gaps"]], topic["backfill"]) == ([10], None)
    assert run_command(["etl", "backfill", "Fact", "--every", "soon"]) == 2
    assert "--every: 'soon' is not a duration" in capsys.readouterr().err
    command(capsys, "backfill", "Fact", "--to", "2026-05-01T11:00:00", "--maxstep", "4")
    (status,) = command(capsys, "status")
    assert status["topics"][0]["backfill"]["rows_left"] == 10
    assert (status["topics"][0]["decision"], command(capsys, "plan")[0]["steps"][0]["rows"]) == (
        "backfill",
        4,
    )
    assert run_command(["etl", "status"]) == 0
    out = capsys.readouterr().out
    assert "Fact: gap after the start up to 2026-05-01 10:59:59.999" in out
    assert "0 rows done, 10 left" in out
    *_, end = command(capsys, "run", "--once")
    assert end["rows"] == {"Fact": 10}
    run(f"INSERT INTO {database}.stage SELECT 99, '2026-05-01 10:30:00.000'")
    command(capsys, "run", "--once")
    (status,) = command(capsys, "status")
    (topic,) = status["topics"]
    assert (topic["gaps"], topic["backfill"], topic["late_rows"]) == ([], None, 1)
    lineage = tmp_path / "lineage" / "shop.yaml"
    lineage.write_text(lineage.read_text().replace("depends_on", "late: repair, depends_on"))
    command(capsys, "run", "--once")
    assert run(f"SELECT (count(), uniqExact(pos, id)) FROM {database}.fact") == "(21,21)"
    (status,) = command(capsys, "status")
    assert (status["topics"][0]["late_rows"], status["topics"][0]["repaired_rows"]) == (0, 1)
    assert run_command(["etl", "backfill", "Fact", "--cancel"]) == 2
    assert "has no back-fill" in capsys.readouterr().err


@pytest.mark.parametrize(
    "offsets",
    [
        pytest.param("{store: catalog, catalog: 'sqlite:///offsets.db'}", id="catalog"),
        pytest.param("{store: keepermap, path: /DATABASE/Offsets}", id="keepermap"),
    ],
)
def test_the_other_stores_serve_the_same_commands(
    zookeeper, shop_folder, clickhouse_client, tmp_path, capsys, offsets
):
    database, run = shop_folder, clickhouse_client.command
    file = tmp_path / "etl.yaml"
    text = file.read_text().replace("{store: rocksdb}", offsets.replace("DATABASE", database))
    file.write_text(text)
    assert run_command(["etl", "status"]) == 2
    assert "`oncehouse etl init --yes` makes them" in capsys.readouterr().err
    command(capsys, "init", "--yes")
    columns = "(id UInt64, pos DateTime64(3, 'UTC')) ENGINE = MergeTree ORDER BY (pos, id)"
    run(f"CREATE TABLE {database}.stage {columns}")
    run(f"CREATE TABLE {database}.fact {columns} SETTINGS non_replicated_deduplication_window = 1000")
    run(
        f"CREATE VIEW {database}.FactTransform AS SELECT id, pos FROM {database}.stage "
        "WHERE (pos, id) > ({last_time:DateTime64(3)}, {last_id:UInt64}) "
        "AND (pos, id) <= ({next_time:DateTime64(3)}, {next_id:UInt64})"
    )
    run(f"INSERT INTO {database}.stage SELECT number, '2026-05-01 10:00:00.000' FROM numbers(1, 10)")
    assert command(capsys, "check")[0]["ok"]
    *_, end = command(capsys, "run", "--once")
    assert end["rows"] == {"Fact": 10}
    (status,) = command(capsys, "status")
    assert (status["topics"][0]["reason"], status["topics"][0]["last"]["id"]) == ("nothing new", 10)
    assert run(f"SELECT count() FROM {database}.fact") == 10


def test_rows_from_the_future_are_counted_and_errors_name_the_scheduler_s_own_check(
    shop_folder, clickhouse_client, capsys
):
    database, run = shop_folder, clickhouse_client.command
    command(capsys, "init", "--yes")
    run(f"CREATE TABLE {database}.stage (id UInt64, pos DateTime64(3)) ENGINE = MergeTree ORDER BY (pos, id)")
    run(f"INSERT INTO {database}.stage SELECT number, now64(3) + INTERVAL 2 DAY FROM numbers(3)")
    (status,) = command(capsys, "status")
    (topic,) = status["topics"]
    assert (topic["rows_ahead"], topic["reason"]) == (
        {f"{database}.stage": 3},
        f"no rows yet in {database}.stage",
    )
    assert run_command(["etl", "status"]) == 0
    assert "3 rows of" in capsys.readouterr().out
    run(f"DROP TABLE {database}.stage SYNC")
    assert run_command(["etl", "plan"]) != 0
    assert "run `oncehouse etl check`" in capsys.readouterr().err


def test_a_held_topic_is_named_and_unlocked(shop_folder, clickhouse_client, capsys):
    command(capsys, "init", "--yes")
    clickhouse_client.command(
        f"INSERT INTO {shop_folder}.OffsetsLocal (topic, hostid, run) VALUES ('Fact', 'elsewhere:1', now64(3))"
    )
    assert run_command(["etl", "seek", "Fact", "start"]) == 4
    assert "worked on by elsewhere:1" in capsys.readouterr().err
    (row,) = command(capsys, "unlock", "Fact")
    assert row["hostid"] == ""
    command(capsys, "seek", "Fact", "start")


def test_a_topic_or_position_that_is_none_is_told_with_what_was_meant(shop_folder, capsys):
    assert run_command(["etl", "pause", "fakt"]) == 2
    assert 'did you mean "Fact"?' in capsys.readouterr().err
    assert run_command(["etl", "seek", "Fact", "yesterday"]) == 2
    assert "is no position; write start" in capsys.readouterr().err


def test_the_graph_is_drawn_to_a_file(shop_folder, tmp_path, capsys):
    assert run_command(["etl", "graph", "--svg", "lineage.svg"]) == 0
    assert "└── Stage" in capsys.readouterr().out
    assert (tmp_path / "lineage.svg").read_text().startswith("<svg")
