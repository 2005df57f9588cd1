"""`make audit`: known vulnerabilities of what is pinned, bandit over the source, and a bill of materials.

Runs in an environment of its own. Nothing passes because nobody looked: a package that the vulnerability service
does not answer for is named and the audit ends with an error, and a finding of bandit counts as justified only by a
reason in the very place (`noqa: S608 - …`; ruff's S-checks bear bandit's numbers). What is left out altogether stands
with its reason under [tool.bandit] in pyproject.toml.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
PINNED = ("requirements/dev.txt", "requirements/redis.txt")
"""The first holds everything of runtime.txt too."""
MATERIALS = ROOT / "build" / "sbom.json"
SERVICES = ("pypi", "osv")

VULNERABLE, UNJUSTIFIED, NOT_AUDITED = 1, 2, 3


def main() -> int:
    MATERIALS.parent.mkdir(exist_ok=True)
    write_materials()
    unjustified = check_source()
    vulnerable, unknown = check_packages()
    if vulnerable:
        return VULNERABLE
    if unjustified:
        return UNJUSTIFIED
    return NOT_AUDITED if unknown else 0


def write_materials() -> None:
    """What the package is made of when it runs, with versions and hashes."""
    command = ["cyclonedx-py", "requirements", "requirements/runtime.txt", "--pyproject", "pyproject.toml"]
    done = run([*command, "--output-reproducible", "--of", "JSON", "-o", str(MATERIALS)])
    if done.returncode:
        sys.exit(f"sbom: cyclonedx-py failed:\n{done.stderr.strip()}")
    listed = json.loads(MATERIALS.read_text(encoding="utf-8"))["components"]
    print(f"sbom: {MATERIALS.relative_to(ROOT)} lists {len(listed)} packages")


def check_source() -> int:
    done = run(
        ["bandit", "--quiet", "--recursive", "src", "--configfile", "pyproject.toml", "--format", "json"]
    )
    try:
        report = json.loads(done.stdout)
    except ValueError:
        sys.exit(f"bandit failed:\n{done.stderr.strip()}")
    for error in report["errors"]:
        sys.exit(f"bandit could not read {error['filename']}: {error['reason']}")
    left = [finding for finding in report["results"] if not is_justified(finding)]
    for finding in left:
        where = f"{finding['filename']}:{finding['line_number']}"
        print(f"bandit: {where}: {finding['test_id']} {finding['issue_text']}")
    justified = len(report["results"]) - len(left)
    lines = report["metrics"]["_totals"]["loc"]
    print(f"bandit: {lines} lines read, {len(left)} findings, {justified} more with a reason in place")
    return len(left)


def is_justified(finding: Mapping[str, Any]) -> bool:
    code = finding["test_id"].replace("B", "S", 1)
    lines = (ROOT / finding["filename"]).read_text(encoding="utf-8").splitlines()
    covered = [finding["line_number"], *finding["line_range"]]
    # A statement that goes on bears the reason at its end.
    covered.append(max(covered) + 1)
    return any(
        re.search(rf"noqa: [A-Z0-9, ]*\b{code}\b", lines[number - 1])
        for number in covered
        if number <= len(lines)
    )


def check_packages() -> tuple[int, int]:
    """How many packages are known to be vulnerable, and of how many nothing is known."""
    found: dict[str, Mapping[str, Any]] = {}
    for service in SERVICES:
        for package in ask(service):
            if package["name"] not in found or "skip_reason" in found[package["name"]]:
                found[package["name"]] = package
        if found and not any("skip_reason" in package for package in found.values()):
            break
    return print_packages(list(found.values()))


def ask(service: str) -> Sequence[Mapping[str, Any]]:
    options = ["--disable-pip", "--require-hashes", "--progress-spinner", "off", "--format", "json"]
    pinned = [word for path in PINNED for word in ("--requirement", path)]
    done = run(["pip-audit", "--vulnerability-service", service, *pinned, *options])
    try:
        packages: Sequence[Mapping[str, Any]] = json.loads(done.stdout)["dependencies"]
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
        print(f"pip-audit: the service {service} cannot be asked: {last[:200]}")
        return []
    return packages


def print_packages(packages: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    vulnerable = [package for package in packages if package.get("vulns")]
    unknown = [package["name"] for package in packages if "skip_reason" in package]
    for package in vulnerable:
        for weakness in package["vulns"]:
            fixed = ", ".join(weakness["fix_versions"]) or "no version yet"
            print(f"pip-audit: {package['name']} {package['version']}: {weakness['id']}, fixed in {fixed}")
    looked_at = len(packages) - len(unknown)
    print(f"pip-audit: {looked_at} packages looked up, {len(vulnerable)} of them vulnerable")
    if unknown or not packages:
        shown = ", ".join(unknown[:5]) + (", …" if len(unknown) > 5 else "")
        print(
            f"NOT AUDITED: no service answered for {len(unknown) or 'any'} packages{f' ({shown})' if shown else ''}. "
            "Whether they are vulnerable is not known; run `make audit` where the package index can be reached.",
            file=sys.stderr,
        )
    return len(vulnerable), len(unknown) or int(not packages)


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / command[0]), *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )


if __name__ == "__main__":
    sys.exit(main())
