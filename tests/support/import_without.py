"""Python with the packages of some extras only: `python import_without.py EXTRAS MODULE…` imports all modules of the
packages named, and `python import_without.py EXTRAS --command ARGUMENT…` runs `oncehouse`. EXTRAS is a comma-separated
list, `core` for none. Every other package that is installed here cannot be imported. With `django` the packages named
are its apps.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Sequence
from importlib import metadata
from importlib.abc import MetaPathFinder
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from installed_size import canonical, find_packages


class Blocker(MetaPathFinder):
    def __init__(self, blocked: set[str]) -> None:
        self._blocked = blocked

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname in self._blocked:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def block_others(extras: Sequence[str]) -> None:
    """Only the packages of the core and of these extras can be imported from now on."""
    allowed = {*find_packages(f"oncehouse[{','.join(extras)}]"), "packaging"}
    blocked = {
        module
        for module, owners in metadata.packages_distributions().items()
        if not {canonical(owner) for owner in owners} & allowed
    }
    sys.meta_path.insert(0, Blocker(blocked))


def import_all(package: str, without: Sequence[str]) -> None:
    module = importlib.import_module(package)
    for entry in pkgutil.iter_modules(getattr(module, "__path__", ())):
        name = f"{package}.{entry.name}"
        if not name.startswith(tuple(without)) and entry.name != "__main__":
            import_all(name, without)


def set_up_django(apps: Sequence[str]) -> None:
    import django
    from django.conf import settings

    settings.configure(INSTALLED_APPS=apps)
    django.setup()


def main(extras: str, *words: str) -> int:
    chosen = extras.split(",")
    block_others([extra for extra in chosen if extra != "core"])
    if words[0] == "--command":
        from oncehouse.cli.app import run_command

        return run_command(list(words[1:]))
    if "django" in chosen:
        set_up_django([word for word in words if not word.startswith("-")])
    for word in words:
        if not word.startswith("-"):
            import_all(word, [other[1:] for other in words if other.startswith("-")])
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
