"""How near a real table is to having too many parts, and who may know."""

from __future__ import annotations

import pytest

from clickhouse_users import PASSWORD, ROLES_DATABASE, ROLES_TABLES
from oncehouse.clickhouse.client import connect
from oncehouse.clickhouse.insert.part_pressure import PartPressure
from oncehouse.config.pipeline import ClickHouse


@pytest.fixture
def client(clickhouse, database):
    return connect(ClickHouse(url=f"{clickhouse.url}/{database}"))


def test_the_fullest_partition_counts_against_the_tables_own_setting(client):
    client.command(
        "CREATE TABLE events (p UInt8) ENGINE = MergeTree PARTITION BY p ORDER BY tuple() "
        "SETTINGS parts_to_delay_insert = 10"
    )
    client.command("SYSTEM STOP MERGES events")
    pressure = PartPressure(client, "events")
    assert pressure.read_share() == 0
    for partition in (1, 1, 1, 2):
        client.command(f"INSERT INTO events VALUES ({partition})")
    assert pressure.read_share() == pytest.approx(0.3)


def test_a_table_without_a_setting_of_its_own_is_held_to_the_servers(client):
    client.command("CREATE TABLE events (p UInt8) ENGINE = MergeTree ORDER BY tuple()")
    client.command("INSERT INTO events VALUES (1)")
    ((delayed_from,),) = client.query(
        "SELECT value FROM system.merge_tree_settings WHERE name = 'parts_to_delay_insert'"
    )
    assert PartPressure(client, "events").read_share() == pytest.approx(1 / int(delayed_from))


def test_a_user_who_may_not_see_parts_knows_nothing_and_asks_once(clickhouse):
    admin = connect(ClickHouse(url=clickhouse.url))
    admin.command(f"CREATE DATABASE {ROLES_DATABASE}")
    try:
        reader = connect(ClickHouse(url=clickhouse.url, user="role_reader", password=PASSWORD))
        pressure = PartPressure(reader, ROLES_TABLES[0])
        assert pressure.read_share() == 0
        assert pressure.read_share() == 0
    finally:
        admin.command(f"DROP DATABASE {ROLES_DATABASE} SYNC")
