"""The pipeline file of a sync that CDC feeds, and which columns of a database may be fed so."""

from __future__ import annotations

import pytest
import yaml

from hostile_names import QUOTABLE, REFUSED
from oncehouse.clickhouse.preflight.check import check_facts
from oncehouse.clickhouse.preflight.finding import Level
from oncehouse.clickhouse.preflight.requirements import needs_of
from oncehouse.clickhouse.table_info import Column as TableColumn
from oncehouse.clickhouse.table_info import TableFacts
from oncehouse.column_types.parser import parse_type
from oncehouse.column_types.types import clickhouse_name
from oncehouse.config.file_loader import load_pipeline
from oncehouse.config.pipeline import Pipeline
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.cdc.column_types import PostgresColumn
from oncehouse.sync.cdc.pipeline_files import VERSIONS_ABOVE, TopicAddress, check_column_name, write_pipeline
from oncehouse.sync.cdc.wal_types import explain_mismatch
from oncehouse.sync.changes.storage_factory import choose_storage
from oncehouse.sync.model.declaration import Declaration, ModelSource, declare
from oncehouse.sync.model.engines import Replacing
from oncehouse.sync.settings import SyncSettings, clickhouse_config, read_settings
from oncehouse.sync.table.ddl import apply_plan, compare_table, create_table_ddl

ENGINE = Replacing(version="sync_version", deleted="gone", partition_by="toYYYYMM(born)")
BROKERS = TopicAddress(bootstrap_servers="localhost:9092", topic="shop.public.users")
ADDRESS = {"db_url": "http://clickhouse:8123", "db_name": "shop", "username": "sync", "password": "secret"}


def declared(columns=None, *, name="UserSync", engine=ENGINE, storage="cdc") -> Declaration:
    types = columns or {"id": "Int64", "name": "String", "born": "Nullable(Date32)"}
    return declare(
        name=name,
        source=ModelSource(label="shop.User", table="users", columns=types, key=("id",)),
        engine=engine,
        own={"storage": storage},
        settings=SyncSettings(),
    )


def load(folder, made: Declaration, columns, monkeypatch, engine=ENGINE) -> Pipeline:
    monkeypatch.setenv("CLICKHOUSE_PASSWORD", "secret")
    address = clickhouse_config(SyncSettings(databases={"default": ADDRESS}), "default")
    text = write_pipeline(made, engine, columns=columns, brokers=BROKERS, clickhouse=address)
    assert "secret" not in text
    file = folder / "users.yaml"
    file.write_text(text, encoding="utf-8")
    return load_pipeline(file)


def facts_of(made: Declaration, **changes) -> TableFacts:
    """What ClickHouse would say of the table that `sync plan` shows."""
    columns = tuple(
        TableColumn(name=name, type=clickhouse_name(type_), default_kind="")
        for name, type_ in made.all_columns.items()
    )
    known = {
        "database": "shop",
        "table": "users",
        "uuid": "",
        "engine": "ReplacingMergeTree",
        "columns": columns,
        "partition_key": made.engine.partition_by or "",
        "sorting_key": "id",
        "window_blocks": 12_000,
        "window_seconds": None,
        "expires_rows": False,
        "views": (),
    }
    return TableFacts(**(known | changes))


def test_the_file_reads_the_source_s_columns_and_fills_those_of_the_sync_s_own_table(tmp_path, monkeypatch):
    made = declared()
    pipeline = load(tmp_path, made, {"id": "user_id", "name": "called", "born": "born"}, monkeypatch)
    assert pipeline.pipeline == made.pipeline == "usersync"
    assert pipeline.source.fields == {
        "user_id": "Int64",
        "called": "String",
        "born": "Nullable(Date32)",
        "_version": "UInt64",
        "_deleted": "UInt8",
    }
    [table] = pipeline.tables
    assert dict(table.columns or {}) == {
        "id": "user_id",
        "name": "called",
        "born": "born",
        "sync_version": "oncehouse_version",
        "gone": "_deleted",
    }
    assert (pipeline.clickhouse.url, pipeline.clickhouse.user) == ("http://clickhouse:8123/shop", "sync")
    assert "non_replicated_deduplication_window = 12000" in create_table_ddl(made)
    found = check_facts(facts_of(made), needs_of(pipeline, table))
    assert [one for one in found if one.level is Level.ERROR] == []


