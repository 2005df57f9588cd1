"""A SQLite catalog that cannot be looked at just now: not damaged for that, so nobody is told to repair it."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from ledger_examples import IDENTITY
from oncehouse.errors import CorruptFileError, FullDiskError, TransientError
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.snapshots import examine
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.checks.stale_catalog import require_newest
from small_disk import mount


@pytest.fixture
def make_closed_catalog():
    """One that nobody has open, so that even a reader has to write beside it."""
    made = []

    def make(folder) -> Catalog:
        catalog = Catalog(f"sqlite:///{folder}/catalog.db", "live", retry_seconds=())
        catalog.prepare()
        catalog.adopt(IDENTITY)
        catalog.close()
        made.append(catalog)
        return catalog

    yield make
    for catalog in made:
        catalog.close()


def test_a_run_that_starts_on_a_full_disk_is_told_of_the_disk(make_closed_catalog, tmp_path):
    with mount(tmp_path / "disk", size_bytes=2 << 20) as disk:
        catalog = make_closed_catalog(disk.folder)
        disk.fill()
        with pytest.raises(FullDiskError, match="is full, so SQLite cannot open it"):
            require_newest(catalog, FileStore(str(tmp_path / "files")))
        disk.release()
        require_newest(catalog, FileStore(str(tmp_path / "files")))
        catalog.close()


def test_a_catalog_that_somebody_has_locked_is_not_damaged(make_closed_catalog, tmp_path, monkeypatch):
    catalog = make_closed_catalog(tmp_path)
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: connect(*args, timeout=0, **options))
    with closing(connect(tmp_path / "catalog.db")) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(TransientError, match="cannot be read just now"):
            examine(catalog.engine)
    assert examine(catalog.engine) is None


def test_bytes_that_sqlite_did_not_write_are_damage(make_closed_catalog, tmp_path):
    catalog = make_closed_catalog(tmp_path)
    (tmp_path / "catalog.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(CorruptFileError, match="is damaged"):
        require_newest(catalog, FileStore(str(tmp_path / "files")))
