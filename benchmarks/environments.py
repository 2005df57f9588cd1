"""Environments of the peers: build/<name>, made from requirements/<name>.txt with its hashes, once."""

from __future__ import annotations

import shutil
import subprocess
import venv
from pathlib import Path

from figures import say

REQUIREMENTS = Path(__file__).parent.parent / "requirements"


def make_environment(name: str) -> Path:
    """The Python of an environment; it is made anew when its requirements change."""
    folder, requirements = Path("build") / name, REQUIREMENTS / f"{name}.txt"
    python, made = folder / "bin" / "python", folder / "requirements.txt"
    if not made.exists() or made.read_text() != requirements.read_text():
        say(f"installing {name} into {folder} (once)")
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--require-hashes", "-r", str(requirements)], check=True)
        shutil.copy(requirements, made)
    return python.absolute()