def test_a_change_s_version_stands_above_every_reading_number():
    microseconds_in_the_year_9999 = 253_402_300_799 * 1_000_000
    assert microseconds_in_the_year_9999 < VERSIONS_ABOVE
    assert VERSIONS_ABOVE * 2 < 1 << 64


@pytest.mark.parametrize("name", QUOTABLE.values(), ids=list(QUOTABLE))
def test_a_strange_name_of_a_column_stays_that_name_or_is_refused(name, tmp_path, monkeypatch):
    if "${" in name:
        assert "reference" in str(check_column_name(name))
        return
    assert check_column_name(name) is None
    made = declared({"id": "Int64", name: "String"}, engine=Replacing())
    pipeline = load(tmp_path, made, {"id": "id", name: name}, monkeypatch, Replacing())
    assert pipeline.source.fields[name] == "String"
    assert (pipeline.tables[0].columns or {})[name] == name


@pytest.mark.parametrize("name", [*REFUSED.values(), "_version", "_key", "${env:HOME}"])
def test_a_name_that_the_file_cannot_hold_is_refused(name):
    assert check_column_name(name)


def test_the_raised_version_gets_out_of_the_way_of_a_column_of_its_name(tmp_path, monkeypatch):
    made = declared({"id": "Int64", "v": "String"})
    pipeline = load(tmp_path, made, {"id": "id", "v": "oncehouse_version"}, monkeypatch)
    assert (pipeline.tables[0].columns or {})["sync_version"] == "oncehouse_version_"


def test_a_column_that_is_read_as_two_types_is_refused(tmp_path, monkeypatch):
    made = declared({"id": "Int64", "a": "String", "b": "Nullable(String)"})
    with pytest.raises(ConfigurationError, match="'x' of the source table is read as String and as"):
        load(tmp_path, made, {"id": "id", "a": "x", "b": "x"}, monkeypatch)


@pytest.mark.parametrize(
    ("name", "pipeline"),
    [
        ("OrderSync", "ordersync"),
        ("shop.Order-2", "shop_order-2"),
        ("7up", "sync_7up"),
        ("x" * 120, "x" * 63),
    ],
)
def test_a_pipeline_is_named_after_its_sync(name, pipeline):
    assert declared(name=name).pipeline == pipeline
    assert declared(name=name, storage="outbox").pipeline is None


def test_a_table_that_rounds_have_filled_gets_what_the_pipeline_needs():
    rounds, made = declared(storage="outbox"), declared()
    plan = compare_table(facts_of(rounds, window_blocks=1000), made)
    assert plan.statements == (
        "ALTER TABLE `users` ADD COLUMN IF NOT EXISTS `_batch_id` UUID",
        "ALTER TABLE `users` ADD INDEX `by__batch_id` `_batch_id` TYPE bloom_filter GRANULARITY 4",
        "ALTER TABLE `shop`.`users` MODIFY SETTING non_replicated_deduplication_window = 12000",
    )
    assert compare_table(facts_of(made), made).is_empty


def test_rounds_refuse_a_table_that_a_pipeline_feeds():
    plan = compare_table(facts_of(declared()), declared(storage="outbox"))
    with pytest.raises(ConfigurationError, match="a pipeline feeds it"):
        apply_plan(None, plan)


