"""docs/moving: one whole move as the page on cutting over tells it.

That commands exist and pipeline files load is shown by test_docs_blocks. What belongs to the tools that are left (a
connector's JSON, the Kafka engine's tables, `manage.py`) is counted here, so that nothing new stands there unseen, and
not run.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from oncehouse.cli.app import run_command
from page_shell import ROOT, blocks

KINDS = {
    "cut-over": ["yaml", "sh", "sql", "sh", "sql", "sql", "sql", "sh", "sql", "sql"],
    "django-clickhouse": [],
    "glassflow": ["json", "yaml"],
    "kafka-connect": ["json", "yaml"],
    "kafka-engine": ["sql", "yaml"],
}
EVENT = {"project": "shop", "event_type": "view", "price": "9.99", "created_at": "2026-01-01T12:00:00.000Z"}


def test_every_block_of_the_pages_is_known_here():
    pages = sorted((ROOT / "docs" / "moving").glob("*.md"))
    assert {page.stem: [kind for kind, _ in blocks(f"docs/moving/{page.name}")] for page in pages} == KINDS


def shell_lines() -> list[str]:
    """Also those of blocks that stand inside a list."""
    found = []
    for page in sorted((ROOT / "docs" / "moving").glob("*.md")):
        inside = False
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.strip().startswith("```"):
                inside = line.strip() == "```sh"
            elif inside:
                found.append(line.strip())
    return found


def test_every_other_line_is_one_of_djangos():
    others = [line.split()[:2] for line in shell_lines() if not line.startswith("oncehouse ")]
    assert others == [["python", "manage.py"]] * 2


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_table_is_moved_as_the_page_tells_it(
    kafka, clickhouse, clickhouse_client, database, topic, produce, spark, tmp_path, monkeypatch, capsys
):
    # Commands in this process join the session that other tests share, and would end it.
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    file, first, export, bring, lacks, has_more, doubled, verify, rename, view = (
        text for _, text in blocks("docs/moving/cut-over.md")
    )
    events = topic()
    url = f"http://127.0.0.1:{clickhouse.place.ports['http']}/{database}"
    fitted = file.replace("localhost:9092", kafka.bootstrap_servers).replace("[events]", f"[{events}]")
    (tmp_path / "pipeline.yaml").write_text(fitted.replace("http://localhost:8123", url), encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    def run(block: str) -> None:
        for line in block.splitlines():
            assert run_command(shlex.split(line, comments=True)[1:]) == 0, capsys.readouterr()

    def ask(statement: str) -> int:
        return clickhouse_client.query(statement, settings={"database": database}).first_row[0]

    def tell(statement: str) -> None:
        clickhouse_client.command(statement, settings={"database": database})

    # The old tool's table: of the first hundred events Kafka has forgotten sixty, and ten are there twice.
    tell(
        "CREATE TABLE events (project String, event_type String, product_id UInt64, price Decimal(18, 2), "
        "created_at DateTime64(3, 'UTC')) ENGINE = MergeTree ORDER BY product_id"
    )
    tell(
        "INSERT INTO events SELECT 'shop', 'view', number % 100, 9.99, '2026-01-01 12:00:00.000' FROM numbers(110)"
    )
    produce(events, [json.dumps(EVENT | {"product_id": number}).encode() for number in range(60, 100)])

    run(first)
    assert ask(lacks) == 70  # rows: sixty events, ten of them twice
    exported = clickhouse_client.raw_query(export, settings={"database": database})
    Path("history").mkdir()
    Path("history/2026-01.parquet").write_bytes(exported)
    run(bring)
    assert (ask(lacks), ask(has_more), ask(doubled)) == (0, 0, 0)
    run(verify)
    tell(rename)
    tell(view)
    assert ask("SELECT count() FROM events") == 100
    assert ask("SELECT count() FROM events_before") == 110
