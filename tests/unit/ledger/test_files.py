from __future__ import annotations

import errno
import os
import pickle
import stat
import time
from pathlib import Path

import pytest

from oncehouse.errors import ConfigurationError, CorruptFileError, FullDiskError, TransientError
from oncehouse.ledger.storage.checksums import checksum
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.maintenance.retention import plan_sweep

CONTENT = b"immutable" * 1000


def fill(path: str) -> None:
    Path(path).write_bytes(CONTENT)


@pytest.fixture
def store(tmp_path) -> FileStore:
    return FileStore(str(tmp_path / "files"))


def test_a_file_is_named_with_its_size_and_checksum(store, tmp_path):
    ref = store.put("shop/parts/1.parquet", fill)
    path = tmp_path / "files/shop/parts/1.parquet"
    assert (ref.path, ref.size_bytes, ref.checksum) == ("shop/parts/1.parquet", len(CONTENT), checksum(path))
    assert store.local(ref) == path
    store.verify(ref)


def test_a_flipped_byte_is_found_by_its_checksum(store):
    ref = store.put("parts/1", fill)
    changed = bytearray(CONTENT)
    changed[len(changed) // 2] ^= 1
    store.local(ref).write_bytes(changed)
    with pytest.raises(CorruptFileError, match=r"parts/1 does not match its checksum"):
        store.verify(ref)


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"x", b""])
def test_a_cut_or_longer_file_is_found_by_its_size_before_it_is_read(store, content):
    ref = store.put("parts/1", fill)
    store.local(ref).write_bytes(content)
    with pytest.raises(CorruptFileError, match=f"parts/1 has {len(content)} bytes"):
        store.local(ref)


def test_a_missing_file_is_named(store):
    ref = store.put("parts/1", fill)
    store.delete("parts/1")
    with pytest.raises(CorruptFileError, match=r"parts/1 is missing under .*files"):
        store.local(ref)


def test_deleting_twice_is_no_error(store):
    store.put("parts/1", fill)
    store.delete("parts/1")
    store.delete("parts/1")
    assert list(store.walk("parts")) == []


def test_every_folder_belongs_to_its_owner_alone_whatever_the_umask(store, tmp_path):
    before = os.umask(0)
    try:
        store.put("shop/parts/1/0.parquet", fill)
    finally:
        os.umask(before)
    for folder in ("files", "files/shop", "files/shop/parts", "files/shop/parts/1"):
        assert stat.S_IMODE((tmp_path / folder).stat().st_mode) == 0o700, folder


def test_a_full_disk_says_so_and_leaves_no_half_file(store, tmp_path):
    def run_out_of_space(path: str) -> None:
        Path(path).write_bytes(CONTENT[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(FullDiskError, match=r"No space is left .*files under .*files\. .*free some space"):
        store.put("parts/1", run_out_of_space)
    assert not (tmp_path / "files/parts/1").exists()


def test_another_failure_to_write_names_the_file(store):
    def fail(path: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(TransientError, match=r"parts/1 cannot be written.*Input/output error"):
        store.put("parts/1", fail)


def test_files_are_found_below_a_prefix_only(store):
    for path in ("a/2/x", "a/1", "b/1"):
        store.put(path, fill)
    assert list(store.walk("a")) == ["a/1", "a/2/x"]
    assert list(store.walk("nowhere")) == []


def test_a_store_travels_to_other_processes(store):
    ref = store.put("parts/1", fill)
    pickle.loads(pickle.dumps(store)).verify(ref)


def test_a_place_that_can_be_written_passes_the_check_and_keeps_nothing_of_it(store, tmp_path):
    store.check()
    assert list((tmp_path / "files").iterdir()) == []


def test_a_place_that_cannot_be_written_fails_the_check(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigurationError, match=r"ledger\.files: nothing can be written under .*file/below"):
        FileStore(str(tmp_path / "file/below")).check()


def test_a_file_url_is_a_folder(tmp_path):
    ref = FileStore(f"file://{tmp_path}/files").put("parts/1", fill)
    FileStore(str(tmp_path / "files")).verify(ref)


def test_what_a_killed_process_leaves_of_a_replacement_is_swept_when_it_is_old(store, monkeypatch):
    def die(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", die)
        with pytest.raises(SystemExit):
            store.replace("shop/marks/load-000000000001-0.json", b"first")
    store.replace("shop/marks/load-000000000001-0.json", b"second")
    paths = list(store.walk("shop/marks"))
    assert len(paths) == 2
    now = time.time()
    assert plan_sweep(paths, set(), token=9, last_epoch=9, now=now + 80_000) == ()
    (left,) = plan_sweep(paths, set(), token=9, last_epoch=9, now=now + 90_000)
    store.delete(left)
    assert store.read_bytes("shop/marks/load-000000000001-0.json") == b"second"


def test_a_small_file_is_replaced_whole_or_not_at_all(store, tmp_path, monkeypatch):
    store.replace("marks/1", b"first")
    store.replace("marks/1", b"second")
    assert store.read_bytes("marks/1") == b"second"
    os.utime(Path(store.root) / "marks/1", (5.0, 7.0))
    assert (store.modified_at("marks/1"), store.modified_at("marks/2")) == (7.0, None)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(FullDiskError):
        store.replace("marks/1", b"third")
    assert store.read_bytes("marks/1") == b"second"
    assert list(store.walk("marks")) == ["marks/1"], "nothing of it is left"
