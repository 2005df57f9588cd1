"""The cache of a machine: it keeps its bound whoever fetches, and nothing vanishes that somebody was just handed."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import threading
from pathlib import Path

import pytest

from oncehouse.errors import ConfigurationError
from oncehouse.ledger.storage.file_cache import BYTES_VARIABLE, DEFAULT_BYTES, FileCache, machine_cache

SIZE = 1000
FORK = multiprocessing.get_context("fork")


def content(number: int) -> bytes:
    return bytes([number % 256]) * SIZE


def name(number: int) -> str:
    return hashlib.sha256(content(number)).hexdigest()


def fetch(cache: FileCache, number: int) -> Path:
    path = cache.find(name(number), SIZE)
    return path or cache.add(name(number), SIZE, lambda target: target.write(content(number)) and None)


def kept(cache: FileCache) -> set[str]:
    return {path.name for path in cache.folder.iterdir() if path.name != ".lock"}


def use_and_let_go(cache: FileCache, *numbers: int) -> None:
    """In a thread of its own: with it ends its hold on the last copy."""

    def work() -> None:
        for number in numbers:
            assert fetch(cache, number).read_bytes() == content(number)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.fixture
def cache(tmp_path) -> FileCache:
    return FileCache(tmp_path, 3 * SIZE)


def test_the_least_recently_used_copy_makes_room(cache):
    use_and_let_go(cache, 1, 2, 3, 1, 4)
    assert kept(cache) == {name(3), name(1), name(4)}


def test_a_file_larger_than_the_bound_is_handed_out_and_is_the_only_one(cache):
    use_and_let_go(cache, 1, 2)
    big = b"x" * 5 * SIZE
    digest = hashlib.sha256(big).hexdigest()
    path = cache.add(digest, len(big), lambda target: target.write(big) and None)
    assert path.read_bytes() == big
    assert kept(cache) == {digest}


def test_a_copy_that_another_thread_was_just_handed_stays_until_that_asks_for_the_next(cache):
    handed, opened, done = threading.Event(), threading.Event(), threading.Event()
    found: list[bytes] = []

    def work() -> None:
        path = fetch(cache, 1)
        handed.set()
        opened.wait(30)
        found.append(path.read_bytes())
        fetch(cache, 2)
        done.wait(30)

    slow = threading.Thread(target=work)
    slow.start()
    handed.wait(30)
    for number in range(10, 16):
        fetch(cache, number)
    assert name(1) in kept(cache)
    opened.set()
    while name(2) not in kept(cache):
        pass
    for number in range(20, 26):
        fetch(cache, number)
    assert name(1) not in kept(cache)
    assert name(2) in kept(cache)
    done.set()
    slow.join()
    assert found == [content(1)]


def _fetch_many(folder: Path, seed: int) -> None:
    cache = FileCache(folder, 5 * SIZE)
    for step in range(60):
        number = (seed * 7 + step * (seed + 1)) % 12
        assert fetch(cache, number).read_bytes() == content(number)
        # Each of the four may hold one beside what is kept.
        assert sum(not path.name.startswith(".") for path in folder.iterdir()) <= 5 + 4


def test_processes_that_fetch_at_once_read_whole_files_and_keep_the_bound_together(tmp_path):
    workers = [FORK.Process(target=_fetch_many, args=(tmp_path, seed)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 4
    cache = FileCache(tmp_path, 5 * SIZE)
    use_and_let_go(cache, 99)
    assert len(kept(cache)) <= 5


def _die_half_way(folder: Path) -> None:
    def write_a_little(target) -> None:
        target.write(b"half")
        target.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    FileCache(folder, 3 * SIZE).add(name(1), SIZE, write_a_little)


def test_the_half_copy_of_a_killed_process_is_no_copy_and_goes_with_the_next_fetch(cache):
    worker = FORK.Process(target=_die_half_way, args=(cache.folder,))
    worker.start()
    worker.join(30)
    assert worker.exitcode == -signal.SIGKILL
    assert len(kept(cache)) == 1
    assert cache.find(name(1), SIZE) is None
    use_and_let_go(cache, 2)
    assert kept(cache) == {name(2)}


def test_a_fetch_that_fails_leaves_nothing(cache):
    def fail(target) -> None:
        target.write(b"some")
        raise OSError("connection reset")

    with pytest.raises(OSError, match="connection reset"):
        cache.add(name(1), SIZE, fail)
    assert kept(cache) == set()


def test_a_copy_that_was_cut_since_is_fetched_again(cache):
    os.truncate(fetch(cache, 1), 10)
    assert cache.find(name(1), SIZE) is None
    assert fetch(cache, 1).read_bytes() == content(1)


def test_a_copy_that_another_process_has_put_there_first_is_taken(cache):
    def be_overtaken(target) -> None:
        use_and_let_go(cache, 1)
        target.write(content(1))

    assert cache.add(name(1), SIZE, be_overtaken).read_bytes() == content(1)
    assert kept(cache) == {name(1)}


@pytest.mark.parametrize(("told", "bound"), [("", DEFAULT_BYTES), ("4096", 4096), ("2MB", 2 << 20)])
def test_the_bound_of_a_machine_comes_from_its_environment(monkeypatch, tmp_path, told, bound):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv(BYTES_VARIABLE, told)
    assert machine_cache()._max_bytes == bound


def test_a_bound_that_is_no_size_is_refused_by_name(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv(BYTES_VARIABLE, "plenty")
    with pytest.raises(ConfigurationError, match=r"ONCEHOUSE_CACHE_BYTES: 'plenty' is not a size"):
        machine_cache()
