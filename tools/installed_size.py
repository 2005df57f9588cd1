"""`make sizes`: what the core and each extra of oncehouse take on disk beyond Python itself, in megabytes.

Counts the files of all packages that an extra brings, as the metadata of those installed here list them, with their
compiled modules. Ends with 1 where the core or messaging with PostgreSQL takes more than its limit.
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
LIMITS = {"": 60, "messaging,postgres": 120}
MEGABYTE = 1_000_000


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    exceeded = 0
    for extras in (*LIMITS, *project["optional-dependencies"]):
        packages = find_packages(f"oncehouse[{extras}]")
        megabytes = sum(map(measure, packages)) / MEGABYTE
        limit = LIMITS.get(extras)
        exceeded += limit is not None and megabytes > limit
        bound = "" if limit is None else f", at most {limit} MB"
        print(f"{extras or 'core':<20}{megabytes:>8.1f} MB{len(packages):>5} packages{bound}")
    return 1 if exceeded else 0


def find_packages(requirement: str) -> dict[str, metadata.Distribution]:
    """All packages that a requirement brings on this machine, by name."""
    found: dict[str, metadata.Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(requirement)]
    while waiting:
        wanted = waiting.pop()
        key = canonical(wanted.name), frozenset(wanted.extras)
        if key in seen:
            continue
        seen.add(key)
        try:
            found[key[0]] = metadata.distribution(wanted.name)
        except metadata.PackageNotFoundError:
            sys.exit(f"{wanted.name} is not installed here, so its size is not known; run `make setup`")
        needs = map(Requirement, found[key[0]].requires or ())
        waiting += [need for need in needs if is_needed(need, wanted.extras)]
    return found


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def is_needed(requirement: Requirement, extras: set[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""})


def measure(name: str) -> int:
    """The bytes of a package's files. Of oncehouse itself those of `src`, for an editable install lists none."""
    if name == "oncehouse":
        return sum(path.stat().st_size for path in (ROOT / "src").rglob("*") if path.is_file())
    files = metadata.files(name) or ()
    places = {Path(str(file.locate())) for file in files}
    return sum(place.stat().st_size for place in places if place.is_file())


if __name__ == "__main__":
    sys.exit(main())
