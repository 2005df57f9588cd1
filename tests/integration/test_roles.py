"""Users with exactly the rights that `oncehouse grants` prints, on a real server: enough for their work, no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy

import pyarrow as pa
import pytest

from attempt_examples import first_attempt, next_attempt
from clickhouse_users import (
    PASSWORD,
    ROLES_DATABASE,
    ROLES_FIELDS,
    ROLES_TABLES,
    role_users,
    roles_pipeline,
)
from live_pipeline import encode, make_event
from oncehouse.clickhouse.alter_table import plan_columns
from oncehouse.clickhouse.batch_rows import count_by_batch, count_distinct_by_batch
from oncehouse.clickhouse.client import Client, connect
from oncehouse.clickhouse.create_table import ddl_of, widen_window_ddl
from oncehouse.clickhouse.identifiers import quote_table
from oncehouse.clickhouse.insert.insert_batch import insert_batch
from oncehouse.clickhouse.insert.outcome import AlreadyThere, Inserted, Refused
from oncehouse.clickhouse.preflight.check import inspect, needs_of
from oncehouse.clickhouse.preflight.finding import objections
from oncehouse.clickhouse.preflight.grants import Role, role_grants
from oncehouse.clickhouse.table_info import describe_table
from oncehouse.config.pipeline import ClickHouse, Pipeline
from oncehouse.errors import ConfigurationError
from oncehouse.pipeline.maintenance.verify import verify
from oncehouse.pipeline.schema.evolution import add_columns


class DeniedError(Exception):
    """What a user lacks the right for."""


@pytest.fixture
def admin(clickhouse) -> Iterator[Client]:
    client = connect(ClickHouse(url=clickhouse.url))
    client.command(f"CREATE DATABASE {ROLES_DATABASE}")
    yield client
    client.command(f"DROP DATABASE {ROLES_DATABASE} SYNC")


@pytest.fixture
def pipeline_of(clickhouse, admin) -> Callable[..., Pipeline]:
    def make(user: str, **sections: object) -> Pipeline:
        return roles_pipeline(
            clickhouse={"url": clickhouse.url, "user": user, "password": PASSWORD}, **sections
        )

    return make


def make_tables(admin: Client) -> None:
    pipeline = roles_pipeline()
    for table in pipeline.tables:
        admin.command(ddl_of(pipeline, table, engine="MergeTree"))


def load(pipeline: Pipeline) -> None:
    """What a run does to each table: the check, an insert, its repeat after a doubtful end, a new column."""
    client = connect(pipeline.clickhouse)
    for table in pipeline.tables:
        for finding in objections(inspect(client, needs_of(pipeline, table))):
            # An optional right, without which everything runs.
            if not finding.where.endswith(": blocks of all writers"):
                raise DeniedError(finding.what)
        rows = pa.table(
            {
                "id": pa.array([1, 2], pa.uint64()),
                "na`me": ["a", "b"],
                "_unique_id": pa.array([b"x" * 16] * 2),
            }
        )
        request = first_attempt(rows, table=table.name, batch_column=table.batch_column)
        assert isinstance(insert_batch(client, request, rows), Inserted)
        assert isinstance(insert_batch(client, next_attempt(request), rows), AlreadyThere)
    add_columns(pipeline, {"new": "Nullable(String)"})


def migrate(pipeline: Pipeline) -> None:
    """table create, schema apply with a new and a wider column, and the advice about the window."""
    client = connect(pipeline.clickhouse)
    for table in pipeline.tables:
        client.command(ddl_of(pipeline, table, engine="MergeTree"))
    fields = {**ROLES_FIELDS, "na`me": "Nullable(String)", "more": "UInt8"}
    kafka = {"bootstrap_servers": "127.0.0.1:9", "topics": ["none"]}
    wider = roles_pipeline(source={"kafka": kafka, "fields": fields})
    for table in wider.tables:
        facts = describe_table(client, table.name)
        assert facts is not None
        for change in plan_columns(facts, needs_of(wider, table)):
            client.command(change.statement)
        client.command(widen_window_ddl(facts.name, facts.window_setting, 1000))


def look(pipeline: Pipeline) -> None:
    """What verify asks."""
    client = connect(pipeline.clickhouse)
    for table in pipeline.tables:
        if describe_table(client, table.name) is None:
            raise DeniedError(f"{table.name} is not visible")
        count_by_batch(client, table.name, table.batch_column)
        count_distinct_by_batch(client, table.name, table.batch_column, table.id_column)


WORK = {Role.WRITER: load, Role.MIGRATOR: migrate, Role.READER: look}
LESS = [name for name in role_users() if "_less_" in name]


def prepare(role: Role, admin: Client) -> None:
    if role is not Role.MIGRATOR:
        make_tables(admin)


@pytest.mark.parametrize("role", Role)
def test_the_printed_rights_are_enough_for_the_work_of_the_role(role, admin, pipeline_of):
    prepare(role, admin)
    WORK[role](pipeline_of(f"role_{role}"))


@pytest.mark.parametrize("user", LESS)
def test_without_any_one_of_its_rights_the_work_of_a_role_fails(user, admin, pipeline_of):
    role = Role(user.split("_")[1])
    prepare(role, admin)
    with pytest.raises((DeniedError, ConfigurationError)):
        WORK[role](pipeline_of(user))


FORBIDDEN = {
    Role.WRITER: (
        "ALTER TABLE {} MODIFY COLUMN id String",
        "ALTER TABLE {} DELETE WHERE 1",
        "ALTER TABLE {} MODIFY SETTING non_replicated_deduplication_window = 1",
        "DROP TABLE {}",
        "TRUNCATE TABLE {}",
        f"CREATE TABLE {ROLES_DATABASE}.other (a UInt8) ENGINE = MergeTree ORDER BY a",
        "SELECT * FROM system.query_log",
    ),
    Role.MIGRATOR: (
        "SELECT count() FROM {}",
        "INSERT INTO {} (id) VALUES (1)",
        "DROP TABLE {}",
        "TRUNCATE TABLE {}",
        "ALTER TABLE {} DROP COLUMN id",
        "ALTER TABLE {} DELETE WHERE 1",
        f"CREATE TABLE {ROLES_DATABASE}.other (a UInt8) ENGINE = MergeTree ORDER BY a",
        "CREATE USER another",
    ),
    Role.READER: (
        "SELECT id FROM {}",
        "SELECT * FROM {}",
        "INSERT INTO {} (id) VALUES (1)",
        "ALTER TABLE {} ADD COLUMN b UInt8",
        "DROP TABLE {}",
        "KILL QUERY WHERE query_id = 'x'",
        "SELECT * FROM system.processes",
    ),
}


@pytest.mark.parametrize("role", Role)
def test_a_role_may_not_do_what_is_not_its_work(role, admin, pipeline_of):
    make_tables(admin)
    client = connect(pipeline_of(f"role_{role}").clickhouse)
    for statement in FORBIDDEN[role]:
        with pytest.raises(ConfigurationError, match="ACCESS_DENIED"):
            client.command(statement.replace("{}", quote_table(ROLES_TABLES[0])))


def test_a_reader_cannot_load_and_is_told_by_an_outcome(admin, pipeline_of):
    make_tables(admin)
    rows = pa.table({"id": pa.array([1], pa.uint64())})
    request = first_attempt(rows, table=ROLES_TABLES[0])
    assert isinstance(insert_batch(connect(pipeline_of("role_reader").clickhouse), request, rows), Refused)


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("user", ["bob", "bob`; DROP TABLE x; --", "it's \\", "ünï"])
def test_a_printed_statement_is_one_grant_to_one_user_whatever_the_names(role, user, admin):
    for grant in role_grants(roles_pipeline(), role):
        (formatted,) = admin.query(
            "SELECT formatQuerySingleLine({sql:String})", {"sql": grant.statement(user)}
        )[0]
        assert formatted.startswith("GRANT "), formatted
        # What the server read and wrote again is read as the same statement.
        assert admin.query("SELECT formatQuerySingleLine({sql:String})", {"sql": formatted}) == [(formatted,)]


def test_a_whole_run_needs_no_more_than_the_writers_rights_and_verify_no_more_than_the_readers(
    admin, make_pipeline, pipeline_of
):
    live_pipeline = make_pipeline(tables=False)
    live_pipeline.document["tables"] = [{"name": ROLES_TABLES[0]}]
    live_pipeline.document["source"]["new_fields"] = "add"
    live_pipeline.document["clickhouse"] |= {
        "user": "role_writer",
        "password": PASSWORD,
        "excess_rights": "refuse",
    }
    as_migrator = deepcopy(live_pipeline.document)
    as_migrator["clickhouse"] |= {"user": "role_migrator"}
    migrator = Pipeline(**as_migrator)
    connect(migrator.clickhouse).command(ddl_of(migrator, migrator.tables[0], engine="MergeTree"))
    live_pipeline.send([make_event(number) for number in range(50)])
    live_pipeline.send_raw([encode(make_event(50), colour="red")])

    live_pipeline.run()

    as_reader = deepcopy(live_pipeline.document)
    as_reader["clickhouse"] |= {"user": "role_reader"}
    reader = Pipeline(**as_reader)
    report = verify(
        reader, live_pipeline.catalog, live_pipeline.store, connect(reader.clickhouse), files=True
    )
    assert report.is_clean
    assert report.rows_in_clickhouse == 51
    assert admin.query(f"SELECT count(), countIf(colour = 'red') FROM {ROLES_TABLES[0]}") == [(51, 1)]
