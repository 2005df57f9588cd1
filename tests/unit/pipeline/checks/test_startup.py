"""Starting while ClickHouse is away: for a pipeline that has run before, and no other."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from ledger_examples import IDENTITY
from oncehouse.clickhouse.table_info import Column, TableFacts
from oncehouse.config.pipeline import Pipeline
from oncehouse.errors import TransientError
from oncehouse.ledger.models import Lease, Stage
from oncehouse.pipeline.checks import preflight
from oncehouse.pipeline.checks.preflight import open_catalog, require_ready
from oncehouse.pipeline.stages import kafka_stream, supervisor


@pytest.fixture
def pipeline(tmp_path, monkeypatch) -> Pipeline:
    def find_nobody(_pipeline):
        raise TransientError("ClickHouse does not answer")

    monkeypatch.setattr(preflight, "inspect_tables", find_nobody)
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
        require_ready(pipeline, catalog, None, may_wait=True)


def test_a_pipeline_that_has_run_need_not_find_clickhouse_where_it_may_wait(pipeline, catalog, monkeypatch):
    monkeypatch.setattr(preflight, "check_rule", lambda *_: None)
    catalog.adopt(IDENTITY)
    assert not require_ready(pipeline, catalog, None, may_wait=True)
    with pytest.raises(TransientError, match="does not answer"):
        require_ready(pipeline, catalog, None)


MERGING = TableFacts(
    database="shop",
    table="events",
    uuid="",
    engine="ReplacingMergeTree",
    columns=(Column(name="id", type="UInt64", default_kind=""),),
    partition_key="",
    sorting_key="id",
    window_blocks=0,
    window_seconds=None,
    expires_rows=False,
    views=(),
    engine_columns=(),
)


@pytest.fixture
def running(pipeline, catalog, monkeypatch):
    """StageSupervisor of a process that found no ClickHouse; it comes back, first without the table."""

    troubles = iter(["no answer to a ping", None, None, None])
    looks = iter([None, {}, {"shop.events": MERGING}])

    def look(_pipeline):
        if (found := next(looks)) is None:
            raise TransientError("gone again")
        return found

    monkeypatch.setattr(preflight, "connect", lambda _: SimpleNamespace(find_trouble=lambda: next(troubles)))
    monkeypatch.setattr(preflight, "read_tables", look)
    monkeypatch.setattr(supervisor, "_TABLES_SECONDS", 0.001)
    made = supervisor.StageSupervisor(
        pipeline,
        catalog,
        SimpleNamespace(add_epoch=lambda _: None, set_stream=None),
        None,
        stop=threading.Event(),
        say=lambda _: None,
        tables_unseen=True,
    )
    made.spark = None
    made.leases = {
        Stage.INGEST: Lease(pipeline="events", stage=Stage.INGEST, token=1, holder="h", expires_at=0.0)
    }
    return made


@pytest.mark.parametrize("way", ["an epoch", "a request"])
def test_tables_that_come_back_tell_the_next_epoch_and_request_how_they_merge(running, monkeypatch, way):
    ingest = kafka_stream.KafkaIngestStage(running, None, None)
    settled, performed = [], []
    monkeypatch.setattr(
        kafka_stream, "settle", lambda _, known, *rest, **more: settled.append(known.merging_fields)
    )
    monkeypatch.setattr(ingest, "_topic_ids", {}, raising=False)
    monkeypatch.setattr(ingest, "_log", SimpleNamespace(confirm=None), raising=False)
    handler = ingest._handler
    monkeypatch.setattr(handler, "has_work", lambda: True)
    monkeypatch.setattr(handler, "decode_waiting_records", lambda: ())
    monkeypatch.setattr(handler, "perform", lambda: performed.append(handler.pipeline.merging_fields) or ())

    def go_on():
        if way == "an epoch":
            ingest._settle(None, (SimpleNamespace(start=0, end=1),))
        else:
            ingest._perform_requests()

    go_on()
    running._wait_for_tables()
    go_on()
    assert [*settled, *performed] == [(), (("shop.events", "id"),)]


@pytest.mark.parametrize("unseen", [True, False])
def test_a_process_looks_for_tables_that_it_has_not_seen_whatever_stages_it_runs(
    running, monkeypatch, unseen
):
    running.leases = {}
    running._tables_unseen = unseen
    looked = threading.Event()
    monkeypatch.setattr(running, "_wait_for_tables", looked.set)
    monkeypatch.setattr(running, "_keep_reporting", lambda: None)
    quiet = SimpleNamespace(run=lambda *_, **__: None, keep_compact=lambda _: None)
    monkeypatch.setattr(running, "_make_ingest", lambda _: quiet)
    running._work(once=False)
    assert looked.is_set() is unseen
