"""Spark's Python daemon with the pipeline's modules loaded, so that workers forked from it start warm.

Spark runs this as `spark.python.daemon.module`. Versions are compared before any library is imported, so that what
differs is named rather than felt. Nothing that starts threads may be imported here: a forked child has only the thread
that forked it. Polars does, so it is imported by the workers that hash.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from oncehouse.pipeline.spark.version_check import require_driver_versions

# Arrow's allocator gives memory back that was free for so long.
_KEPT_MS = 10_000
# The C library's, by the names under which a user may set them: numbers of its parameters, and bytes.
_GLIBC = {
    ("MALLOC_MMAP_THRESHOLD_", "glibc.malloc.mmap_threshold="): (-3, 32 << 20),
    ("MALLOC_TRIM_THRESHOLD_", "glibc.malloc.trim_threshold="): (-1, 256 << 20),
    ("MALLOC_TOP_PAD_", "glibc.malloc.top_pad="): (-2, 16 << 20),
}


def remove_pyspark_archives() -> None:
    """Take the archives of PySpark's own folder off the path where that folder itself can be imported from.

    Spark puts them first on the path. Of each package that was imported from an archive the whole list of its
    contents is read again before every task.
    """
    folders = [path for path in sys.path if path and Path(path).is_dir()]
    found = {name: PathFinder.find_spec(name, folders) for name in ("pyspark", "py4j")}
    pyspark = found["pyspark"]
    if pyspark is None or pyspark.origin is None or found["py4j"] is None:
        return
    home = Path(pyspark.origin).resolve().parent
    for path in [path for path in sys.path if _is_archive_in(home, path)]:
        sys.path.remove(path)
        sys.path_importer_cache.pop(path, None)


def _is_archive_in(home: Path, path: str) -> bool:
    return Path(path).is_file() and Path(path).resolve().is_relative_to(home)


def keep_memory() -> None:
    """Let a worker keep what it frees for the next block, instead of giving it back to the kernel at once.

    Taking memory again costs a fault and a cleared page for every 4 kB, which was much of what workers did. What is
    kept is never more than a worker has used before, and Spark ends workers that are idle for a minute. Under what
    the user's environment says.
    """
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", str(_KEPT_MS))
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    for (variable, tunable), (parameter, value) in _GLIBC.items():
        if variable not in os.environ and tunable not in tunables:
            library.mallopt(parameter, value)


def run_daemon() -> None:
    remove_pyspark_archives()
    keep_memory()
    require_driver_versions()
    import pyarrow.compute
    import pyarrow.json
    import pyarrow.parquet  # noqa: F401
    from pyspark.daemon import manager

    import oncehouse.pipeline.ingest.epoch
    import oncehouse.pipeline.load.insert_task  # noqa: F401
    from oncehouse.common import structured_logging

    structured_logging.start_if_configured()
    # Workers look for garbage after every task; what is loaded by now is none.
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    run_daemon()