def test_cdc_is_said_of_a_class_and_not_of_the_whole_program():
    with pytest.raises(ConfigurationError, match="said of a class"):
        read_settings({"CLICKHOUSE_SYNC_STORAGE": "cdc"})
    with pytest.raises(ConfigurationError, match="no operations"):
        choose_storage("cdc", SyncSettings())
    with pytest.raises(ConfigurationError, match="which the pipeline wants for itself"):
        declared({"id": "Int64", "_batch_id": "UUID"})


_SCALE_2 = (10 << 16 | 2) + 4


@pytest.mark.parametrize(
    ("source", "type_"),
    [
        ({"type_name": "int8"}, "UInt64"),
        ({"type_name": "int4"}, "Int32"),
        ({"type_name": "float4"}, "Float32"),
        ({"type_name": "float8"}, "Float64"),
        ({"type_name": "bool"}, "Bool"),
        ({"type_name": "uuid"}, "UUID"),
        ({"type_name": "date"}, "Date32"),
        ({"type_name": "timestamptz"}, "DateTime64(6, 'UTC')"),
        ({"type_name": "timestamp"}, "DateTime64(9, 'Europe/Berlin')"),
        ({"type_name": "timestamp", "modifier": 0}, "DateTime"),
        ({"type_name": "numeric", "modifier": _SCALE_2}, "Decimal(12, 2)"),
        ({"type_name": "numeric"}, "Decimal(30, 10)"),
        ({"type_name": "varchar"}, "LowCardinality(String)"),
        ({"type_name": "text"}, "Enum8('a' = 1)"),
        ({"type_name": "jsonb"}, "String"),
        ({"type_name": "bytea"}, "String"),
        ({"type_name": "mood", "is_enum": True}, "String"),
        ({"type_name": "text", "not_null": False}, "LowCardinality(Nullable(String))"),
        ({"type_name": "int4", "is_array": True, "not_null": False}, "Array(Int32)"),
    ],
)
def test_what_the_log_has_as_a_round_would_send_it_is_taken(source, type_):
    column = PostgresColumn(**({"name": "x", "not_null": True} | source))
    assert explain_mismatch(column, parse_type(type_)) is None


@pytest.mark.parametrize(
    ("source", "type_", "why"),
    [
        ({"type_name": "int8"}, "String", "int8"),
        ({"type_name": "float4"}, "Float64", "Float32"),
        ({"type_name": "interval"}, "Int64", "microseconds"),
        ({"type_name": "time"}, "String", "text"),
        ({"type_name": "hstore"}, "String", "spell"),
        ({"type_name": "numeric", "modifier": _SCALE_2}, "Decimal(10, 1)", "digits"),
        ({"type_name": "numeric"}, "String", "Decimal"),
        ({"type_name": "timestamptz"}, "DateTime", "DateTime64"),
        ({"type_name": "timestamptz"}, "DateTime64(3)", "DateTime64"),
        ({"type_name": "jsonb"}, "Enum8('a' = 1)", "jsonb"),
        ({"type_name": "int4", "is_array": True}, "Int32", "int4\\[\\]"),
        ({"type_name": "int4"}, "Array(Int32)", "int4"),
        ({"type_name": "text", "not_null": False}, "String", "declare Nullable"),
        ({"type_name": "point"}, "String", "point"),
    ],
)
def test_what_the_log_would_spell_otherwise_is_refused(source, type_, why):
    column = PostgresColumn(**({"name": "x", "not_null": True} | source))
    found = explain_mismatch(column, parse_type(type_))
    assert found is not None
    assert why.replace("\\", "") in found


def test_the_file_begins_with_the_command_that_makes_the_table():
    made = declared()
    address = clickhouse_config(SyncSettings(databases={"default": {}}), "default")
    text = write_pipeline(made, ENGINE, columns={"id": "id"}, brokers=BROKERS, clickhouse=address)
    assert "#   oncehouse sync apply UserSync\n" in text
    assert yaml.safe_load(text)["clickhouse"] == {"url": "http://localhost:8123"}
