"""The folder for temporary files of a process: held while it or its Java lives, and removed by the next one."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from oncehouse.common import process_folder
from oncehouse.errors import ConfigurationError

HOLD = """
import sys
from oncehouse.common.process_folder import process_folder
folder = process_folder()
(folder / "blockmgr-1").mkdir()
assert process_folder() == folder
print(folder, flush=True)
sys.stdin.read()
"""


@contextmanager
def start(root: Path, command: Sequence[str], **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command,
        env=os.environ | {"TMPDIR": str(root)} | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def hold(root: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process with a folder of its own."""
    with start(root, [sys.executable, "-c", HOLD]) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())


def test_a_folder_goes_with_its_process_and_is_for_its_owner_alone(tmp_path):
    with hold(tmp_path) as (process, folder):
        assert folder.parent == tmp_path / f"oncehouse-scratch-{os.getuid()}"
        assert {stat.S_IMODE(path.stat().st_mode) for path in (folder, folder.parent)} == {0o700}
        process.communicate("")
        assert process.returncode == 0
    assert list(folder.parent.iterdir()) == []


def test_the_folder_of_a_killed_process_goes_with_the_next_start(tmp_path):
    with hold(tmp_path) as (process, killed):
        process.kill()
        process.wait()
    assert (killed / "blockmgr-1").is_dir()
    with hold(tmp_path) as (_, folder):
        assert list(folder.parent.iterdir()) == [folder]


def test_the_folder_of_a_living_process_stays(tmp_path):
    with hold(tmp_path) as (_, first), hold(tmp_path) as (_, second):
        assert sorted(first.parent.iterdir()) == sorted([first, second])
        assert (first / "blockmgr-1").is_dir()


@pytest.mark.parametrize("by", ["command line", "environment"])
def test_the_folder_of_a_killed_process_stays_while_a_program_that_it_started_lives(tmp_path, by):
    with hold(tmp_path) as (process, killed):
        process.kill()
        process.wait()
    java = [sys.executable, "-c", "print(flush=True); input()"]
    named = {"SPARK_LOCAL_DIRS": str(killed / "blockmgr-1")} if by == "environment" else {}
    with start(tmp_path, java if named else [*java, f"-Djava.io.tmpdir={killed}"], **named) as alive:
        assert alive.stdout is not None
        alive.stdout.readline()
        with hold(tmp_path):
            assert (killed / "blockmgr-1").is_dir()
    with hold(tmp_path) as (_, folder):
        assert list(folder.parent.iterdir()) == [folder]


def test_a_folder_that_was_removed_meanwhile_is_made_again(tmp_path):
    program = "import shutil; from oncehouse.common.process_folder import process_folder as made\n"
    program += "first = made(); shutil.rmtree(first); assert made() != first and made().is_dir()"
    with start(tmp_path, [sys.executable, "-c", program]) as process:
        assert process.wait() == 0


def test_what_is_no_folder_of_a_process_is_left_alone(tmp_path):
    root = tmp_path / f"oncehouse-scratch-{os.getuid()}"
    root.mkdir(mode=0o700)
    (tmp_path / "elsewhere").mkdir()
    (root / "link").symlink_to(tmp_path / "elsewhere")
    (root / "file").touch()
    with hold(tmp_path):
        assert (tmp_path / "elsewhere").is_dir()
        assert {"link", "file"} <= {path.name for path in root.iterdir()}


def test_folders_of_other_machines_are_left_alone(tmp_path):
    with hold(tmp_path) as (_, folder):
        other = folder.with_name(f"elsewhere-{folder.name}")
        other.mkdir()
    with hold(tmp_path) as (_, mine):
        assert set(mine.parent.iterdir()) == {mine, other}


def test_a_file_system_without_locks_is_named_with_what_to_do(tmp_path, monkeypatch):
    def refuse(*_) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(process_folder, "_claim", None)
    monkeypatch.setattr(process_folder.fcntl, "flock", refuse)
    with pytest.raises(ConfigurationError, match=r"without locks .*TMPDIR"):
        process_folder.process_folder()
