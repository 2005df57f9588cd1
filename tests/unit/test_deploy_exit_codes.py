"""Supervisors restart a driver where that may help, and leave it to an operator where it cannot."""

from __future__ import annotations

import configparser
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from helm_subset import render_chart
from oncehouse.errors import (
    CatalogBehindError,
    ConfigurationError,
    DataLossError,
    FencedError,
    FullDiskError,
    OncehouseError,
    PermanentError,
    PoisonError,
    TransientError,
)

DEPLOY = Path(__file__).parents[2] / "deploy"


def final_exit_codes() -> list[str]:
    """Of what an operator has to change first. A lease that another process holds is waited for."""
    final = [ConfigurationError, PermanentError, DataLossError, PoisonError, CatalogBehindError]
    for error in subclasses(OncehouseError):
        assert error.exit_code in {
            code.exit_code for code in [*final, TransientError, FullDiskError, FencedError]
        }
    return sorted({str(error.exit_code) for error in final})


def subclasses(error: type[OncehouseError]) -> list[type[OncehouseError]]:
    return [
        error,
        *(found for below in error.__subclasses__() for found in subclasses(below)),
    ]


def test_the_unit_of_a_driver_is_not_started_again_where_that_cannot_help():
    """A catalog that has lost transactions is refused at each start, until somebody has repaired it."""
    unit = DEPLOY / "systemd" / "oncehouse@.service"
    parsed = configparser.RawConfigParser(strict=False)
    parsed.optionxform = str
    parsed.read_string(unit.read_text())
    assert parsed["Service"]["RestartPreventExitStatus"].split() == final_exit_codes()


@contextmanager
def held_container(folder: Path, word: str, ends: str) -> Iterator[subprocess.Popen[str]]:
    """The entry point with programs that end as said, in place of oncehouse and spark-submit."""
    for name in ("oncehouse", "spark-submit"):
        program = folder / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{ends}\n")
        program.chmod(0o755)
    (folder / "oncehouse-held").write_text("of the container before this one")
    process = subprocess.Popen(
        [str(DEPLOY / "docker" / "entrypoint.sh"), word, "run"],
        env={
            "PATH": f"{folder}/bin:/usr/bin:/bin",
            "SPARK_HOME": str(folder),
            "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.1",
            "TMPDIR": str(folder),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def read_line(process: subprocess.Popen[str]) -> str:
    stream = process.stdout
    assert stream is not None
    return stream.readline()


@pytest.mark.parametrize(
    ("word", "code"),
    [("hold", code) for code in ("1", "2", "5", "6", "8")]
    + [("driver", code) for code in ("2", "5", "6", "8")],
)
def test_a_container_is_not_restarted_where_that_cannot_help(tmp_path, word, code):
    with held_container(tmp_path, word, f"exit {code}") as process:
        assert process.stderr is not None
        assert f"Ended with exit code {code}, which a restart cannot help." in process.stderr.readline()
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == int(code)
    assert (tmp_path / "oncehouse-held").read_text() == ""


@pytest.mark.parametrize(
    ("word", "code"), [("hold", 0), ("hold", 4), ("hold", 7), ("hold", 70), ("hold", 75), ("driver", 1)]
)
def test_a_container_ends_and_so_is_restarted_where_that_may_help(tmp_path, word, code):
    with held_container(tmp_path, word, f"exit {code}") as process:
        assert process.wait(timeout=60) == code
    assert not (tmp_path / "oncehouse-held").exists()


@pytest.mark.parametrize("code", [0, 1])
def test_a_container_that_is_told_to_stop_lets_its_command_end_and_ends_with_it(tmp_path, code):
    ends = f"trap 'echo stopped; exit {code}' TERM\necho ready\nwhile :; do sleep 0.1; done"
    with held_container(tmp_path, "hold", ends) as process:
        assert read_line(process) == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert read_line(process) == "stopped\n"
        assert process.wait(timeout=60) == code
    assert not (tmp_path / "oncehouse-held").exists()


def test_drivers_of_the_chart_are_held_after_the_exit_codes_of_the_unit_and_are_not_ready_then():
    script = (DEPLOY / "docker" / "entrypoint.sh").read_text()
    held = re.search(r'^final_exit_codes="(.*)"$', script, re.MULTILINE)
    submitted = re.search(r'^final_exit_codes_submitted="(.*)"$', script, re.MULTILINE)
    assert held is not None
    assert submitted is not None
    assert held[1].split() == final_exit_codes()
    assert {"1", *submitted[1].split()} == set(final_exit_codes())
    chart = render_chart()
    deployment = chart["Deployment", "shop-driver"]["spec"]
    (container,) = deployment["template"]["spec"]["containers"]
    assert container["args"][:2] == ["hold", "run"]
    assert container["readinessProbe"]["exec"]["command"] == ["test", "!", "-e", "/tmp/oncehouse-held"]
    assert deployment["minReadySeconds"] > 0
    budget = chart["PodDisruptionBudget", "shop-driver"]["spec"]
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
