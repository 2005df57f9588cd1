"""The pipeline on a Spark cluster of one master and two workers, its catalog in PostgreSQL and its files in a bucket.

Executors and whole machines die right after they have done their work and before anybody has heard of it; a driver dies
in the middle, and another one that waited takes over.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import oncehouse
from live_pipeline import LivePipeline, make_event, wait_until
from oncehouse.devstack.subprocesses import signal_tree
from oncehouse.ledger.catalog import leases
from oncehouse.pipeline.spark.environment_bundle import write_bundle

EVENTS = [make_event(number) for number in range(150)]
CACHE_BYTES = 1 << 20
# A driver and two executors start on cores that others may want too.
STARTING_SECONDS = 900.0
pytestmark = pytest.mark.timeout(2400)


def send_duplicates(live_pipeline: LivePipeline) -> None:
    live_pipeline.send(EVENTS[:90])
    live_pipeline.send(EVENTS[60:], partition=1)


@contextmanager
def driver(live_pipeline: LivePipeline, *arguments: str, **options: str) -> Iterator[subprocess.Popen[str]]:
    """A driver of its own; with the block ends whatever is left of it."""
    process = live_pipeline.spawn(*arguments, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            signal_tree(process.pid, signal.SIGKILL)
        process.wait()


def drain(live_pipeline: LivePipeline, faults: str = "") -> int:
    with driver(live_pipeline, "--once", defect=faults) as process:
        return process.wait(timeout=STARTING_SECONDS)


def play(live_pipeline: LivePipeline, faults: str, mark: str) -> None:
    send_duplicates(live_pipeline)
    code = drain(live_pipeline, faults)
    assert code == 0, live_pipeline.log()[-3000:]
    assert (live_pipeline.folder / f"{mark}.killed").exists(), "nothing happened to the tasks"
    live_pipeline.assert_exact()


def cached_bytes(stack, worker: str) -> list[int]:
    """The size of each copy that a machine keeps of the bucket's files."""
    scratch = stack.folder / worker / "tmp"
    return [
        path.stat().st_size for path in scratch.glob("oncehouse-cache-*/*") if not path.name.startswith(".")
    ]


@pytest.mark.scenario("executor killed")
def test_on_a_cluster_an_executor_killed_after_its_insert_leaves_one_copy(cluster_pipeline, stack):
    play(cluster_pipeline, "loading executor dies", "load")
    kept = [cached_bytes(stack, worker) for worker in ("spark-worker-1", "spark-worker-2")]
    assert any(kept), "executors keep copies of what they read"
    assert all(sum(copies) <= CACHE_BYTES for copies in kept)


@pytest.mark.scenario("executor killed")
def test_on_a_cluster_executors_killed_at_every_stage_leave_one_copy_and_their_leavings_are_swept(
    cluster_pipeline,
):
    play(cluster_pipeline, "executors die", "read")
    assert all((cluster_pipeline.folder / f"{name}.killed").exists() for name in ("decide", "load"))
    before = cluster_pipeline.ledger_files()
    cluster_pipeline.retain()
    cluster_pipeline.assert_swept()
    assert before > cluster_pipeline.ledger_files(), "those that were run again must have left something"


@pytest.mark.scenario("worker machine killed")
@pytest.mark.parametrize(
    ("stage", "mark"), [("reading", "read"), ("deciding", "decide"), ("loading", "load")]
)
def test_a_machine_killed_with_its_executors_is_done_without(cluster_pipeline, stack, stage, mark):
    play(cluster_pipeline, f"{stage} machine dies", mark)
    alive = [worker for worker in ("spark-worker-1", "spark-worker-2") if stack.process(worker)]
    assert len(alive) == 1, "one of two machines is dead"


@pytest.mark.defect("worker machine killed")
def test_an_insert_without_token_that_another_machine_repeats_is_noticed(cluster_pipeline):
    with pytest.raises(AssertionError, match="rows are doubled"):
        play(cluster_pipeline, "no token,loading machine dies", "load")


@pytest.mark.scenario("dead driver is followed in time")
def test_on_a_cluster_a_dead_driver_is_followed_by_one_that_waited(cluster_pipeline):
    """As if on two machines, where the second cannot see the death of the first."""
    live_pipeline = cluster_pipeline
    live_pipeline.send(EVENTS[:60])
    with driver(live_pipeline, defect="elsewhere") as first:
        wait_until(
            lambda: live_pipeline.rows() or first.poll() is not None,
            "the first driver at work",
            seconds=STARTING_SECONDS,
        )
        with driver(live_pipeline, defect="elsewhere") as second:
            wait_until(lambda: "Waiting." in live_pipeline.log(), "the second driver to wait")
            live_pipeline.send(EVENTS[30:], partition=1)
            signal_tree(first.pid, signal.SIGKILL)
            first.wait()
            wait_until(
                lambda: len(live_pipeline.rows()) >= len(EVENTS) or second.poll() is not None,
                "the second driver to go on",
                seconds=STARTING_SECONDS,
            )
            assert {lease.token for lease in leases.list_leases(live_pipeline.catalog)} == {2}
            second.send_signal(signal.SIGTERM)
            assert second.wait(timeout=90) == 0, live_pipeline.log()[-3000:]
    live_pipeline.assert_exact()


