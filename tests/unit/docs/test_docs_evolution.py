"""The example of docs/evolution.md does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import yaml

from oncehouse.clickhouse.create_table import add_column_ddl
from oncehouse.config.pipeline import Pipeline
from oncehouse.ledger.models import LearnedField
from oncehouse.pipeline.ingest.plan_decoder import make_decoder
from oncehouse.pipeline.ingest.read_plan import read_plan
from oncehouse.pipeline.schema.evolution import new_fields

PAGE = Path(__file__).parents[3] / "docs" / "evolution.md"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_page_shows_the_columns_that_its_messages_bring(catalog):
    source = yaml.safe_load(blocks("yaml")[0])["source"]
    pipeline = Pipeline(
        pipeline="events",
        source={"kafka": {"bootstrap_servers": "127.0.0.1:9", "topics": ["events"]}, **source},
        identity={"fields": ["id"]},
        tables=[{"name": "events"}],
        clickhouse={"url": "http://127.0.0.1:9"},
        ledger={"catalog": "sqlite:///c.db", "files": "files"},
    )
    decoder = make_decoder(read_plan(pipeline, catalog, epoch=1, token=1, whole=True))
    messages = pa.array([line.encode() for line in blocks("json")[0].splitlines()], pa.binary())
    decoded = decoder.decode(pa.record_batch({"value": messages}))
    found = new_fields(pipeline, [], [], decoded.new_fields)
    statements = [add_column_ddl("events", name, type_) for name, type_ in found.items() if type_ is not None]
    assert statements == blocks("sql")[0].splitlines()
    assert [name for name, type_ in found.items() if type_ is None] == ["cart"]
    assert decoded.rows.num_rows == 3
    known = [LearnedField(field=name, type=type_) for name, type_ in found.items()]
    assert new_fields(pipeline, known, [], decoded.new_fields) == {}
