"""DataFrames and files write a pipeline as Kafka does: the fields by which its tables merge rows must be there too."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from oncehouse import Sink
from oncehouse.clickhouse.table_info import Column, TableFacts
from oncehouse.config import Pipeline
from oncehouse.errors import ConfigurationError
from oncehouse.ledger.models import FileFormat
from oncehouse.pipeline import run
from oncehouse.pipeline.checks import preflight, startup
from oncehouse.pipeline.external import file_import, sink
from oncehouse.pipeline.external.dataframe_ingest import choose_columns
from oncehouse.pipeline.external.file_import import import_files, make_job
from oncehouse.pipeline.ingest.read_plan import build_read_plan

FIELDS = {"id": "UInt64", "customer": "Nullable(String)", "note": "Nullable(String)"}
MERGING = TableFacts(
    database="shop",
    table="events",
    uuid="",
    engine="ReplacingMergeTree",
    columns=(Column(name="customer", type="Nullable(String)", default_kind=""),),
    partition_key="",
    sorting_key="customer",
    window_blocks=0,
    window_seconds=None,
    expires_rows=False,
    views=(),
    engine_columns=(),
)


def make_pipeline(folder, **source) -> Pipeline:
    return Pipeline(
        pipeline="events",
        source={"format": "frame", "fields": FIELDS, **source},
        identity={"fields": ["id"]},
        tables=[{"name": "shop.events"}],
        clickhouse={"url": "http://nowhere:8123"},
        ledger={"catalog": f"sqlite:///{folder}/catalog.db", "files": str(folder / "files")},
    )


@pytest.fixture
def started(monkeypatch):
    """The pipelines of the stages that were started."""
    found = []

    def make(pipeline, *_, **__):
        found.append(pipeline)
        raise ConfigurationError("far enough")

    monkeypatch.setattr(preflight, "read_tables", lambda _: {"shop.events": MERGING})
    monkeypatch.setattr(startup, "require_ready", lambda *_, **__: True)
    monkeypatch.setattr(startup, "adopt", lambda *_: None)
    for module in (file_import, run, sink):
        monkeypatch.setattr(module, "StageSupervisor", make)
    return found


def import_one(pipeline):
    file = Path(pipeline.ledger.files).parent / "one.csv"
    file.write_text("id\n1\n")
    return import_files(pipeline, make_job(str(file), FileFormat.CSV))


@pytest.mark.parametrize(
    "start", [run.run_pipeline, import_one, lambda pipeline: Sink.open(pipeline, spark=SimpleNamespace())]
)
def test_a_process_that_writes_a_pipeline_knows_how_its_tables_merge_rows(tmp_path, started, start):
    pipeline = make_pipeline(tmp_path)
    with pytest.raises(ConfigurationError, match="far enough"):
        start(pipeline)
    assert [known.merging_fields for known in started] == [(("shop.events", "customer"),)]


@pytest.mark.parametrize("optional", [False, True])
def test_a_frame_needs_the_column_by_which_a_table_merges_rows(tmp_path, optional):
    pipeline = make_pipeline(tmp_path, optional_fields=["customer"] if optional else [])
    plan = build_read_plan(
        pipeline.with_merging_fields([("shop.events", "customer")]), (), epoch=1, token=1, whole=False
    )
    frame = SimpleNamespace(
        sparkSession=SimpleNamespace(sparkContext=None), columns=["id"], select=lambda *names: names
    )
    if optional:
        assert choose_columns(plan.fields, frame, needed=plan.needed_columns) == ("`id`",)
    else:
        with pytest.raises(
            ConfigurationError, match=r"customer, .* which decides which rows shop.events merges"
        ):
            choose_columns(plan.fields, frame, needed=plan.needed_columns)
