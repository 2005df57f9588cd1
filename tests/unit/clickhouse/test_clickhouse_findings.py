from dataclasses import replace

import pytest

from oncehouse.clickhouse.insert.dedup_window import WindowNeeds, blocks_needed, seconds_needed
from oncehouse.clickhouse.preflight.check import Level, Needs, objections
from oncehouse.clickhouse.preflight.check import check_facts as judge_all
from oncehouse.clickhouse.preflight.check import check_server as judge_server_all
from oncehouse.clickhouse.server_info import ForcedSetting, ServerFacts
from oncehouse.clickhouse.table_info import Column, TableFacts, has_row_ttl, read_setting
from oncehouse.clickhouse.type_compatibility import compare_types

WINDOW = WindowNeeds(min_interval_seconds=1.0, retry_horizon_seconds=600.0)
NEEDS = Needs(
    table="sales.events",
    columns={"project": "String", "product_id": "UInt64"},
    batch_column="_batch_id",
    id_column="_unique_id",
    window=WINDOW,
)
FACTS = TableFacts(
    database="sales",
    table="events",
    uuid="6a0b8c1e-0000-4000-8000-000000000000",
    engine="MergeTree",
    columns=(
        Column(name="project", type="LowCardinality(String)", default_kind=""),
        Column(name="product_id", type="UInt64", default_kind=""),
        Column(name="_unique_id", type="FixedString(16)", default_kind=""),
        Column(name="_batch_id", type="UUID", default_kind=""),
    ),
    partition_key="",
    sorting_key="project",
    window_blocks=1200,
    window_seconds=None,
    expires_rows=False,
    views=(),
)
SERVER = ServerFacts(
    version="26.9.2.1", user="loader", missing_grants=(), forced_settings=(), reads_uuids_in_order=True
)


def check_facts(facts, needs):
    return objections(judge_all(facts, needs))


def check_server(server, needs):
    return objections(judge_server_all(server, needs))


def with_column(name, **changes):
    columns = tuple(replace(column, **changes) if column.name == name else column for column in FACTS.columns)
    return replace(FACTS, columns=columns)


def without_column(name):
    return replace(FACTS, columns=tuple(column for column in FACTS.columns if column.name != name))


def only(findings):
    assert len(findings) == 1, findings
    return findings[0]


def test_a_fit_table_has_no_findings():
    assert check_facts(FACTS, NEEDS) == ()
    assert check_server(SERVER, NEEDS) == ()


def test_a_declared_time_of_insertion_is_set_by_the_table_alone():
    needs = replace(NEEDS, stamps_pos=True)

    def with_pos(kind):
        return replace(
            FACTS, columns=(*FACTS.columns, Column(name="pos", type="DateTime64(3)", default_kind=kind))
        )

    assert check_facts(with_pos("DEFAULT"), needs) == ()
    assert "DEFAULT now64(3)" in only(check_facts(with_pos(""), needs)).advice
    assert only(check_facts(FACTS, needs)).where == "sales.events.pos"
    sent = replace(needs, columns={**NEEDS.columns, "pos": "DateTime64(3)"})
    assert "pipeline sends the column" in only(check_facts(with_pos("DEFAULT"), sent)).what


def test_a_missing_table_is_to_be_created():
    assert "oncehouse table create" in only(check_facts(None, NEEDS)).advice


@pytest.mark.parametrize("engine", ["Distributed", "Null", "Buffer", "Memory", "Kafka"])
def test_an_engine_that_cannot_tell_a_repeat_is_refused(engine):
    assert only(check_facts(replace(FACTS, engine=engine), NEEDS)).level is Level.ERROR


def test_a_missing_column_names_the_nearest_and_the_statement():
    needs = replace(NEEDS, columns={**NEEDS.columns, "produkt_id": "UInt64"})
    finding = only(check_facts(FACTS, needs))
    assert finding.where == "sales.events.produkt_id"
    assert "'product_id'" in finding.advice
    assert "ALTER TABLE `sales`.`events` ADD COLUMN `produkt_id` UInt64" in finding.advice


def test_a_narrower_column_is_an_error_because_clickhouse_wraps_silently():
    finding = only(check_facts(with_column("product_id", type="UInt8"), NEEDS))
    assert finding.level is Level.ERROR
    assert "UInt8" in finding.what


def test_a_column_that_takes_no_null_names_the_statement_that_lets_it():
    needs = replace(NEEDS, columns={**NEEDS.columns, "product_id": "Nullable(UInt64)"})
    assert "MODIFY COLUMN `product_id` Nullable(UInt64)" in only(check_facts(FACTS, needs)).advice


