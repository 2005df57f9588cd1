"""Nothing that is read can run code or take all memory: safe YAML, no pickle in the ledger, caps on size and depth."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import oncehouse
from oncehouse.config.file_loader import parse_pipeline
from oncehouse.config.yaml_reader import MAX_DEPTH, MAX_FILE_BYTES
from oncehouse.errors import ConfigurationError

SOURCE = Path(oncehouse.__file__).parent
RUNS_CODE = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
BETWEEN_OWN_PROCESSES = {
    "messaging/consumer/process_workers.py",  # to a child of this process and back
    "pipeline/external/ledger_dataframes.py",  # from the driver to the tasks of its own job
}
"""Modules that pickle for a pipe or a job; nothing of it is ever stored."""


def modules() -> list[Path]:
    found = sorted(SOURCE.rglob("*.py"))
    assert len(found) > 100
    return found


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def calls(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


def test_only_what_never_leaves_its_own_processes_is_pickled():
    found = {str(path.relative_to(SOURCE)) for path in modules() if imports(path) & RUNS_CODE}
    assert found == BETWEEN_OWN_PROCESSES
    assert not [name for name in found if name.startswith("ledger/")]


def test_yaml_is_read_by_one_module_with_a_loader_that_builds_plain_values():
    readers = {str(path.relative_to(SOURCE)) for path in modules() if "yaml" in imports(path)}
    unsafe = {"yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "yaml.UnsafeLoader"}
    for name in readers:
        assert not calls(SOURCE / name) & unsafe, name
    assert "config/yaml_reader.py" in readers


HOSTILE_YAML = {
    "a tag that would build an object": "pipeline: !!python/object/apply:os.system [id]",
    "a tag of one's own": "pipeline: !x y",
    "an anchor that multiplies": "a: &a [x, x]\nb: [*a, *a]",
    "a second document": "pipeline: a\n---\npipeline: b",
    "a key that stands twice": "pipeline: a\npipeline: b",
    "too deep": "[" * (MAX_DEPTH + 5) + "]" * (MAX_DEPTH + 5),
    "far too deep": "[" * 100_000,
    "too large": f"pipeline: {'x' * MAX_FILE_BYTES}",
    "a control character": "pipeline: a\x00b",
    "a number without end": f"lease: {'9' * 100_000}",
}


@pytest.mark.parametrize("text", HOSTILE_YAML.values(), ids=HOSTILE_YAML)
def test_hostile_yaml_is_refused_in_few_words(text):
    with pytest.raises(ConfigurationError, match=r"^pipeline\.yaml:\d+: ") as refusal:
        parse_pipeline(text, "pipeline.yaml")
    assert len(str(refusal.value)) < 2000


def test_a_secrets_file_without_end_is_not_read_whole(tmp_path):
    (tmp_path / "secret").write_bytes(b"x" * (65 << 10))
    with pytest.raises(ConfigurationError, match="larger than 64KB"):
        parse_pipeline("pipeline: ${file:secret}", "pipeline.yaml", folder=tmp_path)


CAPPED = {
    "source.max_message_bytes": "max_message_bytes",
    "source.max_depth": "max_depth",
}


@pytest.mark.parametrize("key", CAPPED)
def test_a_records_size_and_depth_cannot_be_unbounded(key):
    for value in (0, -1, "infinite"):
        text = f"source: {{{CAPPED[key]}: {value}}}"
        with pytest.raises(ConfigurationError, match=CAPPED[key]):
            parse_pipeline(text, "pipeline.yaml")
