"""The ready ClickHouse handler on a real server: one block a batch, repeats add nothing, errors sorted."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from handler_tables import WINDOW, Batch, HandlerTables, as_table, lose_answer
from oncehouse.clickhouse.insert import repeatable_block
from oncehouse.errors import ConfigurationError, OncehouseError, PermanentError, TransientError
from oncehouse.messaging import clickhouse_handler
from oncehouse.messaging.clickhouse_handler import ClickHouseHandler, classify_error
from oncehouse.messaging.consumer import Consumer, MemoryBroker
from oncehouse.messaging.retries.retry_topics import DeadLetterTopic


def as_chunks(batch):
    table = as_table(batch)
    return pa.concat_tables([table.slice(0, 1), table.slice(1)])


def as_objects(batch):
    return [{"id": value, "name": f"n{value}"} for value in batch.values]


def as_lines(batch):
    return b"\n".join(json.dumps(row).encode() for row in as_objects(batch))


@pytest.fixture
def setup(clickhouse, clickhouse_client, database):
    return HandlerTables(server=clickhouse, client=clickhouse_client, database=database)


@pytest.mark.parametrize("rows", [as_table, as_chunks, as_objects, as_lines])
def test_a_batch_is_one_block_and_a_repeat_adds_nothing_in_the_table_and_its_views(setup, rows):
    setup.create()
    setup.run(
        "CREATE TABLE {database}.sums (total UInt64, rows UInt64) ENGINE = SummingMergeTree ORDER BY tuple() "
        + WINDOW
    )
    setup.run(
        "CREATE MATERIALIZED VIEW {database}.summed TO {database}.sums AS "
        "SELECT sum(id) AS total, count() AS rows FROM {database}.events"
    )
    setup.run("SYSTEM STOP MERGES {database}.events")
    handler = setup.handler(rows)
    many = Batch("events/0/0-19999", tuple(range(20_000)))
    for _ in range(3):
        handler(many)
    for token in ("events/0/100000-100001", "events/0/100002-100003"):
        handler(Batch(token, (1, 2)))  # the same rows, but another batch
    assert setup.count() == 20_004
    assert setup.ask("SELECT sum(total), sum(rows) FROM {database}.sums") == [(199_990_006, 20_004)]
    parts = "SELECT count() FROM system.parts WHERE database = '{database}' AND table = 'events' AND active"
    assert setup.ask(parts) == [(3,)]


@pytest.mark.parametrize(("defect", "rows"), [("no token", 2), ("no memory", 6)])
def test_seeded_defects_of_the_token_are_found(setup, monkeypatch, defect, rows):
    """Without a token equal rows of two batches count as one; without memory a repeat is taken twice."""
    setup.create()
    asked = repeatable_block.repeatable_settings
    changes = {
        "no token": {"insert_deduplication_token": ""},
        "no memory": {"insert_deduplicate": 0, "deduplicate_insert": "disable"},
    }
    monkeypatch.setattr(
        clickhouse_handler, "repeatable_settings", lambda *call: {**asked(*call), **changes[defect]}
    )
    for token in ("events/0/0-1", "events/0/0-1", "events/0/2-3"):
        setup.handler()(Batch(token, (1, 2)))
    assert setup.count() == rows  # it should be 4


def test_no_rows_are_no_insert(setup):
    setup.create()
    for rows in (lambda _: [], lambda _: b" \n", lambda _: pa.table({"id": pa.array([], pa.int64())})):
        setup.handler(rows)(Batch("events/0/0-0"))
    assert setup.count() == 0


def test_objects_may_hold_times_decimals_ids_and_bytes(setup):
    setup.create("at DateTime64(3, 'UTC'), price Decimal(9, 2), id UUID, raw String", order="ORDER BY at")
    row = {
        "at": datetime(2026, 11, 15, 12, tzinfo=UTC),
        "price": Decimal("1.50"),
        "id": uuid.UUID(int=7),
        "raw": b"\xff\x00",
    }
    setup.handler(lambda _: [row])(Batch("t/0/0-0"))
    found = setup.ask("SELECT toString(at), toString(price), toString(id), hex(raw) FROM {database}.events")
    assert found == [("2026-11-15 12:00:00.000", "1.5", "00000000-0000-0000-0000-000000000007", "FF00")]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ([], "events does not exist"),
        (["events Log"], "the engine Log takes a repeated batch twice"),
        (
            ["events MergeTree"],
            "remembers no blocks at all.*ALTER TABLE.*non_replicated_deduplication_window",
        ),
        (
            [f"events MergeTree {WINDOW}", "views MergeTree"],
            "materialized view .*doubles the rows of the view",
        ),
    ],
)
def test_a_table_that_would_take_a_repeat_twice_is_refused_before_the_first_insert(setup, made, said):
    for one in made:
        name, engine, *settings = one.split(" ", 2)
        order = "" if engine == "Log" else "ORDER BY id"
        setup.run(
            f"CREATE TABLE {{database}}.{name} (id UInt64, name String) ENGINE = {engine} {order} {' '.join(settings)}"
        )
    if len(made) > 1:
        setup.run(
            "CREATE MATERIALIZED VIEW {database}.copy TO {database}.views AS SELECT * FROM {database}.events"
        )
    with pytest.raises(ConfigurationError, match=f"(?s){said}"):
        setup.handler()(Batch("events/0/0-0", (1,)))
    assert made == [] or setup.count() == 0


@pytest.mark.parametrize(
    ("rows", "kind", "said"),
    [
        (lambda _: [{"id": "seven", "name": "x"}], PermanentError, "batch t/0/0-0"),
        (lambda _: [{"id": 1, "nmae": "x"}], PermanentError, "nmae"),
        (lambda _: pa.table({"id": [None], "name": ["x"]}), PermanentError, "batch t/0/0-0"),
        (lambda _: pa.table({"id": [1], "nmae": ["x"]}), ConfigurationError, "nmae"),
    ],
    ids=["bad value", "unknown field of one object", "null", "unknown column of all"],
)
def test_rows_at_fault_are_told_from_a_table_that_no_batch_fits(setup, rows, kind, said):
    setup.create()
    with pytest.raises(OncehouseError, match=said) as caught:
        setup.handler(rows)(Batch("t/0/0-0"))
    assert type(caught.value) is kind
    assert "oncehouse check" not in str(caught.value), "there is no pipeline file to check"
    assert setup.count() == 0


def test_a_table_that_is_gone_stops_and_too_many_parts_are_waited_out(setup):
    setup.create(
        settings=WINDOW + ", parts_to_throw_insert = 2, parts_to_delay_insert = 1, max_delay_to_insert = 1"
    )
    setup.run("SYSTEM STOP MERGES {database}.events")
    handler = setup.handler()
    for at in range(2):
        handler(Batch(f"t/0/{at}-{at}", (at,)))
    with pytest.raises(TransientError, match="Too many parts"):
        handler(Batch("t/0/3-3", (3,)))
    setup.run("DROP TABLE {database}.events SYNC")
    with pytest.raises(ConfigurationError, match=r"t/0/9-9.*events"):
        handler(Batch("t/0/9-9", (9,)))


def test_a_server_that_is_away_is_a_passing_failure(setup):
    with pytest.raises(TransientError, match="and that url names its HTTP port"):
        setup.handler(url="http://127.0.0.1:1")(Batch("t/0/0-0", (1,)))


def test_what_the_rows_function_raises_is_left_as_it_is(setup):
    setup.create()
    with pytest.raises(ZeroDivisionError):
        setup.handler(lambda _: 1 / 0)(Batch("t/0/0-0"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": "ftp://x"}, "url: .* is not an HTTP address"),
        ({"insert_timeout": "soon"}, "insert_timeout: 'soon' is not a duration"),
        ({"retry_horizon": "soon"}, "retry_horizon: 'soon' is not a duration"),
        ({"inserts_per_second": 0}, "inserts_per_second must be a number that is more than 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, said):
    with pytest.raises(ConfigurationError, match=said):
        ClickHouseHandler(**{"url": "http://127.0.0.1:8123", "table": "t", "rows": as_table, **options})


@pytest.mark.parametrize(
    ("target", "select"),
    [
        ("id UInt64, number Int32", "SELECT id, toInt32(name) AS number"),
        ("id UInt64, CONSTRAINT few CHECK id < 15", "SELECT id"),
    ],
    ids=["its query fails", "its target refuses"],
)
def test_a_view_that_refuses_a_row_stops_the_partition_and_doubles_nothing(setup, caplog, target, select):
    setup.create()
    setup.run(f"CREATE TABLE {{database}}.copy ({target}) ENGINE = MergeTree ORDER BY id {WINDOW}")
    setup.run(
        f"CREATE MATERIALIZED VIEW {{database}}.view TO {{database}}.copy AS {select} FROM {{database}}.events"
    )
    broker = MemoryBroker({"t": 1})
    consumer = Consumer(group="g", broker=broker)
    rows = setup.handler(lambda batch: [json.loads(value) for value in batch.values])
    consumer.batch("t", retries=DeadLetterTopic())(rows)
    for number in range(20):
        name = "bad" if number == 7 else str(number)
        broker.send("t", json.dumps({"id": number, "name": name}).encode())
    consumer.run_until_idle(for_seconds=30)
    assert "let the view take them, or drop it" in caplog.text
    setup.run("DROP VIEW {database}.view SYNC")
    consumer.run_until_idle()
    assert setup.ask("SELECT count(), uniqExact(id) FROM {database}.events") == [(20, 20)]
    assert broker.messages("t.dlq") == []
    assert broker.committed("g", "t") == 20


def test_two_groups_that_write_to_one_table_take_nothing_from_each_other(setup):
    setup.create()
    broker = MemoryBroker({"t": 1})
    for number in range(20):
        broker.send("t", json.dumps({"id": number, "name": "n"}).encode())
    for group in ("a", "b"):
        consumer = Consumer(group=group, broker=broker)
        consumer.batch("t")(setup.handler(lambda batch: [json.loads(value) for value in batch.values]))
        consumer.run_until_idle(for_seconds=30)
    assert setup.ask("SELECT count(), uniqExact(id) FROM {database}.events") == [(40, 20)]


@pytest.mark.parametrize("options", [{}, {"insert_sessions": False}], ids=["sessions", "none"])
def test_a_batch_is_not_sent_again_when_others_may_have_pushed_its_token_out(setup, options):
    with lose_answer(setup, 1_001, **options) as handler:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=r"100\d since.*Otherwise delete none"):
                handler(Batch("events/0/0-1", (1, 2)))
        assert setup.count() == 1_003
        handler(Batch("events/0/2-3", (3, 4)))
        assert setup.count() == 1_005


def test_a_batch_is_sent_again_while_the_table_remembers_it(setup):
    with lose_answer(setup, 2) as handler:
        handler(Batch("events/0/0-1", (1, 2)))
        assert setup.count() == 4
        setup.insert_as_others(1_001)
        # The outcome is known now: the same batch is one that was given out again, and counts from here.
        handler(Batch("events/0/2-3", (3, 4)))
        assert setup.count() == 1_007


def test_a_batch_is_not_sent_again_when_the_target_of_a_view_may_have_forgotten_it(setup):
    with lose_answer(setup, 2, view=True) as handler:
        setup.run("ALTER TABLE {database}.seen MODIFY SETTING non_replicated_deduplication_window = 0")
        with pytest.raises(
            ConfigurationError, match=r"seen, to which a materialized view.*Otherwise delete none"
        ):
            handler(Batch("events/0/0-1", (1, 2)))
        assert setup.count("seen") == setup.count() == 4


def test_a_batch_is_sent_again_while_the_targets_of_views_remember_it(setup):
    with lose_answer(setup, 2, view=True) as handler:
        handler(Batch("events/0/0-1", (1, 2)))
        assert setup.count("seen") == setup.count() == 4


def test_after_a_failure_that_nobody_has_listed_no_batch_is_taken_apart():
    from clickhouse_connect.driver.exceptions import DatabaseError

    error = PermanentError("?")
    error.__cause__ = DatabaseError("Code: 99999. DB::Exception: new")
    assert type(classify_error(error, "t")) is ConfigurationError
