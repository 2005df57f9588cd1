"""Reading a real server and its tables before anything is loaded."""

import pickle
from dataclasses import replace

import pytest

from clickhouse_users import PASSWORD
from oncehouse.clickhouse.client import connect
from oncehouse.clickhouse.create_table import create_table_ddl
from oncehouse.clickhouse.insert.dedup_window import WindowNeeds
from oncehouse.clickhouse.preflight.check import Level, Needs
from oncehouse.clickhouse.preflight.check import inspect as inspect_all
from oncehouse.clickhouse.preflight.finding import objections
from oncehouse.clickhouse.table_info import describe_table
from oncehouse.config.pipeline import ClickHouse
from oncehouse.errors import ConfigurationError, PermanentError, TransientError

WINDOW = WindowNeeds(min_interval_seconds=1.0, retry_horizon_seconds=600.0)
COLUMNS = {
    "project": "LowCardinality(String)",
    "product_id": "UInt64",
    "price": "Nullable(Decimal(18, 4))",
    "at": "DateTime64(3, 'UTC')",
    "session": "UUID",
    "tags": "Array(String)",
    "kind": "Enum8('a' = 1, 'b' = 2)",
    "attributes": "Map(String, String)",
    "place": "Tuple(lat Float64, lon Float64)",
}
NEEDS = Needs(
    table="events", columns=COLUMNS, batch_column="_batch_id", id_column="_unique_id", window=WINDOW
)
PLAIN = replace(NEEDS, columns={"project": "String"})


@pytest.fixture
def admin(clickhouse, database):
    """The server's own administrator, who may do everything."""
    return connect(ClickHouse(url=f"{clickhouse.url}/{database}"))


@pytest.fixture
def as_user(clickhouse, database):
    def become(name):
        return connect(ClickHouse(url=f"{clickhouse.url}/{database}", user=name, password=PASSWORD))

    return become


@pytest.fixture
def client(admin):
    return admin


def inspect(client, needs=NEEDS):
    """What stands in the way of a pipeline, the administrator's rights aside."""
    found = objections(inspect_all(client, needs))
    return tuple(finding for finding in found if "clickhouse.user" not in finding.where)


def create(client, **changes):
    request = {
        "table": "events",
        "columns": COLUMNS,
        "identity_columns": ("project", "product_id"),
        "batch_column": "_batch_id",
        "id_column": "_unique_id",
        "window": WINDOW,
    }
    client.command(create_table_ddl(**{**request, **changes}))


def test_a_table_that_oncehouse_made_has_no_findings(client):
    create(client)
    assert inspect(client, NEEDS) == ()


def test_a_table_that_is_not_there_is_found(client):
    assert [finding.level for finding in inspect(client, NEEDS)] == [Level.ERROR]


def test_every_difference_is_found_at_once(client):
    client.command(
        "CREATE TABLE events (project String, product_id UInt8, at DateTime64(3), _batch_id String) "
        "ENGINE = MergeTree ORDER BY project"
    )
    wheres = {finding.where for finding in inspect(client, NEEDS)}
    for place in ("product_id", "price", "_batch_id", "_unique_id"):
        assert f"events.{place}" in wheres
    assert "events.project" not in wheres
    assert "events: non_replicated_deduplication_window" in wheres


def test_the_advice_about_the_window_cures_it(client):
    create(client)
    client.command("ALTER TABLE events MODIFY SETTING non_replicated_deduplication_window = 5")
    (finding,) = inspect(client, NEEDS)
    client.command(finding.advice.removeprefix("run: "))
    assert inspect(client, NEEDS) == ()


def test_facts_tell_engine_keys_ttl_and_views(client, database):
    client.command(
        "CREATE TABLE events (a Int64, at DateTime, _batch_id UUID) ENGINE = ReplacingMergeTree "
        "PARTITION BY toYYYYMM(at) ORDER BY a TTL at + INTERVAL 1 DAY"
    )
    client.command("CREATE MATERIALIZED VIEW view ENGINE = MergeTree ORDER BY a AS SELECT a FROM events")
    facts = describe_table(client, "events")
    assert facts is not None
    assert (facts.engine, facts.partition_key, facts.sorting_key) == (
        "ReplacingMergeTree",
        "toYYYYMM(at)",
        "a",
    )
    assert facts.expires_rows
    assert facts.merges_rows
    assert facts.window_blocks == 0
    assert facts.views == (f"{database}.view",)
    assert describe_table(client, f"{database}.events") == facts


def test_a_client_travels_by_pickle(client):
    assert pickle.loads(pickle.dumps(client)).query("SELECT 1 + 1") == [(2,)]


def test_values_are_bound_whatever_they_hold(client):
    hostile = "'; DROP TABLE x; --\n\\'{a:String}"
    assert client.query("SELECT {value:String}", {"value": hostile}) == [(hostile,)]


def test_a_wrong_password_is_said_without_showing_it(clickhouse):
    client = connect(ClickHouse(url=clickhouse.url, user="default", password="correct-horse"))
    with pytest.raises(ConfigurationError, match=r"clickhouse\.password") as caught:
        client.server_version()
    assert "correct-horse" not in str(caught.value)


def test_a_missing_database_is_said(clickhouse):
    with pytest.raises(ConfigurationError, match="Create the database"):
        connect(ClickHouse(url=f"{clickhouse.url}/nowhere")).server_version()


