"""The tree stays readable: small folders, modules that are named by nouns, and names in the words of the field.

The words that are not used are those of the table in CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "oncehouse"
MOST_MODULES = 25

NOUNS = {
    "encoding": "the form of bytes, as in header encoding",
    "finding": "what a check returns",
    "formatting": "values as texts; the word for it in every language",
    "fuzzing": "a kind of test",
    "hashing": "a field of computing",
    "logging": "structured logging, after the module of Python",
    "messaging": "the name of the package and of its extra",
    "monitoring": "the name of the package and of the field",
    "routing": "retry routing, as in message routing",
    "sizing": "batch sizing, as in capacity sizing",
    "tracing": "distributed tracing, after OpenTelemetry",
}
"""Words on -ing that are nouns of the field: why."""
ADJECTIVES = {
    "lagging": "a lagging replica",
    "pending": "a pending batch",
}
"""Words on -ing that say which, in front of a noun: an example."""
TERMS = {
    "dead_letter": "the domain word for a record that could not become a row",
    "dead_letters": "its plural",
    "sync_books": "books that the example shop of model sync sells",
}
"""Terms that hold a word of the table and are in use."""
EXCEPTIONS = {
    "src/oncehouse/sync/django/moving": "the former public name of `compat`, kept until 0.4",
    "tests/integration/test_docs_moving": "the pages of docs/moving",
}
"""Modules that keep their name: why."""
CODE_WORDS = {
    "frame": "a DataFrame, as pandas and Spark name it in code, and a frame of Python's stack",
}
"""Words of the table that names of classes, functions and arguments may have: why."""
NAMES = {
    "aside_seconds": "the name of a public property in 0.1",
    "examine_shape": "checks the section `shape` of the pipeline file",
    "shape": "the key of the pipeline file",
}
"""Names of classes, functions and arguments that hold a word of the table: why they keep it."""
CLASSES = {
    "Column": "a column of a model, in Django and in SQLAlchemy, and of a table of ClickHouse",
    "Command": "the name that Django requires for a management command",
    "Meta": "the name that Django requires for a model's options",
    "Migration": "the name that Django requires for a migration",
    "ModelSerializer": "rows of a model, in Django and in SQLAlchemy",
    "ModelSync": "the sync of a model: what both share, in Django and in SQLAlchemy",
    "Watch": "what is watched of a model, in Django and in SQLAlchemy",
}
"""Classes that several modules define: the one meaning."""
FILES_OF_USERS = {"clickhouse_models.py": "where a Django app declares its syncs"}
"""Files that the code names and that are not of this repository: what they are."""


def read_words(markdown: str) -> set[str]:
    """The left column of the table of words."""
    table = markdown.partition("| not | but |\n")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {word for cell in cells for word in re.findall(r"`(\w+)`", cell)}


WORDS = frozenset(read_words((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.arg


def list_modules(folder: Path) -> Iterator[Path]:
    """Modules and packages below a folder, as paths without suffix."""
    for path in sorted(folder.rglob("*.py")):
        if path.name != "__init__.py":
            yield path.with_suffix("")
        elif path.parent != folder:
            yield path.parent


def find_full_folders(folder: Path, most: int = MOST_MODULES) -> dict[str, int]:
    """Folders with too many modules, besides `__init__.py`."""
    folders = {path.parent for path in folder.rglob("*.py")}
    counts = {
        found: sum(path.name != "__init__.py" for path in found.glob("*.py")) for found in sorted(folders)
    }
    return {path.relative_to(folder).as_posix(): count for path, count in counts.items() if count > most}


def find_badly_named(folder: Path, words: Collection[str]) -> dict[str, str]:
    """Modules and packages by path, each with the word that its name may not have."""
    found = {
        path.relative_to(folder).as_posix(): find_bad_word(path.name, words) for path in list_modules(folder)
    }
    return {path: word for path, word in found.items() if word}


def find_bad_word(name: str, words: Collection[str]) -> str:
    for term in sorted(TERMS, key=len, reverse=True):
        name = re.sub(rf"(?<![a-z]){term}(?![a-z])", "", name)
    for word in re.findall(r"[a-z]+", name.lower()):
        if word in words or (word.endswith("s") and word[:-1] in words):
            return word
        if re.fullmatch(r"[a-z]*[aeiouy][a-z]*ing", word) and word not in (*NOUNS, *ADJECTIVES):
            return word
    return ""


@cache
def find_word(name: str, words: frozenset[str]) -> str:
    """The first word of a name of the code that is one of `words` or its plural."""
    parts = "_".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)).lower()
    for term in sorted(TERMS, key=len, reverse=True):
        parts = re.sub(rf"(?<![a-z]){term}(?![a-z])", "", parts)
    found = (word for word in parts.split("_") if word in words or (word[-1:] == "s" and word[:-1] in words))
    return next(found, "")


def list_names(folder: Path) -> Iterator[tuple[str, str]]:
    """Classes, functions and arguments that modules below a folder define, with their module."""
    for path, node in _list_definitions(folder):
        yield (node.arg if isinstance(node, ast.arg) else node.name), path


def find_repeated_classes(folder: Path) -> dict[str, list[str]]:
    """Classes that are defined at several places, with their modules."""
    places = defaultdict(list)
    for path, node in _list_definitions(folder):
        if isinstance(node, ast.ClassDef):
            places[node.name].append(path)
    return {name: sorted(paths) for name, paths in places.items() if len(paths) > 1}


@cache
def _list_definitions(folder: Path) -> list[tuple[str, Definition]]:
    """Of a tree that does not change meanwhile."""
    return [
        (path.relative_to(folder).as_posix(), node)
        for path in sorted(folder.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, Definition)
    ]


def find_absent_modules(folder: Path, root: Path = ROOT) -> set[tuple[str, str]]:
    """Modules that a text below a folder names, as `x.py`, and that are not there: the place and the name.

    A module of another folder is written with its folder.
    """
    paths = {f"/{path.relative_to(folder).as_posix()}" for path in folder.rglob("*.py")}
    return {
        (path.relative_to(folder).as_posix(), name)
        for path in folder.rglob("*.py")
        for name in re.findall(r"`([\w./-]+\.py)`", path.read_text(encoding="utf-8"))
        if not (path.parent / name).exists()
        and not ("/" in name and (any(at.endswith(f"/{name}") for at in paths) or (root / name).exists()))
    }


FOLDERS = ("src/oncehouse", "tests")


def find_all() -> dict[str, str]:
    return {
        f"{folder}/{path}": word
        for folder in FOLDERS
        for path, word in find_badly_named(ROOT / folder, WORDS).items()
    }


def test_no_folder_holds_too_many_modules():
    assert find_full_folders(SOURCE) == {}


def test_modules_are_named_by_nouns_in_the_words_of_the_field():
    assert {path: word for path, word in find_all().items() if path not in EXCEPTIONS} == {}


def test_names_of_the_code_are_in_the_words_of_the_field():
    words = frozenset(WORDS - CODE_WORDS.keys())
    assert {
        found for found in list_names(SOURCE) if find_word(found[0], words) and found[0] not in NAMES
    } == set()


def test_a_class_name_has_one_meaning():
    repeated = find_repeated_classes(SOURCE)
    assert {name: paths for name, paths in repeated.items() if name not in CLASSES} == {}


def test_modules_that_a_text_names_exist():
    absent = find_absent_modules(SOURCE)
    assert {found for found in absent if found[1] not in FILES_OF_USERS} == set()


def test_every_exception_is_needed():
    assert {name for _, name in find_absent_modules(SOURCE)} == set(FILES_OF_USERS)
    assert set(EXCEPTIONS) - set(find_all()) == set()
    names = [path.name for folder in FOLDERS for path in list_modules(ROOT / folder)]
    parts = {part for name in names for part in name.split("_")}
    assert set(NOUNS) | set(ADJECTIVES) <= parts
    used = {name for name, _ in list_names(SOURCE) if find_word(name, WORDS)}
    assert set(NAMES) <= used
    assert set(CODE_WORDS) <= {find_word(name, frozenset(CODE_WORDS)) for name in used}
    assert set(CLASSES) <= set(find_repeated_classes(SOURCE))


def test_names_of_test_modules_are_unique():
    names = Counter(path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py")
    # pytest imports them by their bare name.
    assert {name for name, count in names.items() if count > 1} == set()


def test_the_table_of_words_is_read():
    assert {"road", "door", "deed", "letter", "hearing", "pausing", "tending", "anew", "manager"} <= WORDS
    assert len(WORDS) > 40
    assert read_words("| not | but |\n|---|---|\n| `a`, `b` | `c` |\n\n| `d` | e |\n") == {"a", "b"}


def make_tree(folder: Path, *modules: str) -> Path:
    for module in modules:
        (folder / module).parent.mkdir(parents=True, exist_ok=True)
        (folder / module).touch()
    return folder


def test_a_full_folder_is_found(tmp_path):
    modules = [f"full/part{number}.py" for number in range(MOST_MODULES)]
    tree = make_tree(tmp_path, "__init__.py", "full/__init__.py", *modules, "full/below/one.py")
    assert find_full_folders(tree) == {}
    make_tree(tree, "full/part_last.py")
    assert find_full_folders(tree) == {"full": MOST_MODULES + 1}


def test_a_gerund_or_a_word_of_the_table_is_found_in_a_module_and_in_a_package(tmp_path):
    bad = (
        "loading.py",
        "open_door.py",
        "letters.py",
        "tending/__init__.py",
        "ok/tending_rows.py",
        "a/roads.py",
    )
    good = (
        "ok/dead_letters.py",
        "dead_letter_edits.py",
        "broader.py",
        "string.py",
        "strings_ring.py",
        "tracing_export.py",
        "messaging/__init__.py",
    )
    assert find_badly_named(make_tree(tmp_path, *bad, *good), WORDS) == {
        "a/roads": "roads",
        "letters": "letters",
        "loading": "loading",
        "ok/tending_rows": "tending",
        "open_door": "door",
        "tending": "tending",
    }


def test_an_absent_module_and_one_without_its_folder_are_found(tmp_path):
    tree = make_tree(tmp_path, "tools/x.py", "src/a/one.py", "src/b/two.py") / "src"
    (tree / "a/one.py").write_text(
        '"""`one.py`, `two.py`, `b/two.py`, `b/three.py`, `tools/x.py`, two.py."""'
    )
    assert find_absent_modules(tree, tmp_path) == {("a/one.py", "two.py"), ("a/one.py", "b/three.py")}


def test_a_word_of_the_table_is_found_in_names_of_the_code(tmp_path):
    (tmp_path / "one.py").write_text(
        "class BareLetter: ...\nclass DeadLetterPage: ...\nclass HTTPDoor: ...\n"
        "def spell_colour(broader, *letters, again=0, **dead_letters):\n    return lambda wish: wish\n"
        "async def retry(): ...\n"
    )
    found = {name for name, _ in list_names(tmp_path) if find_word(name, WORDS)}
    assert found == {"BareLetter", "HTTPDoor", "spell_colour", "letters", "again", "wish"}
    assert dict(list_names(tmp_path))["retry"] == "one.py"


def test_a_class_that_is_defined_twice_is_found(tmp_path):
    (tmp_path / "one.py").write_text("class A: ...\nclass B: ...\n")
    (tmp_path / "two.py").write_text("def make():\n    class A: ...\n")
    assert find_repeated_classes(tmp_path) == {"A": ["one.py", "two.py"]}