@pytest.mark.parametrize("kind", ["MATERIALIZED", "ALIAS"])
def test_a_computed_column_cannot_be_sent(kind):
    assert kind in only(check_facts(with_column("project", default_kind=kind), NEEDS)).what


@pytest.mark.parametrize("name", ["_batch_id", "_unique_id"])
def test_oncehouses_own_columns_must_be_there(name):
    assert f"ADD COLUMN `{name}`" in only(check_facts(without_column(name), NEEDS)).advice


def test_the_batch_column_must_be_a_uuid():
    assert "type UUID" in only(check_facts(with_column("_batch_id", type="String"), NEEDS)).what


def test_the_id_column_may_be_left_out():
    assert check_facts(without_column("_unique_id"), replace(NEEDS, id_column=None)) == ()


@pytest.mark.parametrize("blocks", [0, 1199])
def test_a_window_that_is_too_small_names_figures_and_statement(blocks):
    finding = only(check_facts(replace(FACTS, window_blocks=blocks), NEEDS))
    assert finding.level is Level.ERROR
    assert "1200" in finding.what
    assert "600 s" in finding.what
    statement = "ALTER TABLE `sales`.`events` MODIFY SETTING non_replicated_deduplication_window = 1200"
    assert statement in finding.advice


def test_a_partitioned_table_must_remember_a_block_for_each_partition_of_an_insert():
    facts = replace(FACTS, partition_key="toYYYYMMDD(at)")
    assert "= 12000" in only(check_facts(facts, NEEDS)).advice
    assert check_facts(replace(facts, window_blocks=12000), NEEDS) == ()


def test_a_replicated_table_is_judged_by_blocks_and_by_time():
    facts = replace(FACTS, engine="ReplicatedMergeTree", window_blocks=100, window_seconds=60.0)
    blocks, seconds = check_facts(facts, NEEDS)
    assert "replicated_deduplication_window = 1200" in blocks.advice
    assert "non_replicated" not in blocks.advice
    assert "replicated_deduplication_window_seconds = 3600" in seconds.advice


def test_an_engine_that_merges_rows_is_told_without_alarm():
    facts = replace(FACTS, engine="ReplacingMergeTree")
    assert {finding.level for finding in check_facts(facts, NEEDS)} == {Level.INFO}


def test_what_is_right_is_told_with_its_figures():
    told = {finding.where: finding.what for finding in judge_all(FACTS, NEEDS)}
    assert (
        "a retry needs 1200 (600 s until a retry" in told["sales.events: non_replicated_deduplication_window"]
    )
    assert "all 2 columns" in told["sales.events"]


def test_a_missing_grant_names_the_statement():
    server = replace(SERVER, missing_grants=("SELECT ON `sales`.`events`",))
    assert only(check_server(server, NEEDS)).advice == "run: GRANT SELECT ON `sales`.`events` TO `loader`"


def test_async_insert_forced_by_a_profile_is_an_error():
    server = replace(SERVER, forced_settings=(ForcedSetting(name="async_insert", value="1"),))
    finding = only(check_server(server, NEEDS))
    assert finding.level is Level.ERROR
    assert "async_insert" in finding.where


def test_a_constraint_is_told_with_what_it_does_and_what_to_fix_it_at():
    forced = ForcedSetting(name="async_insert", value="1", wanted="0")
    finding = only(check_server(replace(SERVER, forced_settings=(forced,)), NEEDS))
    assert "forget their tokens" in finding.what
    assert finding.advice.endswith("or fix it at 0")


def test_a_user_that_may_only_read_is_refused():
    finding = only(check_server(replace(SERVER, readonly="1"), NEEDS))
    assert (finding.level, finding.where) == (Level.ERROR, "setting readonly")


@pytest.mark.parametrize(("refuses", "level"), [(False, Level.WARNING), (True, Level.ERROR)])
def test_rights_that_loading_does_not_need_are_told_or_refused(refuses, level):
    server = replace(SERVER, excess_grants=("DROP TABLE ON `sales`.`events`", "ROLE ADMIN ON *.*"))
    finding = only(check_server(server, replace(NEEDS, refuses_excess_rights=refuses)))
    assert finding.level is level
    assert "DROP TABLE" in finding.what


@pytest.mark.parametrize(("version", "findings"), [("23.8.1", 1), ("24.3.2", 1), ("24.8.1", 0), ("25.1", 0)])
def test_a_server_that_is_too_old_is_refused(version, findings):
    assert len(check_server(replace(SERVER, version=version), NEEDS)) == findings