def test_a_port_of_another_protocol_is_said(clickhouse):
    # The server answers and closes the connection, so the answer may be lost to a reset.
    with pytest.raises((ConfigurationError, TransientError), match=r"clickhouse\.url"):
        connect(ClickHouse(url=f"http://127.0.0.1:{clickhouse.place.ports['tcp']}")).server_version()
    with pytest.raises(ConfigurationError, match=r"clickhouse\.url"):
        connect(ClickHouse(url=clickhouse.url.replace("http:", "https:"))).server_version()


def test_a_server_that_does_not_run_is_transient_with_advice():
    with pytest.raises(TransientError, match="Check that the server runs"):
        connect(ClickHouse(url="http://127.0.0.1:9", connect_timeout=1)).server_version()


def test_a_broken_query_is_permanent(client):
    with pytest.raises(PermanentError, match="UNKNOWN_IDENTIFIER"):
        client.query("SELECT nothing_of_the_kind")


def test_a_user_with_the_rights_it_needs_and_no_more_has_no_findings(admin, as_user):
    create(admin)
    assert objections(inspect_all(as_user("loader"), replace(NEEDS, columns={"project": "String"}))) == ()


@pytest.mark.parametrize(
    ("user", "grant"),
    [
        ("without_insert", "INSERT ON `events`"),
        ("without_select", "SELECT ON `events`"),
        ("without_processes", "SELECT ON system.processes"),
    ],
)
def test_a_user_with_too_few_rights_is_refused_by_the_grant_it_lacks(user, grant, admin, as_user):
    create(admin)
    errors = [finding for finding in inspect(as_user(user)) if finding.level is Level.ERROR]
    assert [finding.advice for finding in errors] == [f"run: GRANT {grant} TO `{user}`"]


@pytest.mark.parametrize(("user", "right"), [("dropper", "DROP TABLE"), ("granter", "ROLE ADMIN")])
def test_a_user_with_too_many_rights_is_told_and_refused_where_that_is_asked_for(user, right, admin, as_user):
    create(admin)
    for refuses, level in ((False, Level.WARNING), (True, Level.ERROR)):
        found = objections(inspect_all(as_user(user), replace(PLAIN, refuses_excess_rights=refuses)))
        assert [(finding.level, right in finding.what) for finding in found] == [(level, True)]


@pytest.mark.parametrize(
    ("user", "setting"),
    [
        ("forced_async", "async_insert"),
        ("not_deduplicated", "deduplicate_insert"),
        ("doubled_views", "deduplicate_blocks_in_dependent_materialized_views"),
        ("reader", "readonly"),
        ("reader_with_settings", "readonly"),
    ],
)
def test_a_profile_that_would_break_the_promise_is_refused_by_its_setting(user, setting, admin, as_user):
    create(admin)
    errors = [finding for finding in inspect(as_user(user), PLAIN) if finding.level is Level.ERROR]
    assert f"setting {setting}" in {finding.where for finding in errors}


def test_a_view_whose_target_forgets_is_refused_and_the_advice_cures_it(client, database):
    create(client)
    client.command("CREATE TABLE sums (project String, n UInt64) ENGINE = SummingMergeTree ORDER BY project")
    client.command(
        "CREATE MATERIALIZED VIEW counted TO sums AS SELECT project, count() AS n FROM events GROUP BY project"
    )
    (finding,) = inspect(client)
    assert finding.level is Level.ERROR
    assert (
        f"{database}.counted writes to {database}.sums: non_replicated_deduplication_window" in finding.where
    )
    client.command(finding.advice.removeprefix("run: "))
    assert inspect(client) == ()


def test_views_behind_views_are_followed_also_where_they_keep_their_rows_themselves(client):
    create(client)
    client.command("CREATE TABLE passed (project String) ENGINE = Null")
    client.command("CREATE MATERIALIZED VIEW first TO passed AS SELECT project FROM events")
    client.command(
        "CREATE MATERIALIZED VIEW second ENGINE = MergeTree ORDER BY project AS SELECT project FROM passed"
    )
    (finding,) = inspect(client)
    assert ".second writes to" in finding.where
    client.command(finding.advice.removeprefix("run: "))
    assert inspect(client) == ()


def test_a_view_into_an_engine_that_cannot_tell_a_repeat_is_refused(client):
    create(client)
    client.command("CREATE TABLE `odd ``name` (project String) ENGINE = Memory")
    client.command("CREATE MATERIALIZED VIEW view TO `odd ``name` AS SELECT project FROM events")
    (finding,) = inspect(client)
    assert (finding.level, "engine Memory" in finding.what) == (Level.ERROR, True)


def test_a_view_that_the_user_cannot_see_is_a_warning(client, as_user):
    needs = replace(PLAIN, table="of_one_table.events")
    client.command("CREATE DATABASE of_one_table ENGINE = Atomic")
    try:
        create(client, table=needs.table)
        client.command(
            "CREATE MATERIALIZED VIEW of_one_table.view ENGINE = MergeTree ORDER BY project "
            "SETTINGS non_replicated_deduplication_window = 12000 AS SELECT project FROM of_one_table.events"
        )
        assert inspect(as_user("loader"), needs) == ()
        found = [one for one in inspect(as_user("of_one_table"), needs) if "materialized view" in one.where]
        assert [(one.level, "not visible" in one.what) for one in found] == [(Level.WARNING, True)]
    finally:
        client.command("DROP DATABASE of_one_table SYNC")
