"""Tasks that die and tasks that run twice: what Spark runs again changes nothing, and its leavings are swept.

Workers and executors die right after they have written their files or sent their INSERT and before anybody has heard
of it: the worst moment, every time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from task_faults import lose_first_worker

from live_pipeline import LivePipeline, make_event
from oncehouse.devstack.chaos.injected_defects import without_token
from oncehouse.pipeline.ingest import epoch
from oncehouse.pipeline.ingest.manifest import TaskManifest
from oncehouse.pipeline.load import insert_task
from oncehouse.pipeline.stages import kafka_stream

EVENTS = [make_event(number) for number in range(150)]


def go_through(live_pipeline: LivePipeline) -> None:
    """Two epochs and two batches, duplicates among them."""
    for events in (EVENTS[:90], EVENTS[60:]):
        live_pipeline.send(events)
        live_pipeline.run()
    judge(live_pipeline)


def judge(live_pipeline: LivePipeline) -> None:
    live_pipeline.assert_exact()
    before = live_pipeline.ledger_files()
    live_pipeline.retain()
    live_pipeline.assert_swept()
    assert before > live_pipeline.ledger_files(), "those that were run again must have left something"


@pytest.mark.scenario("Python worker killed")
def test_a_python_worker_killed_in_the_middle_is_replaced(make_pipeline, kill_workers):
    live_pipeline = make_pipeline(epoch={"max_rows": 30})
    live_pipeline.send(EVENTS)
    with live_pipeline.start() as running:
        running.wait_for_rows(1)
        assert kill_workers(), "there must be workers to kill"
        running.wait_for_rows(len(EVENTS))
    live_pipeline.assert_exact()


@pytest.fixture
def dying_workers(monkeypatch) -> None:
    """Every read, decide and load task loses its first worker when the work is done."""
    monkeypatch.setattr(epoch, "read_records", lose_first_worker(epoch.read_records))
    monkeypatch.setattr(epoch, "decide_task", lose_first_worker(epoch.decide_task))
    monkeypatch.setattr(insert_task, "send_batch", lose_first_worker(insert_task.send_batch))


@pytest.mark.scenario("Python worker killed")
def test_workers_killed_before_they_told_what_they_did_leave_one_copy(live_pipeline, dying_workers):
    go_through(live_pipeline)


@pytest.mark.defect("Python worker killed")
def test_a_second_attempt_that_adds_to_the_first_is_noticed(
    live_pipeline, dying_workers, tmp_path, monkeypatch
):
    """The driver takes what it finds in a folder, instead of what the attempt that ended well has told."""
    read_dataframe, folder = kafka_stream.read_dataframe, tmp_path / "manifests"
    folder.mkdir()

    def tell_in_folder(plan, attempt, blocks):
        from oncehouse.pipeline.ingest.read_task import read_records

        manifest = read_records(plan, attempt, blocks)
        (folder / f"{plan.epoch} {attempt}").write_text(manifest.to_json())
        return manifest

    def read_from_folder(frame, plan):
        read_dataframe(frame, plan)
        return [TaskManifest.from_json(found.read_text()) for found in folder.glob(f"{plan.epoch} *")]

    monkeypatch.setattr(epoch, "read_records", lose_first_worker(tell_in_folder))
    monkeypatch.setattr(kafka_stream, "read_dataframe", read_from_folder)
    with pytest.raises(AssertionError, match=r"180 records were sent, .*read=360"):
        go_through(live_pipeline)


@pytest.fixture
def tasks_run_thrice(monkeypatch) -> None:
    """Every task has a copy that runs beside it, and one that runs after both; the last one is believed."""
    run_tasks, read_dataframe = epoch.run_tasks, kafka_stream.read_dataframe

    def run_thrice(spark, work, plans):
        run_tasks(spark, work, [plan for plan in plans for _ in range(2)])
        return run_tasks(spark, work, plans)

    def read_twice(frame, plan):
        read_dataframe(frame, plan)
        return read_dataframe(frame, plan)

    monkeypatch.setattr(epoch, "run_tasks", run_thrice)
    monkeypatch.setattr(insert_task, "run_tasks", run_thrice)
    monkeypatch.setattr(kafka_stream, "read_dataframe", read_twice)


@pytest.mark.scenario("task run twice")
def test_tasks_that_run_beside_and_after_their_copies_leave_one_copy(live_pipeline, tasks_run_thrice):
    go_through(live_pipeline)


@pytest.mark.defect("task run twice")
def test_an_insert_without_token_that_is_sent_by_two_tasks_is_noticed(
    live_pipeline, tasks_run_thrice, monkeypatch
):
    monkeypatch.setattr(insert_task, "send_batch", without_token(insert_task.send_batch))
    with pytest.raises(AssertionError, match="rows are doubled"):
        go_through(live_pipeline)


@pytest.fixture
def speculating_pipeline(make_pipeline, spark_cluster) -> LivePipeline:
    """Its tasks run in executors of their own, two of them, and slow ones twice."""
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "2",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.speculation.task.duration.threshold": "500ms",
        "spark.speculation.efficiency.enabled": "false",
    }
    return make_pipeline(partitions=2, spark={"master": spark_cluster.url, "settings": settings})


def run_on_cluster(live_pipeline: LivePipeline, faults: str, marks: Callable[[Path], list[Path]]) -> None:
    live_pipeline.send(EVENTS[:90])
    live_pipeline.send(EVENTS[60:], partition=1)
    process = live_pipeline.spawn("--once", defect=faults)
    try:
        code = process.wait(timeout=480)
    finally:
        process.kill()
        process.wait()
    assert code == 0, live_pipeline.log()[-3000:]
    assert all(mark.exists() for mark in marks(live_pipeline.folder)), "nothing happened to the tasks"
    judge(live_pipeline)


def killed(folder: Path) -> list[Path]:
    return [folder / f"{name}.killed" for name in ("read", "decide", "load")]


def overtaken(folder: Path) -> list[Path]:
    return [folder / f"{name}.late" for name in ("read", "decide", "load")]


@pytest.mark.scenario("executor killed")
def test_executors_killed_before_they_told_what_they_did_leave_one_copy(speculating_pipeline):
    run_on_cluster(speculating_pipeline, "executors die", killed)


@pytest.mark.defect("executor killed")
def test_an_insert_without_token_that_a_new_executor_repeats_is_noticed(speculating_pipeline):
    with pytest.raises(AssertionError, match="rows are doubled"):
        run_on_cluster(speculating_pipeline, "no token,executors die", killed)


@pytest.mark.scenario("task run twice")
def test_a_slow_task_and_the_copy_that_spark_makes_of_it_leave_one_copy(speculating_pipeline):
    run_on_cluster(speculating_pipeline, "tasks overtaken", overtaken)
