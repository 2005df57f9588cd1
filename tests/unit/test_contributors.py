"""What contributors rely on is there: targets, paths and programs that CONTRIBUTING and the workflows name.

Workflows run nowhere but on GitHub. So their form is checked here: what they start, which Pythons they use, and that
each job has a time limit, few rights and pinned actions.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = [path for path in sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")) if path.stem != "config"]
PAPERS = [ROOT / "CONTRIBUTING.md", GITHUB / "pull_request_template.md"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

FENCE = re.compile(r"^ *```\w*\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"\.?[\w*-][\w.*-]*(?:(?:/[\w.*-]+)+/?|/|\.(?:json|md|py|toml|txt|ya?ml))")
MADE = (".venv/", "build/", "dist/")
"""Folders that `make` fills."""
PINNED = re.compile(r"[\w.-]+/[\w.-]+@(?:v\d+|release/v\d+)")


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def code_of(markdown: str) -> list[str]:
    """Fenced blocks and inline code."""
    return [*FENCE.findall(markdown), *INLINE.findall(FENCE.sub("", markdown))]


def commands_of(workflow: Any) -> list[str]:
    jobs = workflow["jobs"].values()
    return [step["run"] for job in jobs for step in job.get("steps", ()) if "run" in step]


def find_targets(texts: list[str]) -> set[str]:
    return {name for text in texts for name in re.findall(r"\bmake ([a-z][a-z-]*)", text)}


def read_targets(makefile: str) -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))


def find_paths(texts: list[str]) -> set[str]:
    words = {word for text in texts for word in re.split(r"[\s'\"=:,;()>]+", text)}
    return {word for word in words if PATH.fullmatch(word) and not word.startswith(MADE)}


def is_there(path: str) -> bool:
    return any(next(root.glob(path.rstrip("/")), None) for root in (ROOT, ROOT / "src" / "oncehouse"))


def find_problems(workflow: Any) -> list[str]:
    """What a workflow lacks that each of ours has."""
    problems = [f"no {key}" for key in ("name", "permissions", "concurrency", "jobs") if key not in workflow]
    if workflow.get("permissions") != {"contents": "read"}:
        problems.append("a workflow reads the repository and has no other right; a job may ask for more")
    for name, job in workflow["jobs"].items():
        if "uses" in job:
            continue
        if "timeout-minutes" not in job:
            problems.append(f"{name}: no timeout-minutes")
        actions = [step["uses"] for step in job["steps"] if "uses" in step]
        problems += [f"{name}: {action} is not pinned" for action in actions if not PINNED.fullmatch(action)]
    return problems


def pythons_of_matrix() -> list[str]:
    return load(GITHUB / "workflows" / "ci.yml")["jobs"]["tests"]["strategy"]["matrix"]["python"]


TARGETS = read_targets((ROOT / "Makefile").read_text(encoding="utf-8"))


def test_the_workflows_are_those_that_contributing_names():
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "nightly.yml", "release.yml"]
    text = PAPERS[0].read_text(encoding="utf-8")
    assert [path.name for path in WORKFLOWS if f"`.github/workflows/{path.name}`" not in text] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_is_sound_and_starts_targets_that_exist(path):
    workflow = load(path)
    assert find_problems(workflow) == []
    assert find_targets(commands_of(workflow)) <= TARGETS
    assert [
        name for name in find_paths(commands_of(workflow)) if not is_there(name) and name != "notes.md"
    ] == []


def test_the_workflows_run_what_they_promise():
    started = {path.stem: find_targets(commands_of(load(path))) for path in WORKFLOWS}
    assert started == {
        "ci": {"test", "docs", "sizes", "chromium", "browser", "coverage"},
        "nightly": {"chaos", "fuzz", "versions", "audit"},
        "release": {"dist"},
    }


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"permissions": "write-all"}, "no other right"),
        ({"jobs": {"a": {"steps": []}}}, "a: no timeout-minutes"),
        ({"jobs": {"a": {"timeout-minutes": 1, "steps": [{"uses": "x/y@main"}]}}}, "x/y@main is not pinned"),
        ({"jobs": {"a": {"timeout-minutes": 1, "steps": [{"uses": "x/y@v1.2"}]}}}, "x/y@v1.2 is not pinned"),
    ],
)
def test_an_unsound_workflow_is_found(change, problem):
    sound = {"name": "x", "permissions": {"contents": "read"}, "concurrency": "x", "jobs": {}}
    assert find_problems(sound) == []
    assert problem in "\n".join(find_problems(sound | change))
    assert find_problems({"jobs": {}})[:3] == ["no name", "no permissions", "no concurrency"]


@pytest.mark.parametrize("paper", PAPERS, ids=lambda path: path.name)
def test_targets_and_paths_that_a_paper_names_exist(paper):
    code = code_of(paper.read_text(encoding="utf-8"))
    assert find_targets(code) - TARGETS == set()
    assert {path for path in find_paths(code) if not is_there(path)} == set()


def test_contributing_names_many_paths_and_targets():
    code = code_of(PAPERS[0].read_text(encoding="utf-8"))
    assert {"setup", "check", "test", "coverage", "docs", "chaos", "dist"} <= find_targets(code)
    assert {"tests/unit/", "tests/support", "pipeline/formats/base.py", "pyproject.toml"} <= find_paths(code)
    assert len(find_paths(code)) > 50


def test_what_is_not_there_is_found():
    code = code_of(
        "Run `make nothing` and see `tests/none.py`, `tests/unit/docs/test_docs_*.py`.\n\n```sh\nA=no/b:c/d/ x\n```\n"
    )
    assert find_targets(code) - TARGETS == {"nothing"}
    assert {path for path in find_paths(code) if not is_there(path)} == {
        "tests/none.py",
        "no/b",
        "c/d/",
    }


def test_versions_of_python_are_the_same_everywhere():
    prefix = "Programming Language :: Python :: 3."
    classified = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if name.startswith(prefix)]
    supported = (ROOT / "docs" / "versioning.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^\| Python \| (.*) \|$", supported, re.MULTILINE)
    assert pythons_of_matrix() == classified == listed.split(", ")
    assert PROJECT["requires-python"] == f">={classified[0]}"


def test_the_pre_commit_hooks_are_the_checks_of_make_check():
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\ncheck:")[2].partition("\n\n")[0]
    (local,) = load(ROOT / ".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    assert {hook["language"] for hook in local["hooks"]} == {"system"}
    started = {hook["entry"].partition(" ")[0] for hook in local["hooks"]}
    assert {program.replace(".venv/bin/", "$(BIN)/") for program in started} == set(
        re.findall(r"\$\(BIN\)/[\w-]+", recipe)
    )


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_an_issue_form_has_what_github_asks_for(path):
    form = load(path)
    assert {"name", "description", "body"} <= set(form)
    asked = [field for field in form["body"] if field["type"] != "markdown"]
    names = [field["id"] for field in asked]
    assert len(names) == len(set(names)) > 0
    assert all(field["attributes"]["label"] for field in asked)
    assert any(field.get("validations", {}).get("required") for field in asked)


def test_dependabot_watches_folders_that_hold_something():
    settings = load(GITHUB / "dependabot.yml")
    assert settings["version"] == 2
    watched = {update["package-ecosystem"]: update for update in settings["updates"]}
    assert set(watched) == {"pip", "github-actions"}
    assert all((ROOT / update["directory"].lstrip("/")).is_dir() for update in watched.values())
    assert {update["schedule"]["interval"] for update in watched.values()} == {"weekly"}
    assert all(update["groups"] for update in watched.values())


def test_addresses_of_the_project_are_on_one_home():
    home = PROJECT["urls"]["Homepage"]
    assert set(PROJECT["urls"]) == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    assert all(url.startswith(home) for url in PROJECT["urls"].values())
    (contact,) = load(GITHUB / "ISSUE_TEMPLATE" / "config.yml")["contact_links"]
    assert contact["url"].startswith(home)
