"""Files that this user may not use: a clear error and exit 2, whatever command meets them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oncehouse.cli import app
from oncehouse.cli.app import run_command
from oncehouse.config.file_loader import load_pipeline
from oncehouse.ledger.storage.file_store import FileStore
from ordinary_rights import under_ordinary_rights

STARTER = "from oncehouse.cli.app import main; main()"


def refuse(path: Path) -> Path:
    path.chmod(0o000)
    return path


def refuse_writing(path: Path) -> Path:
    path.chmod(0o444)
    return path


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = under_ordinary_rights([sys.executable, *arguments])
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (refuse, "catalog.db"),
        (refuse_writing, "catalog.db"),
        (lambda catalog: refuse(catalog.parent), "catalog.db"),
    ],
    ids=["unreadable", "read-only", "folder"],
)
@pytest.mark.parametrize("command", ["status", "leases", "check"])
def test_a_catalog_that_this_user_may_not_use_is_named_and_no_defect(
    catalog, file, spoil: Callable[[Path], Path], named, command
):
    path = Path(str(catalog.engine.url.database))
    catalog.close()
    spoiled = spoil(path)
    try:
        done = run("-c", STARTER, command, str(file))
    finally:
        spoiled.chmod(0o700)
    told = done.stdout + done.stderr
    assert done.returncode == 2, told
    assert named in told
    assert "Permission denied" in told
    assert "give this one the right" in told
    assert "defect of oncehouse" not in told
    assert "Traceback" not in told


READ = """
import sys
from oncehouse.errors import OncehouseError
from oncehouse.ledger.models import FileRef
from oncehouse.ledger.storage.file_store import FileStore
store, ref = FileStore(sys.argv[1]), FileRef(path="events/x", size_bytes=1, checksum=sys.argv[2])
for use in (store.local, store.compared, store.open, store.inspect, store.verify):
    try:
        use(ref)
    except OncehouseError as error:
        print(type(error).__name__, str(error))
for use in (store.read_bytes, store.walk):
    try:
        use("events/x" if use == store.read_bytes else "events")
    except OncehouseError as error:
        print(type(error).__name__, str(error))
"""


@pytest.mark.parametrize("place", ["events/x", "events"])
def test_a_file_of_the_ledger_that_this_user_may_not_read_is_named_and_its_rights_asked_for(tmp_path, place):
    ref = FileStore(str(tmp_path)).put("events/x", lambda path: Path(path).write_bytes(b"x"))
    spoiled = refuse(tmp_path / place)
    try:
        done = run("-c", READ, str(tmp_path), ref.checksum)
    finally:
        spoiled.chmod(0o700)
    lines = done.stdout.splitlines()
    assert len(lines) == (7 if place == "events" else 6), done.stdout + done.stderr
    for line in lines:
        assert line.startswith(f"ConfigurationError ledger.files: {tmp_path}/{place}")
        assert "(Permission denied)" in line


def test_a_refused_file_is_no_defect_wherever_it_was_opened(monkeypatch, capsys):
    def refuse_all(*_arguments, **_options):
        raise PermissionError(13, "Permission denied", "/somewhere/secret.yaml")

    monkeypatch.setattr(app, "app", refuse_all)
    assert run_command(["status"]) == 2
    assert "/somewhere/secret.yaml cannot be used by the user" in capsys.readouterr().err


def test_the_pipeline_file_itself_may_be_refused(file):
    assert load_pipeline(file)
    spoiled = refuse(file)
    try:
        done = run("-c", STARTER, "status", str(file))
    finally:
        spoiled.chmod(0o600)
    assert done.returncode == 2
    assert "defect of oncehouse" not in done.stdout + done.stderr
