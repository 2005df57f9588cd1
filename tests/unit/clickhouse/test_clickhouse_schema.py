import pytest

from oncehouse.clickhouse.create_table import create_table_ddl
from oncehouse.clickhouse.insert.dedup_window import WindowNeeds
from oncehouse.errors import ConfigurationError

WINDOW = WindowNeeds(min_interval_seconds=1.0, retry_horizon_seconds=600.0)


def ddl(**changes):
    request = {
        "table": "sales.events",
        "columns": {
            "project": "String",
            "at": "DateTime64(3)",
            "note": "Nullable(String)",
            "price": "Float64",
        },
        "identity_columns": ("project", "note", "price"),
        "batch_column": "_batch_id",
        "id_column": "_unique_id",
        "window": WINDOW,
    }
    return create_table_ddl(**{**request, **changes})


def test_the_statement_holds_columns_in_order_own_columns_and_the_window():
    lines = [line.strip() for line in ddl().splitlines()]
    assert lines[0] == "CREATE TABLE `sales`.`events`"
    assert lines[2] == "`project` String,"
    assert "`_unique_id` FixedString(16)," in lines
    assert "`_batch_id` UUID," in lines
    assert "ENGINE = MergeTree" in lines
    assert lines[-1] == "SETTINGS non_replicated_deduplication_window = 1200"


def test_only_identity_columns_that_sort_well_make_the_key():
    assert "ORDER BY (`project`)" in ddl()
    assert "ORDER BY tuple()" in ddl(identity_columns=("note", "price"))


def test_the_id_column_can_be_left_out():
    assert "FixedString(16)" not in ddl(id_column=None)


def test_a_replicated_engine_gets_the_settings_that_it_obeys():
    text = ddl(engine="ReplicatedMergeTree('/clickhouse/{shard}/events', '{replica}')")
    assert "ENGINE = ReplicatedMergeTree('/clickhouse/{shard}/events', '{replica}')" in text
    assert (
        "SETTINGS replicated_deduplication_window = 1200, replicated_deduplication_window_seconds = 3600"
        in text
    )


@pytest.mark.parametrize("engine", ["Memory", "Distributed(c, d, t)", "MergeTree; DROP TABLE x", "", "Log()"])
def test_other_engines_are_refused(engine):
    with pytest.raises(ConfigurationError):
        ddl(engine=engine)


def test_hostile_names_and_types_do_not_reach_the_statement():
    assert "`x\\`) ENGINE=Null --` String" in ddl(columns={"x`) ENGINE=Null --": "String"})
    with pytest.raises(ConfigurationError):
        ddl(columns={"x": "String) ENGINE=Null --"})


def test_a_column_may_not_take_an_own_columns_name():
    with pytest.raises(ConfigurationError):
        ddl(columns={"_batch_id": "UUID"})
