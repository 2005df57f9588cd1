"""A holder counts as dead only when it was a process of this very machine that is surely gone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.ledger import lease_holder
from oncehouse.ledger.lease_holder import describe_holder, is_dead


def describe(pid: int, *, machine: str | None = None, started: str = "1") -> str:
    return f"host pid {pid} ({lease_holder._machine() if machine is None else machine} {started})"


def test_this_process_lives():
    assert not is_dead(describe_holder())


def test_a_process_that_has_ended_is_dead():
    starter = "from oncehouse.ledger.lease_holder import describe_holder; print(describe_holder())"
    ended = subprocess.run([sys.executable, "-c", starter], capture_output=True, text=True, check=True)
    assert is_dead(ended.stdout.strip())


def test_a_recycled_pid_is_not_the_process_that_had_it():
    assert is_dead(describe(os.getpid(), started="1"))


def test_a_process_that_ended_but_was_not_reaped_is_dead():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        alive = describe(process.pid, started=lease_holder._started(process.pid))
        assert not is_dead(alive)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_dead(alive)


def test_a_process_of_another_machine_may_live():
    assert not is_dead(describe(1 << 30, machine="other/pid:[1]"))


def test_nothing_is_known_where_the_machine_cannot_be_told(monkeypatch):
    monkeypatch.setattr(lease_holder, "_machine", lambda: "")
    assert not is_dead(describe(1 << 30, machine=""))


@pytest.mark.parametrize("text", ["", "me", "host pid ", "host pid 3", "host pid 3 ()", "host pid x (m s)"])
def test_a_holder_in_another_spelling_may_live(text):
    assert not is_dead(text)


@given(st.text())
def test_any_holder_can_be_asked_about(text):
    assert not is_dead(text)
    try:
        int(text)
    except ValueError:
        assert not is_dead(f"host pid {text} ({lease_holder._machine()} 1)")
