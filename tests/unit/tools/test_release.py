"""A tag is released only where the version and the changes of the tree are those of the tag."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TOOL = ROOT / "tools" / "release.py"
CHANGES = """# Changes

## Unreleased

## 1.2.0 (2030-01-31)

### Added

- A thing. ## 1.1.0 is no heading.

## 1.1.0 (2029-12-01)

- Older.

## 1.0.0 (2029-01-01)
"""


def load_tool():
    spec = importlib.util.spec_from_file_location("release_tool", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


release = load_tool()


@pytest.fixture
def write_tree(tmp_path):
    def write(*, project: str = "1.2.0", package: str = "1.2.0") -> Path:
        (tmp_path / "src" / "oncehouse").mkdir(parents=True)
        (tmp_path / "pyproject.toml").write_text(f'[project]\nversion = "{project}"\n')
        (tmp_path / "src" / "oncehouse" / "__init__.py").write_text(
            f'"""Text."""\n__version__ = "{package}"\n'
        )
        (tmp_path / "CHANGELOG.md").write_text(CHANGES)
        return tmp_path

    return write


def test_a_tag_that_fits_has_no_problems(write_tree):
    assert release.find_problems("v1.2.0", write_tree()) == []


def test_every_place_with_another_version_is_named(write_tree):
    assert release.find_problems("v1.2.0", write_tree(project="1.2.0.dev0", package="1.1.0")) == [
        "pyproject.toml has version 1.2.0.dev0, the tag says 1.2.0",
        "src/oncehouse/__init__.py has version 1.1.0, the tag says 1.2.0",
    ]


@pytest.mark.parametrize("tag", ["1.2.0", "v1.2", "v1.2.0.dev0", "vnext", "v1.2.0rc1"])
def test_a_tag_of_another_form_is_refused(write_tree, tag):
    (problem,) = release.find_problems(tag, write_tree())
    assert "vMAJOR.MINOR.PATCH" in problem


@pytest.mark.parametrize("version", ["1.3.0", "1.0.0"])
def test_a_version_without_changes_is_refused(write_tree, version):
    (problem,) = release.find_problems(f"v{version}", write_tree(project=version, package=version))
    assert f"`## {version} (YYYY-MM-DD)`" in problem


def test_notes_are_the_section_of_the_version_and_nothing_else(write_tree):
    root = write_tree()
    assert release.read_notes("1.2.0", root) == "### Added\n\n- A thing. ## 1.1.0 is no heading."
    assert release.read_notes("1.1.0", root) == "- Older."


def test_this_tree_states_one_version():
    assert len(set(release.read_versions(ROOT).values())) == 1


def test_the_program_ends_with_an_error_and_its_reason():
    ended = subprocess.run(
        [sys.executable, str(TOOL), "check", "v0.0.1"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "the tag says 0.0.1" in ended.stderr
