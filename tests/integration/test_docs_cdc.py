"""The tutorial of docs/cdc.md, block by block, up to the rows that it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from live_pipeline import wait_until
from oncehouse.cli.app import run_command

PAGE = Path(__file__).parents[2] / "docs" / "cdc.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.long
def test_the_tutorial_leads_from_a_table_to_its_rows_in_clickhouse(make_cdc, database, monkeypatch):
    tutorial = PAGE.read_text(encoding="utf-8").partition("## From a table")[2].partition("\n## ")[0]
    blocks = BLOCK.findall(tutorial)
    assert [kind for kind, _ in blocks] == ["sh", "yaml", "sql", "sh", "sql", "sh", "sql", "text"]
    _, settings, tables, commands, changes, run, query, rows = (text for _, text in blocks)
    cdc = make_cdc("shop")
    monkeypatch.chdir(cdc.folder)
    assert yaml.safe_load(settings).keys() == yaml.safe_load(cdc.messaging.read_text(encoding="utf-8")).keys()
    cdc.database.execute(tables)
    for line in commands.splitlines():
        words = shlex.split(line.replace("http://127.0.0.1:25318", cdc.clickhouse_url))
        assert run_command(words[1:]) == 0, line
    cdc.database.execute(changes)
    # Three rows of the snapshot, then 1 changed, 2 gone with a tombstone, 20 come, 3 gone with a tombstone, 4 come.
    wait_until(lambda: cdc.count_records("shop.public.orders") == 10, "the changes")
    assert run.split() == ["oncehouse", "run", cdc.pipeline_file("orders").name, "--once"]
    cdc.run("orders")
    found = cdc.client.raw_query(query.replace("FROM orders", f"FROM {database}.orders"), fmt="TSV").decode()
    assert [line.split() for line in found.splitlines()] == [line.split() for line in rows.splitlines()]
