"""The oracle of `oncehouse chaos` on a real ClickHouse: two tables are the same rows, or it says what differs."""

from __future__ import annotations

import pytest

from oncehouse.clickhouse.client import connect
from oncehouse.config.pipeline import ClickHouse, Table
from oncehouse.devstack.chaos.oracle import compare

ROWS = ["(1, 'a', ['x'])", "(2, NULL, [])", "(3, 'c', ['y', 'z'])"]


@pytest.fixture
def tables(clickhouse, clickhouse_client, database):
    """Fill the calm table and the other one; the last batch id differs, as it does between runs."""

    def fill(calm: list[str], other: list[str], *, ids: bool = True) -> list[str]:
        for name, rows in (("calm", calm), ("other", other)):
            clickhouse_client.command(
                f"CREATE TABLE {database}.{name} (id UInt64, note Nullable(String), tags Array(String), "
                f"_batch_id UUID{', _unique_id FixedString(16)' if ids else ''}) ENGINE = MergeTree ORDER BY id"
            )
            for row in rows:
                more = ", toFixedString(leftPad(toString(id), 16, '0'), 16)" if ids else ""
                clickhouse_client.command(
                    f"INSERT INTO {database}.{name} SELECT id, note, tags, generateUUIDv4(){more} "
                    f"FROM values('id UInt64, note Nullable(String), tags Array(String)', {row})"
                )
        client = connect(ClickHouse(url=clickhouse.url))
        table = Table(name=f"{database}.other", id_column="_unique_id" if ids else None)
        return [
            told.removeprefix(f"{database}.other: ")
            for told in compare(client, table, calm=f"{database}.calm")
        ]

    return fill


def test_the_same_rows_in_another_order_and_other_batches_are_the_same(tables):
    assert tables(ROWS, ROWS[::-1]) == []


def test_rows_that_are_gone_are_told_by_their_unique_ids(tables):
    told = tables(ROWS, ROWS[:1])
    assert told[0].startswith("2 rows lost, among them unique id 3")
    assert len(told) == 1


def test_rows_that_are_doubled_are_told(tables):
    first, second = tables(ROWS, [*ROWS, ROWS[0], ROWS[0]])
    assert first.startswith("2 rows doubled, among them unique id 3")
    assert second == "5 rows of 3 unique ids"


def test_a_row_with_another_payload_is_lost_and_strange(tables):
    first, second = tables(ROWS, [*ROWS[:2], "(3, 'c', ['z', 'y'])"])
    assert first.startswith("1 row lost")
    assert second.startswith("1 row other than in the calm run")


def test_tables_without_an_id_are_compared_by_content(tables):
    assert tables([ROWS[0], ROWS[0]], [ROWS[0]], ids=False) == ["1 row lost"]
