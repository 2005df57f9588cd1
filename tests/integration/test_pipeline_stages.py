"""Stages in processes of their own: each needs only what it works with, and together they do the whole."""

from __future__ import annotations

import io
import json
import subprocess
import threading
from pathlib import Path

import pytest

from live_pipeline import make_event, wait_until
from oncehouse.common import structured_logging
from oncehouse.common.structured_logging import LogFormat
from oncehouse.errors import ConfigurationError, CorruptFileError
from oncehouse.ledger.catalog import epochs, leases, segments
from oncehouse.ledger.models import Stage
from oncehouse.pipeline.dedup import index_compaction as compacting
from oncehouse.pipeline.run import run_pipeline

EVENTS = [make_event(number) for number in range(120)]


def test_what_one_process_reads_another_loads_without_kafka(live_pipeline):
    live_pipeline.send([*EVENTS, *EVENTS[:20]])
    live_pipeline.run(only=[Stage.INGEST])
    assert epochs.list_epochs(live_pipeline.catalog)
    assert not live_pipeline.batches()
    assert not live_pipeline.rows()
    live_pipeline.document["source"]["kafka"]["bootstrap_servers"] = "127.0.0.1:9"
    live_pipeline.run(only=[Stage.LOAD])
    live_pipeline.run(only=[Stage.RETENTION])
    live_pipeline.assert_table(live_pipeline.table, live_pipeline.expected)
    assert {lease.stage: lease.token for lease in leases.list_leases(live_pipeline.catalog)} == {
        Stage.INGEST: 1,
        Stage.LOAD: 1,
        Stage.RETENTION: 1,
    }


def test_log_lines_name_pipeline_epoch_and_batch(live_pipeline):
    live_pipeline.send([*EVENTS[:10], EVENTS[0]])
    stream = io.StringIO()
    structured_logging.start(LogFormat.JSON, stream)
    structured_logging.add_process_fields(pipeline=live_pipeline.pipeline.pipeline)
    try:
        live_pipeline.run()
    finally:
        structured_logging.stop()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert {line["pipeline"] for line in lines} == {live_pipeline.pipeline.pipeline}
    told = {line["message"]: line for line in lines}
    settled, loaded = told["epoch settled"], told["batch loaded"]
    assert (settled["epoch"], settled["new"], settled["duplicate"], settled["kind"]) == (1, 10, 1, "kafka")
    (batch,) = live_pipeline.batches()
    assert (loaded["batch"], loaded["table"], loaded["rows"]) == (batch.batch_id, batch.table, 10)
    assert {line["stage"] for line in lines if line["message"] == "lease taken"} == set(Stage)


@pytest.mark.long
def test_a_run_and_the_workers_of_spark_write_log_lines(live_pipeline, tmp_path):
    (tmp_path / "shaping.py").write_text(
        "import logging\n\n\ndef look(table):\n"
        "    logging.getLogger('shop.shaping').warning('saw %s rows', table.num_rows)\n    return table\n"
    )
    live_pipeline.document["shape"] = {"function": {"file": str(tmp_path / "shaping.py"), "name": "look"}}
    live_pipeline.send(EVENTS[:10])
    command = live_pipeline.command("--once", "--log-format", "json")
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert not done.stdout, "the numbers are log lines too"
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert {line["pipeline"] for line in lines} == {live_pipeline.pipeline.pipeline}
    assert {"epoch settled", "batch loaded", "progress"} <= {line["message"] for line in lines}
    log = Path(live_pipeline.pipeline.ledger.files) / live_pipeline.pipeline.pipeline / "spark.log"
    told = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    (shaped,) = [line for line in told if line["logger"] == "shop.shaping"]
    assert (shaped["message"], shaped["pipeline"], shaped["epoch"]) == (
        "saw 10 rows",
        live_pipeline.pipeline.pipeline,
        1,
    )


def test_stages_side_by_side_hold_leases_of_their_own(live_pipeline):
    stop = threading.Event()
    failures: list[BaseException] = []

    def run(*only: Stage) -> None:
        try:
            run_pipeline(live_pipeline.pipeline, only=only, stop=stop, spark=live_pipeline.spark)
        except BaseException as error:  # noqa: BLE001 - told below, on the test's own thread
            failures.append(error)

    threads = [
        threading.Thread(target=run, args=asked) for asked in ((Stage.INGEST,), (Stage.LOAD, Stage.RETENTION))
    ]
    live_pipeline.send(EVENTS[:60])
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(live_pipeline.rows()) >= 60 or failures, "the first rows")
        live_pipeline.send(EVENTS[30:])
        wait_until(lambda: len(live_pipeline.rows()) >= len(EVENTS) or failures, "all rows")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures
    live_pipeline.assert_exact()


def test_a_pipeline_of_dataframes_has_no_ingest_to_run(live_pipeline):
    live_pipeline.document["source"] = {
        "format": "frame",
        "fields": live_pipeline.document["source"]["fields"],
    }
    with pytest.raises(ConfigurationError, match="no stage ingest of its own"):
        run_pipeline(live_pipeline.pipeline, only=[Stage.INGEST])


@pytest.fixture
def many_segments(make_pipeline, monkeypatch):
    """A pipeline with enough small segments for a merge, which ingest itself has not made: two are too few for it."""
    live_pipeline = make_pipeline(epoch={"max_rows": 40, "max_wait": 0.1})
    for start in (0, 40):
        live_pipeline.send(EVENTS[start : start + 40])
        live_pipeline.run(only=[Stage.INGEST])
    monkeypatch.setattr(compacting, "FAN_IN", 2)
    return live_pipeline


def lose_a_segment(live_pipeline) -> str:
    segment = segments.list_segments(live_pipeline.catalog)[0]
    (Path(live_pipeline.store.root) / segment.file.path).unlink()
    return segment.segment


def test_a_merge_is_given_up_when_retention_of_another_process_dropped_a_segment(many_segments, monkeypatch):
    live_pipeline = many_segments
    run_tasks = compacting.run_tasks

    def drop_first(spark, task, plans):
        gone = lose_a_segment(live_pipeline)
        with live_pipeline.leases() as (catalog, tokens):
            segments.replace_segments(catalog, tokens[Stage.INGEST], old=[gone], new=[])
        return run_tasks(spark, task, plans)

    with live_pipeline.leases() as (catalog, tokens), monkeypatch.context() as patched:
        patched.setattr(compacting, "run_tasks", drop_first)
        before = len(segments.list_segments(catalog))
        compacting.compact(live_pipeline.spark, live_pipeline.pipeline, catalog, tokens[Stage.INGEST])
        assert len(segments.list_segments(catalog)) == before - 1


def test_a_segment_that_is_lost_stops_a_merge_by_name(many_segments):
    lose_a_segment(many_segments)
    with pytest.raises(CorruptFileError):
        many_segments.compact()
