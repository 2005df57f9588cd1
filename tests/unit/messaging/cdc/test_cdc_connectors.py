"""What connectors and pipelines are told, without any server."""

import json

import pytest
import yaml

from oncehouse.config.file_loader import parse_pipeline
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.cdc.column_types import PostgresColumn
from oncehouse.messaging.cdc.connector_config import (
    ConnectorTopics,
    Database,
    check_reference,
    holds_plain_password,
    make_outbox_connector,
    make_table_connector,
    slot_of,
    topic_of,
)
from oncehouse.messaging.cdc.generate import parse_connector
from oncehouse.messaging.cdc.pipeline_files import write_pipeline
from oncehouse.messaging.cdc.source_tables import SourceTable, parse_table_name

DATABASE = Database(host="db", port=5432, name="app", user="reader", password="${env:SECRET}", tls="require")
ORDERS = SourceTable(
    schema="sales",
    name="order-lines",
    columns=(
        PostgresColumn(name="id", type_name="int8", not_null=True),
        PostgresColumn(name="line", type_name="int4", not_null=True),
        PostgresColumn(name="note: '#'", type_name="text", may_be_toasted=True),
        PostgresColumn(name="_version", type_name="int4"),
        PostgresColumn(name="spot", type_name="point"),
        PostgresColumn(name="tab\there", type_name="int4"),
    ),
    key=("id", "line"),
    full_identity=True,
)


def test_a_connector_follows_exactly_its_tables_and_holds_no_password():
    config = make_table_connector("shop", DATABASE, [ORDERS], ConnectorTopics(partitions=3))
    assert config["table.include.list"] == r"sales\.order-lines"
    assert (config["slot.name"], config["publication.name"], config["topic.prefix"]) == (
        *("oncehouse_shop",) * 2,
        "shop",
    )
    assert config["database.password"] == "${env:SECRET}"
    assert config["database.sslmode"] == "require"
    assert config["topic.creation.default.partitions"] == "3"
    assert all(isinstance(value, str) for value in config.values())
    assert not holds_plain_password(config)
    assert topic_of("shop", ORDERS) == "shop.sales.order-lines"


def test_a_user_without_a_password_needs_none():
    database = Database(host="db", port=5432, name="app", user="reader")
    config = make_table_connector("shop", database, [ORDERS], ConnectorTopics())
    assert "database.password" not in config
    assert not holds_plain_password(config)


def test_the_router_is_told_of_the_outbox_tables_own_columns():
    config = make_outbox_connector("shop", DATABASE, "oncehouse_outbox", ConnectorTopics())
    assert config["table.include.list"] == r"public\.oncehouse_outbox"
    assert config["predicates.isOutbox.pattern"] == r"shop\.public\.oncehouse_outbox"
    placed = config["transforms.outbox.table.fields.additional.placement"]
    assert placed == "id:header:oncehouse-id,headers:header:oncehouse-headers"
    assert config["skipped.operations"] == "u,d,t"


@pytest.mark.parametrize("text", ["secret", "${env:}", "x${env:A}", "", "${:x}"])
def test_what_may_be_a_password_is_refused_and_not_shown(text):
    with pytest.raises(ConfigurationError, match="must be a reference") as told:
        check_reference(text)
    assert "secret" not in str(told.value)


def test_a_plain_password_in_a_file_is_noticed():
    assert holds_plain_password({"database.password": "secret"})


@pytest.mark.parametrize("prefix", ["", "Shop", "1shop", "a" * 41, "a-b", "a.b", 'x"; --'])
def test_a_prefix_that_cannot_name_a_slot_is_refused(prefix):
    with pytest.raises(ConfigurationError, match="is not a valid prefix"):
        make_table_connector(prefix, DATABASE, [ORDERS], ConnectorTopics())


@pytest.mark.parametrize("name", ["", "a.b.c", "a b", "a,b", "é", "a.", ".", "public.a*", 'a"b'])
def test_a_table_whose_name_is_no_topic_is_refused(name):
    with pytest.raises(ConfigurationError, match="is not a table that can be captured"):
        parse_table_name(name)


def test_only_connectors_of_postgresql_have_a_slot():
    assert slot_of({"connector.class": "io.debezium.connector.mysql.MySqlConnector"}) is None
    config = make_table_connector("shop", DATABASE, [ORDERS], ConnectorTopics())
    assert slot_of(config) == "oncehouse_shop"


def test_the_pipeline_of_a_table_loads_and_tells_what_it_leaves_out(tmp_path):
    made = write_pipeline(
        ORDERS,
        topic="shop.sales.order-lines",
        bootstrap_servers="localhost:9092",
        clickhouse_url="http://localhost:8123",
    )
    pipeline = parse_pipeline(made.text, "shop.yaml", folder=tmp_path)
    assert pipeline.pipeline == made.name == "shop_sales_order-lines"
    assert pipeline.source.fields == {
        "id": "Int64",
        "line": "Int32",
        "note: '#'": "Nullable(String)",
        "_version": "UInt64",
        "_deleted": "UInt8",
    }
    assert pipeline.tables[0].name == "sales_order-lines"
    assert [reason.partition(":")[0] for reason in made.left_out] == ["_version", "spot", r"'tab\there'"]
    command = made.create_command("a b.yaml")
    assert command == (
        "oncehouse table create 'a b.yaml' --engine 'ReplacingMergeTree(_version, _deleted)' --order-by id,line --yes"
    )
    assert made.create_command(f"{made.name}.yaml") in made.text
    assert yaml.safe_load(made.text)["identity"] == {"window": "60d"}


@pytest.mark.parametrize(
    "text", ["", "[]", '{"name": "a"}', '{"name": 1, "config": {}}', '{"name": "a", "config": {"b": 1}}']
)
def test_a_file_that_is_no_connector_is_refused_by_name(text):
    with pytest.raises(ConfigurationError, match=r"^here\.json: "):
        parse_connector(text, "here.json")


def test_a_written_connector_is_read_back():
    config = make_outbox_connector("shop", DATABASE, "sales.outbox", ConnectorTopics())
    assert parse_connector(json.dumps({"name": "shop", "config": config}), "f") == ("shop", config)
