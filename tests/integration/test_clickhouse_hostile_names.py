"""Hostile names on a real server: tables made, filled, counted and granted under them, and nothing else touched."""

from __future__ import annotations

import uuid

import pyarrow as pa
import pytest

from attempt_examples import first_attempt, next_attempt
from hostile_names import QUOTABLE
from oncehouse.clickhouse.batch_rows import count_by_batch, count_distinct_by_batch
from oncehouse.clickhouse.client import connect
from oncehouse.clickhouse.create_table import add_column_ddl, ddl_of, modify_column_ddl
from oncehouse.clickhouse.insert.insert_batch import insert_batch
from oncehouse.clickhouse.insert.outcome import AlreadyThere, Inserted
from oncehouse.clickhouse.preflight.check import inspect, needs_of
from oncehouse.clickhouse.preflight.finding import Level
from oncehouse.clickhouse.preflight.grants import Role, role_grants
from oncehouse.clickhouse.table_info import describe_table
from oncehouse.config.pipeline import ClickHouse, Pipeline

# Three dots would be three names to a table, and a file's name cannot hold a slash on any server.
TABLES = {at: name for at, name in QUOTABLE.items() if "." not in name}


@pytest.fixture
def client(clickhouse, database):
    admin = connect(ClickHouse(url=f"{clickhouse.url}/{database}"))
    admin.command("CREATE TABLE y (a UInt8) ENGINE = MergeTree ORDER BY a")  # what the names would drop
    return admin


def pipeline_of(client, database: str, table: str, column: str) -> Pipeline:
    return Pipeline(
        pipeline="shop",
        source={
            "kafka": {"bootstrap_servers": "127.0.0.1:9", "topics": ["none"]},
            "fields": {column: "UInt64"},
        },
        identity={"fields": [column]},
        tables=[
            {
                "name": f"{database}.{table}",
                "batch_column": f"b {column}"[:200],
                "id_column": f"i {column}"[:200],
            }
        ],
        clickhouse={"url": client.config.url},
        ledger={"catalog": "sqlite:///none.db", "files": "none"},
    )


@pytest.mark.parametrize(
    ("table", "column"), [(name, name) for name in TABLES.values()] + [("plain", "../../etc/passwd")]
)
def test_a_table_of_strange_names_is_made_filled_counted_and_granted(table, column, client, database):
    pipeline = pipeline_of(client, database, table, column)
    (declared,) = pipeline.tables
    client.command(ddl_of(pipeline, declared, engine="MergeTree"))
    assert not [
        finding.what
        for finding in inspect(client, needs_of(pipeline, declared))
        if finding.level is Level.ERROR
    ]
    rows = pa.table(
        {column: pa.array([1, 2], pa.uint64()), declared.id_column: pa.array([b"a" * 16, b"b" * 16])}
    )
    request = first_attempt(rows, table=declared.name, batch_column=declared.batch_column)
    batch = request.batch_id
    assert isinstance(insert_batch(client, request, rows), Inserted)
    assert isinstance(insert_batch(client, next_attempt(request), rows), AlreadyThere)
    assert count_by_batch(client, declared.name, declared.batch_column) == {batch: 2}
    assert count_distinct_by_batch(client, declared.name, declared.batch_column, declared.id_column) == {
        batch: 2
    }
    client.command(add_column_ddl(declared.name, f"more {column}", "UInt8"))
    client.command(modify_column_ddl(declared.name, f"more {column}", "UInt16"))
    facts = describe_table(client, declared.name)
    assert {column, f"more {column}"} <= {found.name for found in facts.columns}
    for role in Role:
        for grant in role_grants(pipeline, role):
            client.query("SELECT formatQuerySingleLine({sql:String})", {"sql": grant.statement(table)})
    assert {name for (name,) in client.query("SHOW TABLES")} == {"y", table}


@pytest.mark.parametrize("name", TABLES.values(), ids=TABLES)
def test_a_database_of_a_strange_name_is_one_database(name, client, clickhouse):
    strange = f"{name} {uuid.uuid4().hex[:8]}"
    pipeline = pipeline_of(client, strange, "events", "id")
    quoted = strange.replace("\\", "\\\\").replace("`", "\\`")
    client.command(f"CREATE DATABASE `{quoted}`")
    try:
        client.command(ddl_of(pipeline, pipeline.tables[0], engine="MergeTree"))
        assert describe_table(client, pipeline.tables[0].name).database == strange
    finally:
        client.command(f"DROP DATABASE `{quoted}` SYNC")
