"""Transforms on the whole pipeline: the example of the docs, a look-up that changes, corrected dead letters."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from live_pipeline import LivePipeline
from oncehouse.ledger.catalog import epochs
from oncehouse.ledger.models import EpochKind, RequestKind
from oncehouse.pipeline.checks.preflight import inspect_sample
from oncehouse.pipeline.ingest.kafka_source import KafkaTopics
from oncehouse.pipeline.requests.dead_letter_replay import read_dead_letters

DOCS = Path(__file__).parents[2] / "docs" / "transforms.md"


def read_blocks() -> dict[str, str]:
    """The blocks of the docs that carry a name."""
    found = re.findall(r"<!-- (\S+) -->\n```\w*\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    return dict(found)


def letters(live_pipeline: LivePipeline) -> list[dict]:
    files = [found.file for found in epochs.list_dead_letter_files(live_pipeline.catalog)]
    return read_dead_letters(live_pipeline.store, files).to_pylist()


@pytest.fixture
def example(make_pipeline, tmp_path) -> LivePipeline:
    blocks = read_blocks()
    document = yaml.safe_load(blocks["pipeline.yaml"])
    for name in ("products.csv", "sizes.py"):
        (tmp_path / name).write_text(blocks[name])
    live_pipeline = make_pipeline(tables=False)
    for table in document["tables"]:
        table["name"] = table["name"].replace("shop.", f"{live_pipeline.database}.")
    shape = document["shape"]
    shape["lookups"]["products"]["file"] = str(tmp_path / "products.csv")
    shape["function"]["file"] = str(tmp_path / "sizes.py")
    live_pipeline.document["source"]["fields"] = document["source"]["fields"]
    live_pipeline.document["identity"]["fields"] = document["identity"]["fields"]
    live_pipeline.document |= {"shape": shape, "tables": document["tables"]}
    live_pipeline.create_tables()
    return live_pipeline


def list_rows(live_pipeline: LivePipeline) -> list[list[str]]:
    found = []
    for table in live_pipeline.pipeline.tables:
        columns = ", ".join(f"ifNull(toString({name}), 'NULL')" for name in table.columns or ())
        rows = live_pipeline.client.query(f"SELECT {columns} FROM {table.name} ORDER BY event_id").result_rows
        found += [[table.name.replace(f"{live_pipeline.database}.", "shop."), *row] for row in rows]
    return found


def expected_rows() -> list[list[str]]:
    rows = [re.split(r"\s{2,}", line) for line in read_blocks()["results"].splitlines()]
    # ClickHouse writes decimals without the zeros at their end.
    return [[re.sub(r"(\.\d*?)0+$", r"\1", cell).removesuffix(".") for cell in row] for row in rows]


def test_the_example_of_the_docs_and_what_becomes_of_it_later(example, tmp_path):
    live_pipeline = example
    live_pipeline.send_raw([line.encode() for line in read_blocks()["events"].splitlines()])
    # `check` shapes a sample as a task would, and leaves nothing behind.
    sample, *_ = inspect_sample(
        live_pipeline.pipeline, live_pipeline.catalog, KafkaTopics(live_pipeline.pipeline.source.kafka)
    )
    assert sample.what == "of the 6 newest records 1 would be dead letters"
    assert not list(live_pipeline.store.walk("live/lookups/"))
    with live_pipeline.start() as running:
        running.wait_for_rows(2, f"{live_pipeline.database}.sales")
        running.wait_for_rows(2, f"{live_pipeline.database}.clicks")
        running.wait_for_rows(1, f"{live_pipeline.database}.large")
        assert list_rows(live_pipeline) == expected_rows()

        # A look-up that changes is taken up by a later epoch of the same run; what was loaded stays.
        (tmp_path / "next.csv").write_text("product_id,name,rate\n7,ant hill,2.0000\n9,wasp nest,1.0000\n")
        (tmp_path / "next.csv").rename(tmp_path / "products.csv")
        later = (
            '{"event_id": %d, "event_type": "click", "ts": "2026-03-03T00:00:00Z", "product_id": %d, '
            '"price": "1.00", "pieces": 1}'
        )
        live_pipeline.send_raw(
            [(later % (7, 7)).encode(), (later % (8, 9)).encode(), (later % (6, 9)).encode()]
        )
        running.wait_for_rows(4, f"{live_pipeline.database}.clicks")
    clicks = [row[1:4:2] for row in list_rows(live_pipeline) if row[0] == "shop.clicks"]
    assert clicks == [["1", "ant farm"], ["6", "NULL"], ["7", "ant hill"], ["8", "wasp nest"]]
    counts = live_pipeline.counts()
    assert (counts.skipped, counts.dead_letter, counts.duplicate) == (1, 1, 1)

    # The row that failed alone is a letter, and becomes a row once the expression is right.
    (letter,) = letters(live_pipeline)
    assert (letter["reason"], letter["offset"]) == ("not_shaped", 4)
    assert letter["detail"].startswith("a_piece: ")
    assert "inf" in letter["detail"]
    live_pipeline.document["shape"]["columns"]["a_piece"]["sql"] = (
        "CAST(coalesce(price / nullif(pieces, 0), 0) AS DECIMAL(10, 2))"
    )
    assert "new 1" in live_pipeline.request(RequestKind.REPLAY_DEAD_LETTERS)
    assert ["shop.clicks", "5", "2026-03-02", "ant hill", "small"] in list_rows(live_pipeline)
    assert not letters(live_pipeline)
    assert live_pipeline.counts(EpochKind.REPLAY).new == 1

    # A table that comes later is filled by its own expression, with today's look-up.
    name = f"{live_pipeline.database}.known"
    live_pipeline.document["tables"].append(
        {
            "name": name,
            "columns": {"event_id": "event_id", "product": "product"},
            "route": {"where": "product IS NOT NULL AND products.rate < 2"},
        }
    )
    live_pipeline.create_tables(name)
    live_pipeline.request(RequestKind.REFILL_TABLE, table=name)
    rows = live_pipeline.client.query(f"SELECT event_id, product FROM {name} ORDER BY event_id").result_rows
    assert rows == [(6, "wasp nest"), (8, "wasp nest")]
    live_pipeline.assert_settled()
    assert len(list(live_pipeline.store.walk("live/lookups/"))) <= 3
    live_pipeline.retain()
