"""What the scheduler keeps in ClickHouse beside its offsets: the log of each block, and the lineage."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncehouse.clickhouse.client import Client, connect
from oncehouse.clickhouse.preflight.check import Level
from oncehouse.config.pipeline import ClickHouse
from oncehouse.errors import ConfigurationError
from oncehouse.etl.lineage.graph import compare_lineage
from oncehouse.etl.lineage.table import as_stored, read_lineage, write_lineage
from oncehouse.etl.lineage.topic import Expectation, ExpectationKind, Otherwise, Template, Topic
from oncehouse.etl.preflight.lineage_check import inspect_lineage
from oncehouse.etl.step_log import LogRow, log_ddl, plan_log_view, read_log


@pytest.fixture
def client(clickhouse, database) -> Client:
    return connect(ClickHouse(url=f"{clickhouse.url}/{database}"))


@pytest.fixture
def fact(client, database) -> Topic:
    client.command(
        "CREATE TABLE paid (id UInt64, pos DateTime64(3), `o'dd` Nullable(String), sum Nullable(Float64)) "
        "ENGINE = MergeTree ORDER BY (pos, id) SETTINGS non_replicated_deduplication_window = 1000"
    )
    return Topic(topic="Paid", dst=f"{database}.paid", depends_on=(f"{database}.orders",))


def insert(client: Client, *, token: str, rows: int) -> None:
    client.command(
        "INSERT INTO paid SELECT 100 + number, toDateTime64('2026-01-02 03:04:05.678', 3) + number, "
        "if(number = 0, NULL, 'x'), 1 FROM numbers({rows:UInt32})",
        {"rows": rows},
        {"insert_deduplication_token": token},
    )


def start_log(client: Client, database: str, fact: Topic) -> None:
    statements = [*log_ddl(database), plan_log_view(client, database, fact, id_column=None, time_column=None)]
    for statement in [*statements, *statements]:  # made twice: what exists is kept
        client.command(statement)


def logged(client: Client, database: str, topic: str | None = None) -> tuple[LogRow, ...]:
    client.command("SYSTEM FLUSH LOGS query_log")
    return read_log(client, database, topic=topic, limit=10)


def test_a_block_is_logged_with_what_it_held_and_what_it_cost(client, database, fact):
    start_log(client, database, fact)
    insert(client, token="a", rows=5)
    (row,) = logged(client, database)
    assert (row.topic, row.rows, row.max_id, row.nulls, row.repeated) == ("Paid", 5, 104, {"o'dd": 1}, False)
    assert (row.min_ts, row.max_ts) == ("2026-01-02 03:04:05.678", "2026-01-02 03:04:09.678")
    assert row.max_lag_seconds > 0
    assert row.read_rows >= 5  # the views of the table read the block too
    assert row.memory_bytes > 0


def test_a_block_that_was_dropped_as_a_repeat_is_told_apart(client, database, fact):
    start_log(client, database, fact)
    insert(client, token="a", rows=5)
    insert(client, token="a", rows=5)
    assert client.query("SELECT count() FROM paid") == [(5,)]
    assert sorted(row.repeated for row in logged(client, database)) == [False, True]


def test_a_topic_is_chosen_and_a_query_without_a_trace_is_still_shown(client, database, fact):
    start_log(client, database, fact)
    client.command("INSERT INTO Log (topic, rows, query_id) VALUES ('Other', 7, 'no such query')")
    insert(client, token="a", rows=5)
    assert [row.topic for row in logged(client, database, "Paid")] == ["Paid"]
    (other,) = logged(client, database, "Other")
    assert (other.rows, other.memory_bytes, other.duration_ms) == (7, 0, 0)


def test_a_table_without_id_or_time_is_logged_by_its_rows(client, database):
    client.command("CREATE TABLE paid (name String) ENGINE = MergeTree ORDER BY name")
    start_log(client, database, Topic(topic="Names", dst=f"{database}.paid", depends_on=("x.y",)))
    client.command("INSERT INTO paid VALUES ('a'), ('b')")
    (row,) = logged(client, database)
    assert (row.rows, row.max_id, row.nulls) == (2, 0, {})


def test_a_column_that_does_not_fit_the_log_is_refused(client, database, fact):
    with pytest.raises(ConfigurationError, match="no column 'sum' of a type that fits; such are: id"):
        plan_log_view(client, database, fact, id_column="sum", time_column=None)


def test_the_lineage_survives_the_table_and_differences_are_found(client, database, tmp_path):
    lineage = (
        Topic(topic="Orders", dst="s.orders", comment="it's `odd`\n\t€"),
        Topic(
            topic="Paid",
            dst="d.paid",
            depends_on=("s.orders",),
            template=Template.RANGE,
            transform=str(tmp_path / "sql" / "paid.sql"),
            delay_seconds=0.5,
            repeat_seconds=60,
            maxstep_rows=2**40,
            before=("SELECT 1", "SELECT ';'"),
            after=("SELECT 2",),
            range_column="day",
            gate_share=0.75,
            expect=(
                Expectation(
                    check=ExpectationKind.VALUE, columns=("it's`",), at_least="a'\\", otherwise=Otherwise.WARN
                ),
                Expectation(check=ExpectationKind.UNIQUE, columns=("a", "b")),
            ),
            template_file=str(tmp_path / "own.sql.j2"),
            parameters=(("word", "it's\n"), ("many", (1, 2)), ("share", 0.5), ("fine", True)),
        ),
    )
    stored = as_stored(lineage, tmp_path)
    assert stored[1].transform == "sql/paid.sql"
    assert read_lineage(client, database) is None
    write_lineage(client, database, stored)
    write_lineage(client, database, stored)
    assert read_lineage(client, database) == stored
    write_lineage(client, database, stored[:1])
    kept = read_lineage(client, database)
    assert [change.kind for change in compare_lineage(stored, kept or ())] == ["added"]
    assert as_stored(lineage, Path("/elsewhere")) == lineage


ORDERS = "id UInt64, pos DateTime64(3)"


@pytest.fixture
def sound(client, database, fact) -> Topic:
    """A topic that nothing stands in the way of."""
    client.command(f"CREATE TABLE orders ({ORDERS}) ENGINE = MergeTree ORDER BY (pos, id)")
    client.command("CREATE VIEW PaidTransform AS SELECT id, pos FROM orders")
    return fact


def findings(client: Client, database: str, *topics: Topic) -> list[tuple[str, str]]:
    return [(found.what, found.advice) for found in inspect_lineage(client, topics, database)]


def test_a_sound_topic_has_no_findings(client, database, sound):
    source = Topic(topic="Orders", dst=f"{database}.orders")
    assert findings(client, database, source, sound) == []


@pytest.mark.parametrize(
    ("change", "what", "advice"),
    [
        ("DROP TABLE paid", "the table {}.paid does not exist", "create it"),
        ("DROP VIEW PaidTransform", "the transform view {}.PaidTransform does not exist", "CREATE VIEW"),
        (
            "CREATE OR REPLACE VIEW PaidTransform AS SELECT id, pos, 1 AS summ FROM orders",
            "PaidTransform yields the column summ, which {}.paid does not have",
            'did you mean "sum"?',
        ),
        (
            "ALTER TABLE paid MODIFY SETTING non_replicated_deduplication_window = 5",
            "remembers 5 blocks",
            "MODIFY SETTING non_replicated_deduplication_window = 1000;",
        ),
    ],
)
def test_what_stands_in_the_way_is_told_with_what_to_do(client, database, sound, change, what, advice):
    client.command(change)
    ((told, advised),) = findings(client, database, sound)
    assert what.format(database) in told
    assert advice in advised


@pytest.mark.parametrize(
    ("columns", "order", "what"),
    [
        ("id UInt64, p DateTime64(3)", "id", ["has no column pos"]),
        ("pos DateTime64(3)", "pos", ["has no column id"]),
        ("id String, pos DateTime", "(pos, id)", ["pos is DateTime", "id is String, no whole number"]),
        (
            "id UInt64, pos DateTime64(3), position UInt8",
            "(position, pos)",
            ["is sorted by position, pos; every step"],
        ),
        ("id UInt64, pos DateTime64(3)", "(toDate(pos), id)", []),
        ("id UInt64, pos DateTime64(3), INDEX p pos TYPE minmax", "id", []),
    ],
)
def test_a_main_source_must_find_a_range_of_positions(client, database, fact, columns, order, what):
    client.command(f"CREATE TABLE orders ({columns}) ENGINE = MergeTree ORDER BY {order}")
    client.command("CREATE VIEW PaidTransform AS SELECT 1 AS id")
    found = inspect_lineage(client, [fact], database)
    assert len(found) == len(what)
    assert all(part in finding.what for part, finding in zip(what, found, strict=True))


def test_the_advice_for_a_missing_position_can_be_run_as_it_is(client, database, fact):
    client.command("CREATE TABLE orders (name String) ENGINE = MergeTree ORDER BY name")
    client.command("CREATE VIEW PaidTransform AS SELECT 1 AS id")
    for _ in range(2):  # the order by pos is asked for once there is a pos
        for finding in inspect_lineage(client, [fact], database):
            if finding.level is Level.ERROR:
                for part in finding.advice.replace(", and then", ";").replace(", or ", "; ").split(";"):
                    if part.strip().startswith("ALTER TABLE"):
                        client.command(part)
    assert findings(client, database, fact) == []


def test_a_range_needs_partitions_of_its_column(client, database, sound):
    ranged = Topic(
        topic="Paid",
        dst=sound.dst,
        depends_on=sound.depends_on,
        template=Template.RANGE,
        range_column="pos",
    )
    ((told, advised),) = findings(client, database, ranged)
    assert told.endswith("has no partitions; a range replaces whole partitions")
    assert "PARTITION BY toDate(pos)" in advised
