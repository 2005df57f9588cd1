"""Whatever the umask: what oncehouse writes is for its owner alone."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from oncehouse.cli.init import write_new
from oncehouse.cli.pipeline.dead_letter_edits import _export_to_file
from oncehouse.common.database import open_engine
from oncehouse.common.file_permissions import (
    make_private_file,
    make_private_folder,
    open_private,
    own_temporary_folder,
    private_by_default,
)
from oncehouse.config.pipeline import Pipeline
from oncehouse.errors import ConfigurationError
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.spark.session import _log_path, _stderr_to, scratch_folder


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def open_to_others(root: Path) -> list[str]:
    """Everything below a folder that somebody else may read, write or enter."""
    return [
        f"{path.relative_to(root)} {stat.filemode(path.lstat().st_mode)}"
        for path in root.rglob("*")
        if path.lstat().st_mode & 0o077
    ]


def test_files_of_the_ledger(umask, tmp_path):
    store = FileStore(str(tmp_path / "deep/er/files"))
    store.put("shop/parts/1/part.parquet", lambda path: Path(path).write_bytes(b"x"))
    store.check()
    assert open_to_others(tmp_path) == []


def test_the_catalog_and_what_sqlite_puts_beside_it(umask, tmp_path):
    engine = open_engine(f"sqlite:///{tmp_path}/deep/er/catalog.db", setting="ledger.catalog")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE a (b INTEGER)"))
        beside = {path.name for path in (tmp_path / "deep/er").iterdir()}
        assert "catalog.db-wal" in beside
        assert open_to_others(tmp_path) == []
    engine.dispose()


def test_sparks_log_even_where_an_older_one_was_open_to_all(umask, tmp_path):
    pipeline = Pipeline(
        pipeline="shop",
        source={"format": "frame", "fields": {"id": "UInt64"}},
        identity={"fields": ["id"]},
        tables=[{"name": "events"}],
        clickhouse={"url": "http://h:1"},
        ledger={"catalog": "sqlite:///c.db", "files": str(tmp_path / "files")},
    )
    log = _log_path(pipeline)
    log.write_bytes(b"older")
    log.chmod(0o666)
    with _stderr_to(log):
        pass
    assert open_to_others(tmp_path) == []


def test_letters_written_to_a_file(umask, tmp_path):
    _export_to_file(tmp_path / "letters.jsonl", iter(()), as_json=True)
    assert open_to_others(tmp_path) == []


def test_files_of_settings_that_init_writes(umask, tmp_path):
    write_new(tmp_path / "pipeline.yaml", "pipeline: shop\n")
    assert open_to_others(tmp_path) == []


def test_a_file_that_must_be_new_is_never_one_that_somebody_laid_out(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError):
        open_private(tmp_path / "link", new=True)
    assert not (tmp_path / "target").exists()


def test_what_stands_already_keeps_its_bytes_and_rights(tmp_path):
    (tmp_path / "kept").write_bytes(b"kept")
    (tmp_path / "kept").chmod(0o640)
    make_private_file(tmp_path / "kept")
    make_private_folder(tmp_path)
    assert (tmp_path / "kept").read_bytes() == b"kept"
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o640


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_for_temporary_files_is_made_and_found_again(umask, temporary):
    made = own_temporary_folder("oncehouse-1")
    assert made == own_temporary_folder("oncehouse-1") == temporary / "oncehouse-1"
    assert open_to_others(temporary) == []


def test_a_folder_that_others_may_write_to_is_not_trusted(temporary):
    (temporary / f"oncehouse-cache-{os.getuid()}").mkdir()
    (temporary / f"oncehouse-cache-{os.getuid()}").chmod(0o777)
    with pytest.raises(ConfigurationError, match=r"cannot be trusted.*TMPDIR"):
        own_temporary_folder(f"oncehouse-cache-{os.getuid()}")


def test_a_link_in_place_of_the_folder_is_not_followed(temporary):
    (temporary / "elsewhere").mkdir(mode=0o700)
    (temporary / f"oncehouse-{os.getuid()}").symlink_to(temporary / "elsewhere")
    with pytest.raises(ConfigurationError, match="cannot be trusted"):
        scratch_folder("s3://bucket/prefix")


def test_a_folder_of_another_user_is_not_trusted(temporary, monkeypatch):
    (temporary / "oncehouse-1").mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: (temporary / "oncehouse-1").stat().st_uid + 1)
    with pytest.raises(ConfigurationError, match="cannot be trusted"):
        own_temporary_folder("oncehouse-1")


def test_programs_started_inside_write_for_their_owner_and_the_umask_comes_back(umask, tmp_path):
    with private_by_default():
        subprocess.run(["sh", "-c", f"mkdir {tmp_path}/made; echo x > {tmp_path}/made/file"], check=True)
    assert open_to_others(tmp_path) == []
    assert os.umask(umask) == umask
