"""The facts of a table as tests of decisions need them: a plain one, with what a test changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oncehouse.clickhouse.table_info import TableFacts

_PLAIN = TableFacts(
    database="d",
    table="t",
    uuid="u",
    engine="MergeTree",
    columns=(),
    partition_key="",
    sorting_key="",
    window_blocks=1000,
    window_seconds=None,
    expires_rows=False,
    views=(),
)


def make_table_facts(**changes: Any) -> TableFacts:
    return replace(_PLAIN, **changes)