def wrap_python(folder: Path, python: str, path: Path) -> str:
    """A Python as an executor's machine might have it: this one, or another, with these packages first."""
    wrapper = folder / "python"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH="{path}:$PYTHONPATH" exec {python} "$@"\n')
    wrapper.chmod(0o755)
    return str(wrapper)


def refuse(live_pipeline: LivePipeline, python: str) -> str:
    """What a driver says that was refused by the look at its executors."""
    live_pipeline.document["spark"]["settings"]["spark.pyspark.python"] = python
    return end_early(live_pipeline, code=2)


def end_early(live_pipeline: LivePipeline, code: int, faults: str = "") -> str:
    """What a driver says that ends before it has read anything."""
    live_pipeline.send(EVENTS[:1])
    assert drain(live_pipeline, faults) == code, live_pipeline.log()[-3000:]
    assert not live_pipeline.rows(), "nothing was read or written"
    assert "Traceback" not in live_pipeline.log()
    return live_pipeline.log()


@pytest.mark.long
def test_a_master_that_is_away_is_told_at_once(cluster_pipeline):
    with socket.create_server(("127.0.0.1", 0)) as server:
        master = f"spark://127.0.0.1:{server.getsockname()[1]}"
    cluster_pipeline.document["spark"]["master"] = master
    assert f"No Spark master answers at {master} (127.0.0.1: Connection refused)" in end_early(
        cluster_pipeline, code=75
    )


@pytest.mark.long
def test_a_cluster_without_machines_large_enough_is_told_and_left(cluster_pipeline):
    cluster_pipeline.document["spark"]["settings"]["spark.executor.memory"] = "2g"
    said = end_early(cluster_pipeline, code=75, faults="soon impatient")
    assert "no executor yet. Waiting." in said
    assert "Look whether it has machines that are free and large enough" in said


@pytest.mark.long
def test_executors_whose_python_lacks_the_packages_are_refused(cluster_pipeline, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {tmp_path}/bare/bin/python -E "$@"\n')
    bare.chmod(0o755)
    assert " has no oncehouse in its Python. Install the same on every machine" in refuse(
        cluster_pipeline, str(bare)
    )


@pytest.mark.long
def test_an_executor_with_another_oncehouse_is_refused_and_named(cluster_pipeline, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(Path(oncehouse.__file__).parent, other / "oncehouse")
    with (other / "oncehouse" / "errors.py").open("a") as module:
        module.write("# changed\n")
    said = refuse(cluster_pipeline, wrap_python(tmp_path, sys.executable, other))
    assert "differs from the driver: oncehouse " in said
    assert "oncehouse bundle" in said


@pytest.mark.long
def test_an_executor_with_another_python_is_refused_and_named(cluster_pipeline, tmp_path):
    found = sorted(Path.home().glob(".pyenv/versions/3.1[234]*/bin/python"))
    if not found:
        pytest.skip("there is no second Python on this machine")
    said = refuse(cluster_pipeline, wrap_python(tmp_path, str(found[0]), tmp_path))
    assert "differs from the driver: " in said
    assert "python 3.1" in said


@pytest.mark.long
def test_an_executor_without_the_drivers_python_is_refused_and_named(cluster_pipeline):
    said = refuse(cluster_pipeline, "/nowhere/python")
    assert "cannot start /nowhere/python: there is no such Python on its machine" in said


@pytest.mark.long
def test_executors_without_the_ledgers_folder_are_refused(cluster_pipeline, tmp_path):
    """A folder that each machine has for itself: what the driver writes there, nobody else sees."""
    hidden = tmp_path / "hidden.py"
    hidden.write_text(
        "from oncehouse.ledger.storage import file_store\n"
        "from oncehouse.errors import TransientError\n"
        "def gone(self, path):\n    raise TransientError('no such file')\n"
        "file_store.FileStore.read_bytes = gone\n"
    )
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(hidden.read_text())
    cluster_pipeline.document["ledger"]["files"] = str(tmp_path / "files")
    said = refuse(cluster_pipeline, wrap_python(tmp_path, sys.executable, site))
    assert "cannot read what the driver has put under ledger.files" in said
    assert "mount it there, or let ledger.files be a bucket" in said


@pytest.mark.long
def test_a_bundle_is_all_that_executors_need_beside_a_python(cluster_pipeline, tmp_path):
    """Theirs has none of the packages: an environment of its own, and empty."""
    bundle = tmp_path / "environment.tar.gz"
    write_bundle(bundle)
    with tarfile.open(bundle) as archive:
        assert "bin/python" in archive.getnames()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    spark = cluster_pipeline.document["spark"]
    spark["environment"] = str(bundle)
    spark["settings"]["spark.executorEnv.ONCEHOUSE_PYTHON"] = str(tmp_path / "bare" / "bin" / "python")
    send_duplicates(cluster_pipeline)
    assert drain(cluster_pipeline) == 0, cluster_pipeline.log()[-3000:]
    cluster_pipeline.assert_exact()
