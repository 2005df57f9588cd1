"""Starting while ClickHouse is away: for a pipeline that has run before, and no other."""

from __future__ import annotations

import pytest

from ledger_examples import IDENTITY
from oncehouse.config import Pipeline
from oncehouse.errors import TransientError
from oncehouse.pipeline import prepare
from oncehouse.pipeline.prepare import demand_ready, open_catalog


@pytest.fixture
def pipeline(tmp_path, monkeypatch) -> Pipeline:
    def find_nobody(_pipeline):
        raise TransientError("ClickHouse does not answer")

    monkeypatch.setattr(prepare, "inspect_tables", find_nobody)
    return Pipeline(
        pipeline="events",
        source={"format": "frame", "fields": {"id": "UInt64"}},
        identity={"fields": ["id"]},
        tables=[{"name": "shop.events"}],
        clickhouse={"url": "http://nowhere:8123"},
        ledger={"catalog": f"sqlite:///{tmp_path}/catalog.db", "files": str(tmp_path / "files")},
    )


@pytest.fixture
def catalog(pipeline):
    catalog = open_catalog(pipeline)
    catalog.prepare()
    yield catalog
    catalog.close()


def test_a_pipeline_that_has_never_run_waits_for_clickhouse_though_others_share_its_catalog(
    pipeline, catalog
):
    with pytest.raises(TransientError, match="does not answer"):
        demand_ready(pipeline, catalog, None, may_wait=True)


def test_a_pipeline_that_has_run_need_not_find_clickhouse_where_it_may_wait(pipeline, catalog, monkeypatch):
    monkeypatch.setattr(prepare, "check_rule", lambda *_: None)
    catalog.adopt(IDENTITY)
    assert not demand_ready(pipeline, catalog, None, may_wait=True)
    with pytest.raises(TransientError, match="does not answer"):
        demand_ready(pipeline, catalog, None)
