"""The tree stays readable: small folders, and modules that are named by nouns in the words of the field.

The words that are not used are those of the table in CONTRIBUTING.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
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
FILES_OF_USERS = {"clickhouse_models.py": "where a Django app declares its syncs"}
"""Files that the code names and that are not of this repository: what they are."""


def read_words(markdown: str) -> set[str]:
    """The left column of the table of words."""
    table = markdown.partition("| not | but |\n")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {word for cell in cells for word in re.findall(r"`(\w+)`", cell)}


WORDS = read_words((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))


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


def test_modules_that_a_text_names_exist():
    absent = find_absent_modules(SOURCE)
    assert {found for found in absent if found[1] not in FILES_OF_USERS} == set()


def test_every_exception_is_needed():
    assert {name for _, name in find_absent_modules(SOURCE)} == set(FILES_OF_USERS)
    assert set(EXCEPTIONS) - set(find_all()) == set()
    names = [path.name for folder in FOLDERS for path in list_modules(ROOT / folder)]
    parts = {part for name in names for part in name.split("_")}
    assert set(NOUNS) | set(ADJECTIVES) <= parts


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
