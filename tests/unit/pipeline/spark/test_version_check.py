"""What a driver and its executors run is compared before the first task, and what differs is named."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.pipeline.spark.version_check import (
    VARIABLE,
    find_differences,
    mark_code,
    read_versions,
    versions_here,
    write_versions,
)

SOURCE = Path(__file__).parents[4] / "src"
words = st.text("abcdefghijklmnopqrstuvwxyz0123456789.+-", min_size=1, max_size=12)


def start_daemon(told: str, *python: str) -> subprocess.CompletedProcess[bytes]:
    """As an executor starts it; standard input ends at once, with which a daemon that works ends too."""
    return subprocess.run(
        [*(python or (sys.executable,)), "-m", "oncehouse.pipeline.spark.worker_daemon", "pyspark.worker"],
        env=os.environ | {VARIABLE: told, "PYTHONPATH": str(SOURCE)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )


@given(st.dictionaries(words, words))
def test_versions_survive_their_way_in_the_environment(versions):
    assert read_versions(write_versions(versions)) == versions


def test_what_is_written_holds_no_letter_that_a_shell_would_take_for_its_own():
    assert not set(write_versions(versions_here())) & set(" \"'$;&|<>(){}*?!\\`\n")


def test_only_what_differs_is_told_from_the_workers_side():
    driver = {"python": "3.11", "pyarrow": "26.0.1", "polars": "2.1.0"}
    worker = {"python": "3.11", "pyarrow": "25.0.0"}
    assert find_differences(driver, worker) == [
        "polars missing (driver: 2.1.0)",
        "pyarrow 25.0.0 (driver: 26.0.1)",
    ]
    assert not find_differences(driver, driver)


def test_any_changed_module_of_the_code_shows_in_its_mark(tmp_path):
    (tmp_path / "package" / "room").mkdir(parents=True)
    module = tmp_path / "package" / "room" / "module.py"
    module.write_text("answer = 42\n")
    before = mark_code(tmp_path / "package")
    (tmp_path / "package" / "room" / "__pycache__").mkdir()
    (tmp_path / "package" / "room" / "__pycache__" / "module.pyc").write_bytes(b"compiled")
    assert mark_code(tmp_path / "package") == before
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as packed:
        packed.write(module, "package/room/module.py")
    assert mark_code(zipfile.Path(tmp_path / "code.zip", "package/")) == before
    module.write_text("answer = 43\n")
    assert mark_code(tmp_path / "package") != before


@pytest.mark.parametrize("name", ["oncehouse", "pyarrow"])
def test_the_daemon_of_an_executor_with_another_version_ends_and_says_which_and_where(name):
    told = write_versions(versions_here() | {name: "0.0.9"})
    ended = start_daemon(told)
    said = ended.stderr.decode()
    assert ended.returncode == 1
    assert f"oncehouse.errors.ConfigurationError: The executor on {os.uname().nodename} " in said
    assert f"{name} {versions_here()[name]} (driver: 0.0.9). Nothing was read" in said
    assert "oncehouse bundle" in said


def test_the_daemon_of_another_python_ends_and_says_so_though_it_has_none_of_the_libraries():
    own = f"3.{sys.version_info.minor}"
    others = [Path(f"/usr/bin/python3.{minor}") for minor in (11, 12, 13, 14)]
    installed = Path.home().glob(".pyenv/versions/3.1[1234]*/bin/python")
    other = next((path for path in (*others, *installed) if path.exists() and own not in str(path)), None)
    if other is None:
        pytest.skip("there is no second Python on this machine")
    said = start_daemon(write_versions(versions_here()), str(other)).stderr.decode()
    assert f"({other}) differs from the driver: " in said
    assert "pyarrow missing (driver: " in said
    assert "python 3.1" in said


def test_a_daemon_with_the_drivers_versions_goes_to_work():
    ended = start_daemon(write_versions(versions_here()))
    # The daemon's first word is the port it listens on.
    assert (len(ended.stdout), ended.stderr) == (4, b"")
