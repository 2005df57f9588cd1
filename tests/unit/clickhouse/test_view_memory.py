"""How many blocks a view's target took since a moment, by its parts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oncehouse.clickhouse.insert import view_memory
from table_facts import make_table_facts

TARGET = make_table_facts(table="sums", engine="SummingMergeTree")


class Parts:
    def __init__(self, *rows: tuple[int, int, int]) -> None:
        self.rows = rows

    def query(self, _sql, _parameters):
        return list(self.rows)


@pytest.mark.parametrize(
    ("engine", "parts", "blocks"),
    [
        ("SummingMergeTree", [(70, 3, 50)], 20),
        ("SummingMergeTree", [(70, 0, 0)], 70),
        ("SummingMergeTree", [], 0),
        ("ReplicatedSummingMergeTree", [(70, 3, 50), (4, 0, 0)], 25),
        ("SharedSummingMergeTree", [(70, 3, 50)], None),
    ],
    ids=["older parts in sight", "none is older", "empty", "numbers of each partition", "numbers of nothing"],
)
def test_blocks_since_a_moment_are_never_too_few(monkeypatch, engine, parts, blocks):
    client = Parts(*parts)
    monkeypatch.setattr(view_memory, "read_in_step", lambda _client, _tables, read: read(client))
    assert view_memory._count_blocks(client, replace(TARGET, engine=engine), 1000) == blocks
