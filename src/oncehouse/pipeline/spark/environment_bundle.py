"""A bundle: oncehouse and what it needs as one archive, which Spark unpacks on every executor (`spark.environment`).

It holds the very files that are installed here, so executors run what the driver runs. Left out are Python itself,
which a machine has, and PySpark, which comes with Spark: `bin/python` starts the machine's own Python of the same minor
version with the bundle before anything installed there. What tasks compute with is in it; the packages' own
metadata says what to include. Installs and downloads nothing.
"""

from __future__ import annotations

import gzip
import io
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import oncehouse
from oncehouse.errors import ConfigurationError

OF_SPARK = frozenset({"pyspark", "py4j"})
_SELF = "oncehouse[pipeline,postgres,protobuf]"
"""With what tasks of a pipeline may import; an extra that is not installed here is left out."""
_NAME = re.compile(r"^\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"""\bextra\s*==\s*['"]([^'"]+)['"]""")
_LEFT_OUT = ("__pycache__", ".pyc", ".pth")
_LIBRARIES = "lib"
# Mostly machine code: more effort makes it little smaller and takes many times as long.
_EFFORT = 1

_START = """\
#!/bin/sh
# The machine's own Python, with the packages of this bundle before those that are installed there.
here=$(cd "$(dirname "$0")/.." && pwd)
PYTHONPATH="$here/{libraries}${{PYTHONPATH:+:$PYTHONPATH}}"
export PYTHONPATH
exec "${{ONCEHOUSE_PYTHON:-python{major}.{minor}}}" "$@"
"""


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """What was written."""

    file: Path
    size_bytes: int
    python: str
    packages: dict[str, str]
    """Name and version of each, sorted."""


def write_bundle(file: Path, more: Sequence[str] = ()) -> Bundle:
    """`more`: further installed packages, such as those that a function of `shape` imports."""
    return write_packages(file, gather_packages((_SELF, *more)))


def write_packages(file: Path, packages: dict[str, metadata.Distribution]) -> Bundle:
    half = file.with_name(f"{file.name}.half")
    try:
        with (
            half.open("wb") as raw,
            gzip.GzipFile("", "wb", _EFFORT, raw, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
        ):
            for name, path in sorted(_files(packages)):
                archive.add(path, f"{_LIBRARIES}/{name}", recursive=False, filter=_forget_owner)
            _add_start(archive)
        half.replace(file)
    except OSError as error:
        half.unlink(missing_ok=True)
        raise ConfigurationError(f"The bundle {file} cannot be written: {error}") from error
    return Bundle(
        file=file,
        size_bytes=file.stat().st_size,
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        packages={name: package.version for name, package in sorted(packages.items())},
    )


def gather_packages(wanted: Iterable[str]) -> dict[str, metadata.Distribution]:
    """The packages asked for and all that they need, by name; raises where one asked for is not installed."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [(*_split(name), True) for name in wanted]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras, is_requested = waiting.pop()
        if name in OF_SPARK or (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if is_requested:
                raise ConfigurationError(f"The package {name!a} is not installed here.") from None
            continue  # for another platform or Python, or an extra that is not installed
        found[normalize(name)] = package
        waiting += [(*needed, False) for needed in _needs(package, extras)]
    return found


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _needs(package: metadata.Distribution, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    for line in package.requires or ():
        requirement, _, marker = line.partition(";")
        belongs_to = _EXTRA.findall(marker)
        if belongs_to and not extras & {normalize(extra) for extra in belongs_to}:
            continue
        yield _split(requirement)


def _split(requirement: str) -> tuple[str, frozenset[str]]:
    """The name and the extras of `name[extra,…]>=version`."""
    named = _NAME.match(requirement)
    if named is None:
        return requirement, frozenset()
    extras = (extra.strip() for extra in (named[2] or "").split(","))
    return named[1], frozenset(normalize(extra) for extra in extras if extra)


def _files(packages: dict[str, metadata.Distribution]) -> Iterator[tuple[str, Path]]:
    """Name in the bundle's `lib`, and where it lies here."""
    for name, package in packages.items():
        if name == _SELF:
            continue
        for file in package.files or ():
            path = Path(str(package.locate_file(file)))
            # Scripts lie outside of the packages' folder; executors start none of them.
            if ".." not in file.parts and not _is_left_out(file.parts) and path.is_file():
                yield file.as_posix(), path
    # As it is imported here: of a checkout the metadata names no files.
    home = Path(oncehouse.__file__).parent
    for path in home.rglob("*"):
        inside = path.relative_to(home.parent)
        if path.is_file() and not _is_left_out(inside.parts):
            yield inside.as_posix(), path


def _is_left_out(parts: Sequence[str]) -> bool:
    return any(part.endswith(_LEFT_OUT) for part in parts)


def _forget_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """The same installed files make the same bundle, at any time and on any machine."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    entry.mode = 0o755 if entry.mode & 0o100 else 0o644
    return entry


def _add_start(archive: tarfile.TarFile) -> None:
    text = _START.format(
        libraries=_LIBRARIES, major=sys.version_info.major, minor=sys.version_info.minor
    ).encode()
    entry = tarfile.TarInfo("bin/python")
    entry.size, entry.mode = len(text), 0o755
    archive.addfile(entry, io.BytesIO(text))
