"""The pure parts of model sync: keys, engines, blocks, settings, declarations, the table's plan."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.clickhouse.table_info import Column, TableFacts
from oncehouse.column_types.parser import parse_type
from oncehouse.column_types.types import clickhouse_name
from oncehouse.errors import ConfigurationError, PermanentError
from oncehouse.sync.changes.change import (
    ListedOperations,
    Operation,
    OperationKind,
    distinct_keys,
    format_key,
    list_ids,
    read_key,
)
from oncehouse.sync.changes.sql_storage import OutboxStorage
from oncehouse.sync.changes.storage_factory import choose_storage
from oncehouse.sync.model.arrow_rows import default_value, make_block
from oncehouse.sync.model.declaration import Declaration, ModelSource, declare
from oncehouse.sync.model.engines import Append, Collapsing, KeyReading, Replacing, VersionedCollapsing
from oncehouse.sync.settings import SyncSettings, clickhouse_config, read_settings
from oncehouse.sync.table.ddl import TablePlan, apply_plan, compare_table, create_table_ddl

SOURCE = ModelSource(
    label="shop.User",
    table="shop_user",
    columns={"id": "Int64", "name": "String", "born": "Nullable(Date32)"},
    key=("id",),
)


def declared(
    source: ModelSource = SOURCE, *, engine=None, settings: SyncSettings | None = None, **own
) -> Declaration:
    return declare(
        name="UserSync",
        source=source,
        engine=engine or Replacing(),
        own=own,
        settings=settings or SyncSettings(),
    )


@given(st.lists(st.integers() | st.text(), min_size=1, max_size=3))
def test_a_key_reads_back_as_it_was_spelled(values):
    assert read_key(format_key(values)) == tuple(values)


def test_keys_of_other_types_are_spelled_and_what_is_no_key_is_refused():
    one = uuid.UUID(int=1)
    assert read_key(format_key([one, date(2020, 1, 2), Decimal("1.50"), b"\x00\xff"])) == (
        str(one),
        "2020-01-02",
        "1.50",
        "00ff",
    )
    for value in (None, True, 1.5, object()):
        with pytest.raises(ConfigurationError, match="key of a synced row"):
            format_key([value])


def test_each_key_is_read_once():
    operations = [Operation(id=str(n), key=key, kind=OperationKind.UPDATE) for n, key in enumerate("abac")]
    assert distinct_keys(operations) == ["a", "b", "c"]


def test_operations_listed_as_columns_are_the_operations():
    listed = ListedOperations(["7", "8", "9"], ["a", "b", "a"], ["insert", "update", "delete"])
    operations = [
        Operation("7", "a", OperationKind.INSERT),
        Operation("8", "b", OperationKind.UPDATE),
        Operation("9", "a", OperationKind.DELETE),
    ]
    assert list(listed) == operations
    assert list(listed[1:]) == operations[1:]
    assert listed[-1] == operations[-1]
    assert distinct_keys(listed) == distinct_keys(operations)
    assert list_ids(listed) == list_ids(operations)


READING = KeyReading(
    number=7,
    present={"[1]": (1, "new"), "[2]": (2, "same"), "[4]": (4, "first")},
    absent={"[3]": (3, ""), "[5]": (5, "")},
    existing={"[1]": (1, "old"), "[2]": (2, "same"), "[3]": (3, "gone")},
)


def test_replacing_sends_every_key_with_the_number_of_the_reading():
    chosen = Replacing().choose_rows(READING)
    assert chosen.rows == [(1, "new"), (2, "same"), (4, "first"), (3, ""), (5, "")]
    assert chosen.own == {"_version": [7] * 5, "_deleted": [0, 0, 0, 1, 1]}


def test_collapsing_cancels_what_the_table_holds_and_leaves_alone_what_is_the_same():
    chosen = Collapsing().choose_rows(READING)
    assert list(zip(chosen.rows, chosen.own["_sign"], strict=True)) == [
        ((1, "old"), -1),
        ((1, "new"), 1),
        ((4, "first"), 1),
        ((3, "gone"), -1),
    ]


def test_versioned_collapsing_cancels_under_the_version_that_the_table_holds():
    existing = {key: (*row, 5) for key, row in READING.existing.items()}
    chosen = VersionedCollapsing().choose_rows(
        KeyReading(number=7, present=READING.present, absent=READING.absent, existing=existing)
    )
    assert chosen.own == {"_sign": [-1, 1, 1, -1], "_version": [5, 7, 7, 5]}


def test_append_tells_of_deletions_only_where_it_has_a_column_for_them():
    assert Append().choose_rows(READING).own["_deleted"] == [0, 0, 0, 1, 1]
    plain = Append(version=None, deleted=None).choose_rows(READING)
    assert (len(plain.rows), plain.own) == (3, {})


_TYPES = {
    "Int64": 2**62,
    "UInt8": 255,
    "Int256": -(2**200),
    "Float64": 0.1,
    "Bool": True,
    "String": "ü",
    "Nullable(String)": None,
    "LowCardinality(String)": "x",
    "FixedString(4)": b"ab",
    "UUID": uuid.UUID(int=5),
    "Date32": date(1900, 1, 1),
    "DateTime": datetime(2020, 1, 1, tzinfo=UTC),
    "DateTime64(6, 'Europe/Berlin')": datetime(2020, 1, 1, 5),  # noqa: DTZ001 - naive on purpose
    "Decimal(10, 2)": Decimal("1.5"),
    "Array(UUID)": [uuid.UUID(int=5)],
    "Array(String)": ["a", b"b"],
    "Map(String, Int64)": {"a": 1},
}


def test_values_of_every_type_and_their_defaults_become_a_block():
    types = {str(n): parse_type(name) for n, name in enumerate(_TYPES)}
    block = make_block(
        types,
        [[value, default_value(type_)] for value, type_ in zip(_TYPES.values(), types.values(), strict=True)],
    )
    assert (block.num_rows, block.num_columns) == (2, len(_TYPES))
    naive = block.column(list(_TYPES).index("DateTime64(6, 'Europe/Berlin')"))[0].as_py()
    assert naive.astimezone(UTC).hour == 4


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("UInt8", 256),
        ("Int64", "x"),
        ("Int64", 1.5),
        ("FixedString(2)", "abc"),
        ("UUID", "no"),
        ("Decimal(4, 2)", Decimal("1.234")),
        ("DateTime", datetime(1969, 1, 1, tzinfo=UTC)),
        ("Date32", "2020-01-01"),
        ("String", None),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_column(type_, value):
    with pytest.raises(PermanentError, match="column 'age'"):
        make_block({"age": parse_type(type_)}, [[value]])


def test_strings_take_bytes_objects_and_numbers():
    block = make_block(
        {"a": parse_type("String")}, [["t", b"\xff", {"x": 1}, Decimal("1.0"), date(2020, 1, 2)]]
    )
    assert block.column(0).to_pylist() == [b"t", b"\xff", b'{"x": 1}', b"1.0", b"2020-01-02"]


def test_the_class_stands_over_the_settings_and_these_over_the_defaults():
    settings = read_settings(
        {
            "CLICKHOUSE_SYNC_BATCH_SIZE": 500,
            "CLICKHOUSE_SYNC_DELAY": 2,
            "CLICKHOUSE_CELERY_QUEUE": "slow",
            "CLICKHOUSE_OTHER": 1,
        }
    )
    one = declared(settings=settings, batch_size=7, queue=None)
    assert (one.batch_size, one.delay_seconds, one.queue, one.lease_seconds) == (7, 2, "slow", 30.0)
    assert declared().batch_size == 10_000


@pytest.mark.parametrize(
    "given",
    [{"CLICKHOUSE_SYNC_BATCH_SIZE": 0}, {"CLICKHOUSE_SYNC_DELAY": -1}, {"CLICKHOUSE_SYNC_LEASE": 0.1}],
)
def test_settings_that_make_no_sense_are_refused_by_their_name(given):
    with pytest.raises(ConfigurationError, match=next(iter(given))):
        read_settings(given)


def test_the_address_of_clickhouse_is_given_in_known_words():
    settings = SyncSettings(
        databases={
            "default": {"db_url": "http://host:8123/", "db_name": "shop", "username": "u", "password": "p"},
            "bad": {"db_urls": ""},
            "worse": {"db_url": "ftp://x"},
        }
    )
    assert clickhouse_config(settings, "default").url == "http://host:8123/shop"
    for alias, told in (("bad", "db_urls"), ("worse", "HTTP"), ("none", "there is no ClickHouse database")):
        with pytest.raises(ConfigurationError, match=told):
            clickhouse_config(settings, alias)


def test_a_storage_is_named_in_several_ways_and_what_is_none_is_refused():
    settings = SyncSettings()
    storage = OutboxStorage()
    assert choose_storage(storage, settings) is storage
    for chosen in ("outbox", OutboxStorage, "oncehouse.sync.changes.sql_storage.OutboxStorage"):
        assert isinstance(choose_storage(chosen, settings), OutboxStorage)
    for chosen, told in (
        ("no.such.Thing", "cannot be imported"),
        (dict, "no method"),
        ("redis", "REDIS_CONFIG"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            choose_storage(chosen, settings)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"key": ("uid",)}, "'uid' is not among its columns"),
        ({"columns": {"id": "Nullable(Int64)"}}, "may not be Nullable"),
        ({"columns": {"id": "Int64", "_version": "Int8"}}, "which the engine wants for itself"),
        ({"columns": {"id": "Intt64"}}, "column 'id'"),
    ],
)
def test_a_source_that_cannot_be_synced_is_refused(changed, told):
    with pytest.raises(ConfigurationError, match=told):
        declared(ModelSource(**{**vars(SOURCE), **changed}))


def test_replacing_by_another_sorting_key_than_the_models_is_refused():
    with pytest.raises(ConfigurationError, match="stand next to its older self"):
        declared(engine=Replacing(order_by=("born",)))
    assert declared(engine=Collapsing(order_by=("name",))).engine.sorting_key(("id",)) == ("name", "id")
    with pytest.raises(ConfigurationError, match="no column of the table"):
        declared(engine=Collapsing(order_by=("nobody",)))


def test_a_deleted_row_has_its_key_and_defaults():
    assert declared().deleted_row((5,)) == (5, "", None)


def test_the_table_of_each_engine():
    text = create_table_ddl(declared(table="shop.users"))
    assert text.startswith("CREATE TABLE `shop`.`users`\n(\n    `id` Int64,\n")
    assert "ENGINE = ReplacingMergeTree(`_version`, `_deleted`)\nORDER BY (`id`)" in text
    text = create_table_ddl(
        declared(engine=Collapsing(partition_by="toYYYYMM(born)", replicated="'/a', '{replica}'"))
    )
    assert "ReplicatedCollapsingMergeTree('/a', '{replica}', `_sign`)\nPARTITION BY toYYYYMM(born)" in text
    assert "replicated_deduplication_window_seconds" in text


def facts(one: Declaration, **changed) -> TableFacts:
    columns = {name: clickhouse_name(type_) for name, type_ in one.all_columns.items()} | changed.pop(
        "columns", {}
    )
    return TableFacts(
        **{
            "database": "d",
            "table": "t",
            "uuid": "",
            "engine": one.engine.family,
            "columns": tuple(Column(name=n, type=t, default_kind="") for n, t in columns.items() if t),
            "partition_key": "",
            "sorting_key": "id",
            "window_blocks": 1000,
            "window_seconds": None,
            "expires_rows": False,
            "views": (),
            **changed,
        }
    )


def test_a_table_that_fits_needs_nothing():
    assert compare_table(facts(declared()), declared()).is_empty


def test_missing_columns_are_added_types_widened_and_what_could_change_values_is_set_apart():
    plan = compare_table(
        facts(declared(), columns={"born": "", "id": "Int32", "name": "Nullable(String)", "more": "Int8"}),
        declared(),
    )
    assert [line.split("`")[-2] for line in plan.statements] == ["id", "born"]
    assert plan.risky == ()
    assert len(plan.notes) == 2
    narrow = compare_table(facts(declared(), columns={"id": "String"}), declared())
    assert len(narrow.risky) == 1


@pytest.mark.parametrize(
    ("engine", "changed", "told"),
    [
        (Replacing(), {"engine": "MergeTree"}, "its engine is MergeTree"),
        (Replacing(), {"sorting_key": "born"}, "sorted by"),
        (Append(), {"window_blocks": 0}, "remembers no tokens"),
    ],
)
def test_what_no_statement_can_mend_is_told(engine, changed, told):
    one = declared(engine=engine)
    plan = compare_table(facts(one, **changed), one)
    assert told in plan.problems[0]
    with pytest.raises(ConfigurationError, match=told):
        apply_plan(None, plan)


def test_what_could_change_values_runs_only_when_somebody_insists():
    with pytest.raises(ConfigurationError, match="--risky"):
        apply_plan(None, TablePlan(table="t", risky=("ALTER",)))
