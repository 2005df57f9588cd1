"""What Spark's Python daemon does before it loads the pipeline."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from oncehouse.pipeline.spark.worker_daemon import keep_memory, remove_pyspark_archives


def make_package(folder: Path, name: str) -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").touch()
    return folder / name


def make_archive(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pyspark/__init__.py", "")
    return str(path)


@pytest.fixture
def paths(monkeypatch, tmp_path) -> list[str]:
    """A path on which PySpark stands twice: as an archive in its own folder, and as that folder."""
    installed = tmp_path / "installed"
    own = make_archive(make_package(installed, "pyspark") / "python" / "lib" / "pyspark.zip")
    make_package(installed, "py4j")
    users = make_archive(tmp_path / "shipped" / "users.zip")
    found = [own, users, str(installed)]
    monkeypatch.setattr(sys, "path", list(found))
    monkeypatch.setattr(sys, "path_importer_cache", {})
    return found


def test_archives_of_pysparks_own_folder_leave_the_path_and_others_stay(paths):
    sys.path_importer_cache[paths[0]] = None
    remove_pyspark_archives()
    assert sys.path == paths[1:]
    assert paths[0] not in sys.path_importer_cache


def test_archives_stay_where_pyspark_is_nowhere_else(paths):
    sys.path.remove(paths[2])
    remove_pyspark_archives()
    assert sys.path == paths[:2]


def test_archives_of_another_spark_stay(paths, tmp_path):
    other = make_archive(tmp_path / "spark" / "python" / "lib" / "pyspark.zip")
    sys.path.insert(0, other)
    remove_pyspark_archives()
    assert sys.path[0] == other


def test_an_archive_that_was_reached_by_a_link_is_known(paths, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "installed")
    sys.path[0] = str(tmp_path / "link" / "pyspark" / "python" / "lib" / "pyspark.zip")
    remove_pyspark_archives()
    assert sys.path == paths[1:]


# -- memory ------------------------------------------------------------------------------------------------

MMAP, TRIM, PAD = (-3, 32 << 20), (-1, 256 << 20), (-2, 16 << 20)


class Library:
    """A C library that notes what it is told; by its version glibc is known."""

    def __init__(self, *, glibc: bool) -> None:
        self.told: set[tuple[int, int]] = set()
        if glibc:
            self.gnu_get_libc_version = lambda: b"2.36"

    def mallopt(self, parameter: int, value: int) -> None:
        self.told.add((parameter, value))


@pytest.fixture
def tell(monkeypatch):
    """`tell(glibc=True, MALLOC_TOP_PAD_="1")`: what the C library is told under this environment."""

    def play(*, glibc: bool = True, **environment: str) -> set[tuple[int, int]]:
        library = Library(glibc=glibc)
        with monkeypatch.context() as patch:
            for name in [name for name in os.environ if name.startswith(("MALLOC_", "MIMALLOC_", "GLIBC_"))]:
                patch.delenv(name)
            # As one that is there, so that what is set meanwhile goes again.
            patch.setenv("MIMALLOC_PURGE_DELAY", "")
            del os.environ["MIMALLOC_PURGE_DELAY"]
            for name, value in environment.items():
                patch.setenv(name, value)
            patch.setattr(ctypes, "CDLL", lambda _: library)
            keep_memory()
            assert os.environ["MIMALLOC_PURGE_DELAY"] == environment.get("MIMALLOC_PURGE_DELAY", "10000")
        return library.told

    return play


def test_a_worker_keeps_what_it_frees(tell):
    assert tell() == {MMAP, TRIM, PAD}


def test_a_c_library_that_is_not_glibc_is_left_alone(tell):
    assert tell(glibc=False) == set()


@pytest.mark.parametrize(
    ("environment", "left"),
    [
        ({"MALLOC_MMAP_THRESHOLD_": "1"}, {TRIM, PAD}),
        ({"MALLOC_TRIM_THRESHOLD_": "1", "MALLOC_TOP_PAD_": "0"}, {MMAP}),
        ({"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.trim_threshold=1"}, {MMAP, PAD}),
        ({"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1:glibc.malloc.top_pad=1"}, {TRIM}),
        ({"MIMALLOC_PURGE_DELAY": "0"}, {MMAP, TRIM, PAD}),
    ],
)
def test_what_the_users_environment_says_is_kept(tell, environment, left):
    assert tell(**environment) == left


def run_python(code: str, **environment: str) -> str:
    """What it printed, in a process whose environment says nothing else about memory."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MALLOC_", "MIMALLOC_", "GLIBC_"))
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=kept | environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


# Arrow's allocator reads its variable when Arrow is loaded.
IN_TIME = """
import os, sys
from oncehouse.pipeline.spark import worker_daemon
from pyspark import daemon
found = []
right = worker_daemon.keep_memory
def noting():
    found.append("pyarrow" in sys.modules)
    right()
worker_daemon.keep_memory = noting
daemon.manager = lambda: print(found, os.environ["MIMALLOC_PURGE_DELAY"], "pyarrow" in sys.modules)
worker_daemon.run_daemon()
"""


@pytest.mark.parametrize(("environment", "delay"), [({}, "10000"), ({"MIMALLOC_PURGE_DELAY": "5"}, "5")])
def test_the_daemon_says_so_before_arrow_is_loaded(environment, delay):
    assert run_python(IN_TIME, **environment) == f"[False] {delay} True"


# Of so much glibc makes a mapping of its own, which is given back when it is freed: taken and freed again and again, it
# costs a fault for every page, unless it is kept.
FAULTS = """
import ctypes, resource, sys
from oncehouse.pipeline.spark.worker_daemon import keep_memory
library = ctypes.CDLL(None)
if not hasattr(library, "gnu_get_libc_version"):
    sys.exit(print("no glibc"))
if KEEP:
    keep_memory()
library.malloc.restype = ctypes.c_void_p
library.malloc.argtypes = [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
def take():
    sizes = [24 << 20, 20 << 20]
    places = [library.malloc(size) for size in sizes]
    for place, size in zip(places, sizes):
        ctypes.memset(place, 1, size)
    for place in places:
        library.free(place)
take()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    take()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_memory_that_was_freed_is_there_without_a_fault():
    kept = run_python("KEEP = True\n" + FAULTS)
    if kept == "no glibc":
        pytest.skip("needs glibc")
    assert int(kept) < 1000
    assert int(run_python("KEEP = False\n" + FAULTS)) > 5000
    assert int(run_python("KEEP = True\n" + FAULTS, MALLOC_MMAP_THRESHOLD_="100000")) > 5000
