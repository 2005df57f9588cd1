"""What of this machine oncehouse stands on: Python and its packages, Java, memory, disk, limits, names and ports.

Each look is a fact taken here and a judgement of it that takes the fact as an argument. Nothing is changed, and no
server is spoken to: that a port answers is all that is asked of it.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from oncehouse import __version__
from oncehouse.clickhouse.preflight.finding import Finding, Level
from oncehouse.common.formatting import format_bytes
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline

PACKAGES = ("pyspark", "pyarrow", "confluent-kafka", "clickhouse-connect", "polars", "duckdb", "sqlalchemy")

_GB = 1 << 30
_LEAST_MEMORY, _GOOD_MEMORY = 2 * _GB, 4 * _GB
_LEAST_FREE_SPACE, _GOOD_FREE_SPACE = _GB // 4, 5 * _GB
_GOOD_OPEN_FILES = 4_096
_ANSWER_SECONDS = 3.0
_OF_EXTRA = re.compile(r"""(?P<name>[\w.-]+).*\bextra == ['"](?P<extra>[\w-]+)['"]""")

Address = tuple[str, int]


def check_machine() -> Iterator[Finding]:
    yield _ok("python", f"Python {platform.python_version()} at {sys.executable}, oncehouse {__version__}")
    yield from check_packages()
    yield check_java()
    yield check_memory(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), os.cpu_count() or 1)
    yield check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield check_encoding(sys.getfilesystemencoding())
    yield check_host_name(socket.gethostname())
    yield check_free_space(
        "temporary files", tempfile.gettempdir(), shutil.disk_usage(tempfile.gettempdir()).free
    )


def check_servers_and_disks(pipeline: Pipeline) -> Iterator[Finding]:
    """Disks and ports that a pipeline file names."""
    if "://" not in pipeline.ledger.files:
        yield check_folder("the ledger's files", Path(pipeline.ledger.files))
    named = list(list_addresses(pipeline))
    with ThreadPoolExecutor(max_workers=max(1, len(named))) as threads:
        yield from threads.map(lambda one: check_port(*one), named)


def check_packages() -> Iterator[Finding]:
    found = {name: _version_of(name) for name in PACKAGES}
    missing = [name for name, version in found.items() if version is None]
    if missing:
        yield Finding(
            level=Level.ERROR,
            where="packages",
            what=f"{', '.join(missing)} cannot be found by this Python",
            advice="Run pip install 'oncehouse[pipeline]', or start the Python that has it.",
        )
    yield _ok("packages", ", ".join(f"{name} {version}" for name, version in found.items() if version))
    yield _ok("extras", ", ".join(list_extras(metadata.requires("oncehouse") or [])) or "none")


def list_extras(requirements: Iterable[str]) -> list[str]:
    """Those whose packages are all here, of requirements such as `redis>=8.1; extra == "redis"`."""
    packages: dict[str, list[str]] = {}
    for requirement in requirements:
        if found := _OF_EXTRA.match(requirement):
            packages.setdefault(found["extra"], []).append(found["name"])
    return [extra for extra, names in packages.items() if all(map(_version_of, names))]


def check_java() -> Finding:
    from oncehouse.devstack.java import find_java

    try:
        return _ok("java", f"Java at {find_java()} serves Spark")
    except ConfigurationError as error:
        what, _, advice = str(error).partition(". ")
        return Finding(level=Level.ERROR, where="java", what=what, advice=advice)


def check_memory(total: int, cores: int) -> Finding:
    text = f"{format_bytes(total)} of memory, {cores} cores"
    if total >= _GOOD_MEMORY:
        return _ok("memory", text)
    return Finding(
        level=Level.WARNING if total >= _LEAST_MEMORY else Level.ERROR,
        where="memory",
        what=text,
        advice=f"Spark's driver and its Python workers want {format_bytes(_GOOD_MEMORY)}; with less, lower "
        "`spark.settings` and `epoch`.",
    )


def check_open_files(limit: int) -> Finding:
    if limit in {resource.RLIM_INFINITY, -1} or limit >= _GOOD_OPEN_FILES:
        return _ok("open files", "no limit" if limit < 0 else f"up to {limit:,}")
    return Finding(
        level=Level.WARNING,
        where="open files",
        what=f"a process may open {limit:,} files",
        advice=f"Spark and the ledger may need more in a long run; run: ulimit -n {_GOOD_OPEN_FILES}",
    )


def check_encoding(encoding: str) -> Finding:
    if encoding.replace("-", "").lower() == "utf8":
        return _ok("encoding", "UTF-8")
    return Finding(
        level=Level.WARNING,
        where="encoding",
        what=f"names of files are read as {encoding}",
        advice="Names beyond ASCII may not be found; run: export PYTHONUTF8=1",
    )


def check_host_name(name: str) -> Finding:
    """Spark asks for it when its driver starts on a cluster."""
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        return Finding(
            level=Level.WARNING,
            where="host name",
            what=f"{name} has no address ({error})",
            advice="Executors on other machines cannot reach a driver here. Add the name to /etc/hosts, or set "
            "spark.driver.host in `spark.settings`.",
        )
    return _ok("host name", f"{name} has an address")


def check_folder(whose: str, folder: Path) -> Finding:
    """Of a folder that may not be there yet: of the first above it that is."""
    there = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
    return check_free_space(whose, str(folder), shutil.disk_usage(there).free)


def check_free_space(whose: str, path: str, free: int) -> Finding:
    text = f"{format_bytes(free)} are free for {whose} in {path}"
    if free >= _GOOD_FREE_SPACE:
        return _ok("disk", text)
    return Finding(
        level=Level.WARNING if free >= _LEAST_FREE_SPACE else Level.ERROR,
        where="disk",
        what=text,
        advice="Free some of it, or point to a larger disk (TMPDIR, `ledger.files`).",
    )


def list_addresses(pipeline: Pipeline) -> Iterator[tuple[str, Address]]:
    """What the file names, and where it listens."""
    if pipeline.source.kafka is not None:
        for server in pipeline.source.kafka.bootstrap_servers.split(","):
            parts = urlsplit(f"//{server.strip()}")
            yield "kafka", (parts.hostname or "", parts.port or 9092)
    yield "clickhouse", pipeline.clickhouse.address
    catalog = urlsplit(pipeline.ledger.catalog.get_secret_value())
    if catalog.scheme.startswith("postgresql") and catalog.hostname:
        yield "catalog", (catalog.hostname, catalog.port or 5432)


def check_port(where: str, address: Address) -> Finding:
    host, port = address
    begun_at = time.monotonic()
    try:
        socket.create_connection(address, timeout=_ANSWER_SECONDS).close()
    except OSError as error:
        return Finding(
            level=Level.ERROR,
            where=where,
            what=f"{host}:{port} does not answer ({error})",
            advice="Start it, or correct the address in the pipeline file; a firewall may be in between.",
        )
    return _ok(where, f"{host}:{port} answers in {(time.monotonic() - begun_at) * 1e3:.0f} ms")


def worst(findings: Sequence[Finding]) -> Level:
    levels = [Level.ERROR, Level.WARNING, Level.INFO, Level.OK]
    return min((finding.level for finding in findings), key=levels.index, default=Level.OK)


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _ok(where: str, what: str) -> Finding:
    return Finding(level=Level.OK, where=where, what=what)
