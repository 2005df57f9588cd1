"""Docs and examples import public names only, and the API pages have every one of them."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PUBLIC = (
    "oncehouse",
    "oncehouse.config",
    "oncehouse.etl",
    "oncehouse.messaging",
    "oncehouse.messaging.consumer",
    "oncehouse.messaging.django",
    "oncehouse.sync.django",
    "oncehouse.sync.django.compat",
    "oncehouse.sync.django.operations",
    "oncehouse.sync.django.tasks",
    "oncehouse.sync.sqlalchemy",
)
"""The modules that docs/versioning.md calls public; their `__all__` lists the names."""
RUNNERS = {
    "examples/django-shop/run.py": {"oncehouse.devstack.subprocesses"},
    "examples/shops.py": {
        "oncehouse.clickhouse.client",
        "oncehouse.devstack.stack",
        "oncehouse.devstack.subprocesses",
    },
    "examples/sqlalchemy-shop/run.py": {"oncehouse.devstack.subprocesses"},
    "examples/etl/run.py": {
        "oncehouse.clickhouse.client",
        "oncehouse.devstack.stack",
        "oncehouse.devstack.subprocesses",
    },
}
"""Programs that start an example on servers of the dev stack, which is no part of the public API."""
PAPERS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
DEMO = ROOT / "examples" / "demo"
"""It counts what is in the ledger, so it needs more than public names."""
PROGRAMS = sorted(path for path in (ROOT / "examples").rglob("*.py") if path.parent != DEMO)
BLOCK = re.compile(r"^```(?:python|pycon|py)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
IMPORT = re.compile(
    r"^\s*(?:from (oncehouse[\w.]*) import (\([^)]*\)|[^#\n]+)|import (oncehouse[\w.]*))", re.MULTILINE
)


def names_of(module):
    path = ROOT / "src" / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return set(ast.literal_eval(statement.value))
    raise AssertionError(f"{module} has no __all__")


def find_private(text, allowed=()):
    """The imports of a Python text that name something private."""
    found = []
    for module, names, plain in IMPORT.findall(text):
        if (plain or module) in allowed:
            continue
        if (plain or module) not in PUBLIC:
            found.append(plain or module)
        elif module:
            imported = {name.split(" as ")[0].strip() for name in names.strip("() \n").split(",")}
            found += [f"{module}.{name}" for name in sorted(imported - {""} - names_of(module))]
    return found


@pytest.mark.parametrize("paper", PAPERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_code_of_a_page_imports_public_names_only(paper):
    if paper.is_relative_to(ROOT / "docs" / "decisions"):
        pytest.skip("decisions tell of the inside")
    allowed = RUNNERS.get(str(paper.relative_to(ROOT)), ())
    assert find_private("\n".join(BLOCK.findall(paper.read_text())), allowed) == []


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_example_imports_public_names_only(program):
    allowed = RUNNERS.get(str(program.relative_to(ROOT)), ())
    assert find_private(program.read_text(), allowed) == []


@pytest.mark.parametrize(
    ("text", "private"),
    [
        ("from oncehouse import Sink, load_pipeline", []),
        ("from oncehouse import (\n    Sink,\n    secret,\n)", ["oncehouse.secret"]),
        ("from oncehouse.pipeline.run import run_pipeline", ["oncehouse.pipeline.run"]),
        ("import oncehouse.ledger", ["oncehouse.ledger"]),
    ],
)
def test_a_private_name_is_noticed(text, private):
    assert find_private(text) == private


@pytest.mark.parametrize("module", [name for name in PUBLIC if "django" not in name])
def test_public_names_are_there_and_completed(module):
    package = importlib.import_module(module)
    assert set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        assert getattr(package, name) is not None


def test_the_root_exports_the_whole_error_tree():
    errors = importlib.import_module("oncehouse.errors")
    classes = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert classes <= names_of("oncehouse")


def test_the_api_page_has_every_public_name():
    written = set(
        re.findall(r"^::: (\S+)$", (ROOT / "docs" / "reference" / "api.md").read_text(), re.MULTILINE)
    )
    expected = {f"{module}.{name}" for module in PUBLIC for name in names_of(module)}
    expected = {name for name in expected if not re.match(r"oncehouse\.(\w+Error|__version__)$", name)}
    expected -= {"oncehouse.messaging.django.inbox", "oncehouse.messaging.django.outbox"}
    assert written == expected | {"oncehouse.errors"}


def test_the_page_of_versions_lists_the_public_packages():
    told = set(re.findall(r"`(oncehouse[\w.]*)`", (ROOT / "docs" / "versioning.md").read_text()))
    assert told == set(PUBLIC)
