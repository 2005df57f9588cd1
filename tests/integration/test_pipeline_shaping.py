"""Shaping on the whole road: the example of the docs, a look-up that changes, letters that are corrected."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from oncehouse.ledger.catalog import epochs
from oncehouse.ledger.models import EpochKind, RequestKind
from oncehouse.pipeline.checks.preflight import inspect_sample
from oncehouse.pipeline.ingest.kafka_source import Topics
from oncehouse.pipeline.requests.dead_letter_replay import read_letters
from road import Road

DOCS = Path(__file__).parents[2] / "docs" / "shaping.md"


def read_blocks() -> dict[str, str]:
    """The blocks of the docs that carry a name."""
    found = re.findall(r"<!-- (\S+) -->\n```\w*\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    return dict(found)


def letters(road: Road) -> list[dict]:
    files = [found.file for found in epochs.list_dead_letter_files(road.catalog)]
    return read_letters(road.store, files).to_pylist()


@pytest.fixture
def example(make_road, tmp_path) -> Road:
    blocks = read_blocks()
    document = yaml.safe_load(blocks["pipeline.yaml"])
    for name in ("products.csv", "sizes.py"):
        (tmp_path / name).write_text(blocks[name])
    road = make_road(tables=False)
    for table in document["tables"]:
        table["name"] = table["name"].replace("shop.", f"{road.database}.")
    shape = document["shape"]
    shape["lookups"]["products"]["file"] = str(tmp_path / "products.csv")
    shape["function"]["file"] = str(tmp_path / "sizes.py")
    road.document["source"]["fields"] = document["source"]["fields"]
    road.document["identity"]["fields"] = document["identity"]["fields"]
    road.document |= {"shape": shape, "tables": document["tables"]}
    road.create_tables()
    return road


def list_rows(road: Road) -> list[list[str]]:
    found = []
    for table in road.pipeline.tables:
        columns = ", ".join(f"ifNull(toString({name}), 'NULL')" for name in table.columns or ())
        rows = road.client.query(f"SELECT {columns} FROM {table.name} ORDER BY event_id").result_rows
        found += [[table.name.replace(f"{road.database}.", "shop."), *row] for row in rows]
    return found


def expected_rows() -> list[list[str]]:
    rows = [re.split(r"\s{2,}", line) for line in read_blocks()["results"].splitlines()]
    # ClickHouse writes decimals without the zeros at their end.
    return [[re.sub(r"(\.\d*?)0+$", r"\1", cell).removesuffix(".") for cell in row] for row in rows]


def test_the_example_of_the_docs_and_what_becomes_of_it_later(example, tmp_path):
    road = example
    road.send_raw([line.encode() for line in read_blocks()["events"].splitlines()])
    # `check` shapes a sample as a task would, and leaves nothing behind.
    sample, *_ = inspect_sample(road.pipeline, road.catalog, Topics(road.pipeline.source.kafka))
    assert sample.what == "of the 6 newest records 1 would be dead letters"
    assert not list(road.store.walk("road/lookups/"))
    with road.start() as running:
        running.wait_for_rows(2, f"{road.database}.sales")
        running.wait_for_rows(2, f"{road.database}.clicks")
        running.wait_for_rows(1, f"{road.database}.large")
        assert list_rows(road) == expected_rows()

        # A look-up that changes is taken up by a later epoch of the same run; what was loaded stays.
        (tmp_path / "next.csv").write_text("product_id,name,rate\n7,ant hill,2.0000\n9,wasp nest,1.0000\n")
        (tmp_path / "next.csv").rename(tmp_path / "products.csv")
        later = (
            '{"event_id": %d, "event_type": "click", "ts": "2026-03-03T00:00:00Z", "product_id": %d, '
            '"price": "1.00", "pieces": 1}'
        )
        road.send_raw([(later % (7, 7)).encode(), (later % (8, 9)).encode(), (later % (6, 9)).encode()])
        running.wait_for_rows(4, f"{road.database}.clicks")
    clicks = [row[1:4:2] for row in list_rows(road) if row[0] == "shop.clicks"]
    assert clicks == [["1", "ant farm"], ["6", "NULL"], ["7", "ant hill"], ["8", "wasp nest"]]
    counts = road.counts()
    assert (counts.skipped, counts.dead_letter, counts.duplicate) == (1, 1, 1)

    # The row that failed alone is a letter, and becomes a row once the expression is right.
    (letter,) = letters(road)
    assert (letter["reason"], letter["offset"]) == ("not_shaped", 4)
    assert letter["detail"].startswith("a_piece: ")
    assert "inf" in letter["detail"]
    road.document["shape"]["columns"]["a_piece"]["sql"] = (
        "CAST(coalesce(price / nullif(pieces, 0), 0) AS DECIMAL(10, 2))"
    )
    assert "new 1" in road.request(RequestKind.REPLAY_DEAD_LETTERS)
    assert ["shop.clicks", "5", "2026-03-02", "ant hill", "small"] in list_rows(road)
    assert not letters(road)
    assert road.counts(EpochKind.REPLAY).new == 1

    # A table that comes later is filled by its own expression, with today's look-up.
    name = f"{road.database}.known"
    road.document["tables"].append(
        {
            "name": name,
            "columns": {"event_id": "event_id", "product": "product"},
            "route": {"where": "product IS NOT NULL AND products.rate < 2"},
        }
    )
    road.create_tables(name)
    road.request(RequestKind.REFILL_TABLE, table=name)
    rows = road.client.query(f"SELECT event_id, product FROM {name} ORDER BY event_id").result_rows
    assert rows == [(6, "wasp nest"), (8, "wasp nest")]
    road.assert_settled()
    assert len(list(road.store.walk("road/lookups/"))) <= 3
    road.retain()
