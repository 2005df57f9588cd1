"""What the release workflow asks of a tag: whether it may be released, and the notes of its version.

    python tools/release.py check v0.2.0    # ends with 1 and every reason why this tag cannot be released
    python tools/release.py notes v0.2.0    # prints the section of CHANGELOG.md

Imports nothing but the standard library, so that it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("action", choices=("check", "notes"))
    parser.add_argument("tag")
    arguments = parser.parse_args()
    if problems := find_problems(arguments.tag, ROOT):
        print("\n".join(problems), file=sys.stderr)
        return 1
    if arguments.action == "notes":
        print(read_notes(arguments.tag.removeprefix("v"), ROOT))
    return 0


def find_problems(tag: str, root: Path) -> list[str]:
    """Every reason why a tag does not fit the tree below `root`."""
    version = tag.removeprefix("v")
    if not re.fullmatch(r"v\d+\.\d+\.\d+", tag):
        return [f"{tag} is no tag of a release; name it vMAJOR.MINOR.PATCH"]
    problems = [
        f"{place} has version {found}, the tag says {version}"
        for place, found in read_versions(root).items()
        if found != version
    ]
    if not read_notes(version, root):
        problems.append(f"CHANGELOG.md has no section `## {version} (YYYY-MM-DD)` with text")
    return problems


def read_versions(root: Path) -> dict[str, str]:
    """The version by the file that states it."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    package = "src/oncehouse/__init__.py"
    stated = next(
        ast.literal_eval(statement.value)
        for statement in ast.parse((root / package).read_text(encoding="utf-8")).body
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__version__"
    )
    return {"pyproject.toml": project["version"], package: stated}


def read_notes(version: str, root: Path) -> str:
    """The text of a version's section; empty where there is none."""
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$"
    found = re.search(rf"{heading}(?P<text>.*?)(?=^## |\Z)", changes, re.DOTALL | re.MULTILINE)
    return found["text"].strip() if found else ""


if __name__ == "__main__":
    sys.exit(main())
