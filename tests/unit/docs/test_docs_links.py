"""Links of all papers lead somewhere, in the repository and in the site, and every page is in the site once."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]


def load_hooks():
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "tools" / "site_hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


site = load_hooks()
PAPERS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
)


@cache
def anchors(path: str) -> frozenset[str]:
    """As GitHub names headings: the text in small letters without punctuation, spaces as dashes."""
    text = site.FENCE.sub("", (ROOT / path).read_text(encoding="utf-8"))
    found: list[str] = []
    for heading in re.findall(r"^#{1,6} +(.*?) *#*$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.append(f"{name}-{found.count(name)}" if name in found else name)
    return frozenset(found)


def dead_links(paper: str, text: str) -> list[str]:
    dead = []
    for link in site.find_links(text):
        if not site.is_relative(link["target"]):
            continue
        path, anchor = site.find_target(paper, link["target"])
        if not (ROOT / path).exists() or (anchor and anchor not in anchors(path)):
            dead.append(f"{paper}: {link['target']}")
    return dead


def test_every_link_of_every_paper_leads_to_a_file_and_a_heading():
    assert len(PAPERS) > 50
    dead = [
        found for paper in PAPERS for found in dead_links(paper, (ROOT / paper).read_text(encoding="utf-8"))
    ]
    assert dead == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[a](nowhere.md)", ["docs/index.md: nowhere.md"]),
        ("[a](guarantees.md#no-such-heading)", ["docs/index.md: guarantees.md#no-such-heading"]),
        ("[`a`](#nope)", ["docs/index.md: #nope"]),
        ("[a](guarantees.md#the-window), [b](https://example.org/nowhere)", []),
        ("`[a](nowhere.md)`", []),
        ("```md\n[a](nowhere.md)\n```\n", []),
    ],
)
def test_a_dead_link_is_found_and_code_is_no_link(text, told):
    assert dead_links("docs/index.md", text) == told


def named_paths(paper: str) -> list[str]:
    """Paths in backticks of a paper, such as `docs/formats/` and `cli/app.py`."""
    text = site.FENCE.sub("", (ROOT / paper).read_text(encoding="utf-8"))
    return re.findall(r"`([\w.-]+(?:/[\w.-]+)*(?:/|\.(?:py|md|toml|yaml|yml|sql)))`", text)


def test_every_path_named_in_the_architecture_exists():
    roots = (ROOT, ROOT / "src" / "oncehouse")
    paths = named_paths("ARCHITECTURE.md")
    assert len(paths) > 50
    assert [path for path in paths if not any((root / path).exists() for root in roots)] == []


def test_the_architecture_names_every_package_and_stays_short():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    packages = {path.parent for path in (ROOT / "src" / "oncehouse").glob("*/__init__.py")}
    assert [path.name for path in packages if f"| `{path.name}/` |" not in text] == []
    assert len(text.splitlines()) <= 200


def navigation() -> list:
    # What stands before has tags that only MkDocs may load.
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1])


def pages() -> list[str]:
    own = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    return [*own, *site.FROM_ELSEWHERE.values()]


def test_every_page_is_in_the_navigation_once():
    named = list(site._name_pages(site.fill_navigation(navigation(), pages())))
    assert sorted(named) == sorted(pages())


def test_a_new_page_finds_its_place_and_a_section_without_pages_is_left_out():
    nav = [
        {"Reference": ["reference/cli.md", "reference/*"]},
        {"Runbooks": ["runbooks/*"]},
        {"More": ["m*", "*"]},
    ]
    there = ["new.md", "reference/cli.md", "reference/metrics.md", "more.md", "a/b.md"]
    assert site.fill_navigation(nav, there) == [
        {"Reference": ["reference/cli.md", "reference/metrics.md"]},
        {"More": ["more.md", "new.md"]},
    ]


@pytest.mark.parametrize(
    ("paper", "page", "text", "turned"),
    [
        ("docs/soak.md", "soak.md", "[how](../ARCHITECTURE.md#words)", "[how](architecture.md#words)"),
        ("docs/formats/csv.md", "formats/csv.md", "[a](../etl.md)", "[a](../etl.md)"),
        ("ARCHITECTURE.md", "architecture.md", "[`x`](docs/decisions/)", "[`x`](decisions/README.md)"),
        (
            "examples/etl/README.md",
            "examples/etl.md",
            "[code](shop.py), [b](../../docs/etl.md)",
            "code, [b](../etl.md)",
        ),
        (
            "docs/a.md",
            "a.md",
            "![p](soak.png) [x](https://y.z) [h](#h)",
            "![p](soak.png) [x](https://y.z) [h](#h)",
        ),
        ("docs/a.md", "a.md", "`[a](../README.md)` [b](../README.md)", "`[a](../README.md)` [b](index.md)"),
    ],
)
def test_links_are_turned_to_where_the_site_has_what_they_named(paper, page, text, turned):
    assert site.turn_links(text, paper, page) == turned


@pytest.mark.parametrize(
    ("html", "refused"),
    [
        ('<link rel="stylesheet" href="https://fonts.example/a.css">', True),
        ("<script defer src=//cdn.example/x.js>", True),
        ('<img alt="x" src="http://example.org/x.png">', True),
        ('<a href="https://example.org">x</a><img src="soak.png">', False),
    ],
)
def test_what_a_browser_would_fetch_from_elsewhere_is_seen(html, refused):
    assert bool(site.REMOTE.search(html)) is refused


def test_the_sites_own_style_and_script_ask_nobody():
    for asset in (ROOT / "docs" / "assets").iterdir():
        text = asset.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, asset.name
