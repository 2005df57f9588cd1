"""Blocks of a page, and a shell in which they run line by line as a reader would type them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of each block of a page that names its language."""
    return BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))


@dataclass(frozen=True, kw_only=True)
class Answer:
    code: int
    text: str


class PageShell:
    """One bash for the whole page, so that folders and environments last."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._bash = subprocess.Popen(
            ["bash", "--norc"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, line: str) -> Answer:
        # Nobody answers questions, and a command must not swallow the lines after it.
        self._bash.stdin.write(f"{{ {line}\n}} </dev/null; code=$?; echo; echo @@$code@@\n")
        self._bash.stdin.flush()
        said: list[str] = []
        for text in self._bash.stdout:
            if ended := re.fullmatch(r"@@(\d+)@@\n", text):
                return Answer(code=int(ended[1]), text="".join(said))
            said.append(text)
        raise AssertionError(f"the shell has gone at {line!r}: {''.join(said)}")

    def run_all(self, block: str) -> list[Answer]:
        """Each line, with exit 0 or the code that its comment names."""
        answers = []
        for line in block.splitlines():
            answer = self.run(line)
            told = re.search(r"#.*\bexit (\d+)", line)
            assert answer.code == (int(told[1]) if told else 0), f"{line}: exit {answer.code}\n{answer.text}"
            answers.append(answer)
        return answers

    def close(self) -> None:
        self._bash.stdin.close()
        self._bash.stdout.close()
        self._bash.wait(timeout=60)


@contextmanager
def open_checkout(folder: Path) -> Iterator[PageShell]:
    """A shell in a copy of what the package is built from. What it installs finds its requirements here already."""
    checkout = folder / "checkout"
    shutil.copytree(ROOT / "src", checkout / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    # False means: build with what is installed. pip reads the variable the wrong way round, on purpose by now.
    shell = PageShell(checkout, kept | {"PIP_NO_BUILD_ISOLATION": "0", "NO_COLOR": "1"})
    try:
        yield shell
    finally:
        shell.run("oncehouse dev down")
        shell.close()


def lend_packages(environment: Path) -> None:
    """Let a fresh virtual environment see the packages of this one, after its own."""
    (packages,) = environment.glob("lib/python*/site-packages")
    for old in packages.glob("setuptools*"):  # would hide the one that is lent
        shutil.rmtree(old)
    lent = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "lent.pth").write_text("\n".join(lent), encoding="utf-8")