@pytest.mark.parametrize(("reads", "level"), [(False, Level.ERROR), (None, Level.WARNING)])
def test_uuids_that_would_arrive_otherwise_matter_only_where_they_are_sent(reads, level):
    server = replace(SERVER, reads_uuids_in_order=reads)
    assert check_server(server, NEEDS) == ()
    needs = replace(NEEDS, columns={"session": "Array(UUID)"})
    assert only(check_server(server, needs)).level is level


@pytest.mark.parametrize(
    ("declared", "actual"),
    [
        ("String", "String"),
        ("String", "LowCardinality(String)"),
        ("LowCardinality(String)", "String"),
        ("UInt64", "Nullable(UInt64)"),
        ("Nullable(String)", "LowCardinality(Nullable(String))"),
        ("DateTime64(3, 'UTC')", "DateTime64(3, 'Europe/Berlin')"),
        ("Array(LowCardinality(String))", "Array(String)"),
        ("Decimal(9, 2)", "Decimal(9, 2)"),
    ],
)
def test_types_that_change_no_value_are_equal(declared, actual):
    assert compare_types(declared, actual) is None


@pytest.mark.parametrize(
    ("declared", "actual"),
    [
        ("UInt64", "UInt32"),
        ("UInt32", "UInt64"),
        ("Int64", "UInt64"),
        ("Nullable(String)", "String"),
        ("DateTime64(3)", "DateTime64(6)"),
        ("DateTime64(3)", "DateTime"),
        ("String", "AggregateFunction(sum, UInt64)"),
        ("Array(Nullable(String))", "Array(String)"),
        ("Decimal(9, 2)", "Decimal(9, 3)"),
    ],
)
def test_types_that_could_change_a_value_differ(declared, actual):
    assert compare_types(declared, actual) is not None


def test_the_window_grows_with_retries_and_partitions_and_shrinks_with_the_interval():
    assert blocks_needed(WINDOW) == 1200
    assert blocks_needed(replace(WINDOW, partitions_per_insert=10)) == 12000
    assert blocks_needed(replace(WINDOW, min_interval_seconds=60.0)) == 1000
    assert blocks_needed(replace(WINDOW, min_interval_seconds=0.01)) == 120_000
    assert seconds_needed(replace(WINDOW, retry_horizon_seconds=7200.0)) == 14400


def test_a_table_remembers_within_its_window_only():
    now = {"seconds_ahead": 0}
    assert FACTS.remembers(blocks_since=1199, seconds_since=1e9, **now)
    assert not FACTS.remembers(blocks_since=1200, seconds_since=0, **now)
    timed = replace(FACTS, window_seconds=3600.0)
    assert timed.remembers(blocks_since=0, seconds_since=3599, **now)
    assert not timed.remembers(blocks_since=0, seconds_since=3600, **now)


def test_blocks_and_seconds_until_the_repeat_is_done_count_as_well():
    assert FACTS.remembers(blocks_since=300, seconds_since=100, seconds_ahead=299)
    assert not FACTS.remembers(blocks_since=300, seconds_since=100, seconds_ahead=301)
    timed = replace(FACTS, window_seconds=3600.0)
    assert not timed.remembers(blocks_since=0, seconds_since=3500, seconds_ahead=100)


@pytest.mark.parametrize(
    ("engine", "merges"),
    [
        ("MergeTree", False),
        ("ReplicatedMergeTree", False),
        ("SharedMergeTree", False),
        ("ReplacingMergeTree", True),
        ("ReplicatedVersionedCollapsingMergeTree", True),
        ("SharedSummingMergeTree", True),
        ("AggregatingMergeTree", True),
    ],
)
def test_engines_that_merge_rows_are_known(engine, merges):
    assert replace(FACTS, engine=engine).merges_rows is merges


def test_a_ttl_is_found_where_it_is_one():
    assert has_row_ttl("MergeTree ORDER BY a TTL at + toIntervalDay(30) SETTINGS x = 1")
    assert not has_row_ttl("MergeTree ORDER BY `my TTL` SETTINGS storage_policy = 'TTL disk'")


def test_a_setting_is_read_by_its_whole_name():
    engine = "MergeTree ORDER BY a SETTINGS non_replicated_deduplication_window = 7, index_granularity = 8192"
    assert read_setting(engine, "non_replicated_deduplication_window") == 7
    assert read_setting(engine, "replicated_deduplication_window") is None
