"""`make versions`: what model sync promises, with every version of Django, SQLAlchemy and Python that it supports.

A version of a framework is a folder in front of the pinned packages, another Python is an environment of its own, both
under `build/versions/`, both installed by hashes (`requirements/`). Ends well only if no version failed; a Python that
is not on this machine is named. `--oldest` is for every test session: the oldest of both frameworks, at once.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "build" / "versions"
PINNED = ROOT / "requirements" / "dev.txt"
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"

NOT_NEEDED = ("py4j", "pyspark")
"""Model sync does without Spark, and it is as large as all the others."""
REDIS = ROOT / "requirements" / "redis.txt"
"""A server in a wheel for Python 3.11, which processes of every Python can start."""

CONTRACT = "tests/contract/test_sync_changes.py"
SUITES = {
    "": ("tests/contract/test_sync_*.py", "tests/unit/sync/test_sync_*.py"),
    "django": (
        CONTRACT,
        "tests/contract/test_sync_capture_django.py",
        "tests/contract/test_sync_keys_django.py",
        "tests/unit/sync/test_sync_parts.py",
    ),
    "sqlalchemy": (
        CONTRACT,
        "tests/contract/test_sync_capture_sqlalchemy.py",
        "tests/contract/test_sync_storages.py",
        "tests/unit/sync/test_sync_sqlalchemy_parts.py",
    ),
}
OTHERS = {"": "", "django": "not sqlalchemy", "sqlalchemy": "not django"}


@dataclass(frozen=True, kw_only=True)
class Run:
    python: str
    overlay: str = ""
    """A file of `requirements/versions/`; empty: the versions that are pinned."""


RUNS = (
    *(Run(python="3.11", overlay=f"django-{version}") for version in ("4.2", "5.0", "5.1")),
    *(Run(python="3.11", overlay=f"sqlalchemy-{version}") for version in ("2.0.43", "2.0")),
    Run(python="3.11"),
    Run(python="3.12"),
    Run(python="3.12", overlay="django-6.0"),
    Run(python="3.13"),
    Run(python="3.13", overlay="django-6.1"),
    Run(python="3.13", overlay="sqlalchemy-2.0"),
)
OLDEST = ("django-4.2", "sqlalchemy-2.0.43")


def main() -> int:
    if sys.argv[1:] == ["--oldest"]:
        return run_oldest()
    failed = 0
    print(f"{'Python':<8}{'version':<22}{'tests'}", flush=True)
    for run in RUNS:
        told = perform(run)
        failed += told.startswith("FAILED")
        print(f"{run.python:<8}{run.overlay or 'as pinned':<22}{told}", flush=True)
    return 1 if failed else 0


def perform(run: Run) -> str:
    program = Path(sys.executable) if run.python == OWN else find_python(run.python)
    if program is None:
        return "not tried: there is no such Python on this machine"
    path = [] if run.python == OWN else make_environment(run.python, program)
    python = program if run.python == OWN else PLACE / f"python-{run.python}" / "bin" / "python"
    if run.overlay:
        path.insert(0, make_overlay(run.overlay, run.python, python))
    framework = run.overlay.partition("-")[0]
    tests = sorted(str(test) for pattern in SUITES[framework] for test in ROOT.glob(pattern))
    done = start_tests(python, path, [*tests, "-k", OTHERS[framework]])
    lines = done.stdout.strip().splitlines() or [""]
    return lines[-1] if done.returncode == 0 else f"FAILED\n{done.stdout}{done.stderr}"


def run_oldest() -> int:
    """On PostgreSQL alone: what is written down and what `FINAL` shows after every kind of change."""
    python = Path(sys.executable)
    path = [make_overlay(name, OWN, python) for name in OLDEST]
    done = start_tests(python, path, [str(ROOT / CONTRACT), "-k", "postgresql"])
    print(done.stdout, done.stderr, sep="")
    return done.returncode


def start_tests(
    python: Path, path: Sequence[Path], arguments: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    folders = [*path, ROOT / "src"]
    return subprocess.run(
        [str(python), "-m", "pytest", "-q", "-r", "", "-o", "addopts=", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        # What was asked of a session around this one is not asked of these.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def find_python(version: str) -> Path | None:
    """On the PATH, or among those of pyenv. A shim of pyenv may be there without its Python."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    there = [Path(found)] if (found := shutil.which(f"python{version}")) else []
    for program in [*there, *sorted(pyenv.glob(f"{version}.*/bin/python"))]:
        if subprocess.run([str(program), "-c", ""], capture_output=True, check=False).returncode == 0:
            return program
    return None


def make_environment(version: str, program: Path) -> list[Path]:
    """What is pinned, for another Python; the folders that its tests need besides."""
    folder = PLACE / f"python-{version}"
    entries = re.split(r"\n(?=[a-z])", PINNED.read_text())
    kept = "\n".join(entry for entry in entries if name_of(entry) not in NOT_NEEDED)
    redis = REDIS.read_text()
    programs = folder / "programs"
    if not is_made(folder, kept + redis):
        shutil.rmtree(folder, ignore_errors=True)
        run([str(program), "-m", "venv", str(folder)])
        pip = [str(folder / "bin" / "pip")]
        install(pip, kept, folder)
        old = ("--target", str(programs), "--python-version", "3.11", "--only-binary", ":all:")
        install(pip, redis, folder, *old)
        mark_made(folder, kept + redis)
    return [programs]


def name_of(entry: str) -> str:
    return re.split(r"[=\[]", entry, maxsplit=1)[0]


def make_overlay(name: str, version: str, python: Path) -> Path:
    folder = PLACE / f"{name}-on-{version}"
    pinned = (ROOT / "requirements" / "versions" / f"{name}.txt").read_text()
    if not is_made(folder, pinned):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        install([str(python), "-m", "pip"], pinned, folder, "--target", str(folder))
        mark_made(folder, pinned)
    return folder


def install(pip: Sequence[str], pinned: str, folder: Path, *options: str) -> None:
    wanted = folder / "wanted.txt"
    wanted.write_text(pinned)
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
    run([*pip, "install", *quiet, *options, "-r", str(wanted)])


def run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def is_made(folder: Path, of: str) -> bool:
    mark = folder / ".made"
    return mark.is_file() and mark.read_text() == hashlib.sha256(of.encode()).hexdigest()


def mark_made(folder: Path, of: str) -> None:
    (folder / ".made").write_text(hashlib.sha256(of.encode()).hexdigest())


if __name__ == "__main__":
    sys.exit(main())
