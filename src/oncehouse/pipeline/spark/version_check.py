"""Which versions the driver and Spark's workers run, and whether they are the same. Loads no library to find out.

The driver passes its versions in an environment variable; `worker_daemon.py` compares them on each executor before the
first task there, also on one that joins late. Of Python the minor version counts. Of oncehouse the code itself counts
too: two checkouts may have one version.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from importlib.resources import files
from importlib.resources.abc import Traversable

from oncehouse import __version__
from oncehouse.errors import ConfigurationError

VARIABLE = "ONCEHOUSE_VERSIONS"
BUNDLE_ADVICE = (
    "Install the same on every machine, or ship one environment to all of them: `oncehouse bundle environment.tar.gz`, "
    "and `environment: environment.tar.gz` under `spark:` in the pipeline file."
)

# What tasks compute with: another version may decode, hash or write otherwise.
_LIBRARIES = (
    "clickhouse-connect",
    "duckdb",
    "numpy",
    "polars",
    "polars-hash",
    "protobuf",
    "ptars",
    "pyarrow",
    "pydantic",
)
_MISSING = "missing"


def versions_here() -> dict[str, str]:
    found = {"python": f"{sys.version_info.major}.{sys.version_info.minor}", "pyspark": _pyspark()}
    found["oncehouse"] = f"{__version__}+{mark_code(files('oncehouse'))}"
    return found | {name: _installed(name) for name in _LIBRARIES}


def mark_code(package: Traversable) -> str:
    """A few digits that differ where any module of the package does."""
    digest = hashlib.sha256()
    for content in _modules(package):
        digest.update(content)
    return digest.hexdigest()[:12]


def write_versions(versions: Mapping[str, str]) -> str:
    """Of characters that no shell on the way takes for its own."""
    return ",".join(f"{name}:{version}" for name, version in sorted(versions.items()))


def read_versions(text: str) -> dict[str, str]:
    return {name: version for name, _, version in (pair.partition(":") for pair in text.split(",")) if name}


def find_differences(driver: Mapping[str, str], worker: Mapping[str, str]) -> list[str]:
    """What differs, from the worker's side; nothing where both agree."""
    return [
        f"{name} {worker.get(name, _MISSING)} (driver: {driver.get(name, _MISSING)})"
        for name in sorted(driver.keys() | worker.keys())
        if worker.get(name) != driver.get(name)
    ]


def require_driver_versions() -> None:
    """On an executor: raise ConfigurationError unless it runs what the driver runs.

    A driver that passes none runs on this machine.
    """
    if not (written := os.environ.get(VARIABLE)):
        return
    if differences := find_differences(read_versions(written), versions_here()):
        raise ConfigurationError(
            f"The executor on {socket.gethostname()} ({sys.executable}) differs from the driver: "
            f"{', '.join(differences)}. Nothing was read or written. {BUNDLE_ADVICE}"
        )


def _modules(folder: Traversable) -> Iterator[bytes]:
    for entry in sorted(folder.iterdir(), key=lambda found: found.name):
        if entry.is_dir():
            yield from _modules(entry)
        elif entry.name.endswith((".py", ".sql", ".proto")):
            content = entry.read_bytes()
            yield f"{entry.name} {len(content)} ".encode()
            yield content


def _pyspark() -> str:
    # Executors have it as a zip without metadata, which stands before any that is installed.
    try:
        from pyspark.version import __version__ as version
    except ImportError:
        return _MISSING
    return str(version)


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return _MISSING
