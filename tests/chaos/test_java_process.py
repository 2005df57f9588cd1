"""Spark's own process goes: the run says so, or ends well when it was asked to end, and nothing is lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from live_pipeline import make_event, wait_until
from oncehouse.devstack.subprocesses import signal_tree

EVENTS = [make_event(number) for number in range(120)]


def java_of(process):
    children = Path(f"/proc/{process.pid}/task").glob("*/children")
    pids = [int(pid) for listed in children for pid in listed.read_text().split()]
    return next(pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().strip() == "java")


@pytest.mark.parametrize(("asked_to_end", "code"), [(True, 0), (False, 75)])
def test_a_java_process_that_goes_is_no_defect_and_loses_nothing(make_pipeline, asked_to_end, code):
    live_pipeline = make_pipeline(epoch={"max_rows": 20})
    live_pipeline.send(EVENTS)
    process = live_pipeline.spawn()
    try:
        wait_until(lambda: live_pipeline.rows() or process.poll() is not None, "the first rows")
        java = java_of(process)
        if asked_to_end:
            # What a supervisor does that signals the whole group.
            process.send_signal(signal.SIGTERM)
            os.kill(java, signal.SIGTERM)
        else:
            os.kill(java, signal.SIGKILL)
        ended_with = process.wait(timeout=90)
    finally:
        process.kill()
        process.wait()
    assert ended_with == code, live_pipeline.log()[-2000:]
    assert "Traceback" not in live_pipeline.log()
    live_pipeline.run()
    live_pipeline.assert_exact()


def test_what_a_killed_driver_left_among_temporary_files_goes_with_the_next_start(
    make_pipeline, tmp_path, monkeypatch
):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    live_pipeline = make_pipeline(epoch={"max_rows": 20})
    live_pipeline.send(EVENTS)
    process = live_pipeline.spawn()
    try:
        wait_until(lambda: live_pipeline.rows() or process.poll() is not None, "the first rows")
    finally:
        signal_tree(process.pid, signal.SIGKILL)
        process.wait()
    assert list(temporary.rglob("blockmgr-*"))
    assert live_pipeline.spawn("--once").wait(timeout=90) == 0
    assert [path.name for path in temporary.rglob("*")] == [f"oncehouse-scratch-{os.getuid()}"]
    live_pipeline.assert_exact()
