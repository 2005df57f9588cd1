"""What `make docs` adds to the pages of docs/: hooks that MkDocs calls, and the links that they and a test follow.

Papers that stand elsewhere in the repository become pages, a `*` of the navigation takes the pages of its folder that
are named nowhere else, and links are turned so that they hold in the site as they hold in the repository. A link to a
file that is no page (source code) becomes its text. A page that asks for something from another host is an error.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
FROM_ELSEWHERE = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "examples/django-shop/README.md": "examples/django-shop.md",
    "examples/etl/README.md": "examples/etl.md",
    "examples/sqlalchemy-shop/README.md": "examples/sqlalchemy-shop.md",
    "build/options.md": "reference/options.md",
}
"""A paper's place in the repository: its page. README.md is not among them: the site opens with a page of its own."""
WRITTEN_FOR_THE_SITE = "reference/options.md"
SELDOM_SOUGHT = ("decisions/", "changes.md")
"""Found by search after the pages that say how things are."""

FENCE = re.compile(r"^(?P<fence>`{3,}|~{3,}).*?^(?P=fence)[ \t]*$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"(?<!`)(`+)(?!`)(?:.*?[^`])\1(?!`)", re.DOTALL)
LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)")
REMOTE = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")


def find_links(markdown: str) -> Iterator[re.Match[str]]:
    """Links and images of a page, code aside."""
    yield from LINK.finditer(_without_code(markdown))


def _without_code(markdown: str) -> str:
    """The same text, as long as before, with code blanked out; code within a link's text stays a text."""
    for pattern in (FENCE, CODE):
        markdown = pattern.sub(lambda found: re.sub(r"[^\n]", "x", found[0]), markdown)
    return markdown


def is_relative(target: str) -> bool:
    return not re.match(r"[a-z][a-z0-9+.-]*:|/", target)


def find_target(paper: str, target: str) -> tuple[str, str]:
    """(path in the repository, anchor) of a relative link in a paper."""
    path, _, anchor = target.partition("#")
    return (posixpath.normpath(posixpath.join(posixpath.dirname(paper), path)) if path else paper), anchor


def find_page(path: str) -> str | None:
    """The page or file of the site, relative to its root, that stands for a path of the repository."""
    if path == "README.md":
        return "index.md"
    if path in FROM_ELSEWHERE:
        return FROM_ELSEWHERE[path]
    if path.startswith("docs/"):
        inside = path.removeprefix("docs/")
        return f"{inside}/README.md" if (ROOT / path).is_dir() else inside
    return None


def turn_links(markdown: str, paper: str, page: str) -> str:
    """The text of a paper as that of a page: each relative link leads to the page of what it named."""
    pieces, end = [], 0
    for found in find_links(markdown):
        if not is_relative(found["target"]) or found["target"].startswith("#"):
            continue
        path, anchor = find_target(paper, found["target"])
        there = find_page(path)
        text = markdown[found.start("text") : found.end("text")]
        if there is None:
            turned = text
        else:
            way = posixpath.relpath(there, posixpath.dirname(page) or ".")
            turned = f"{found['image']}[{text}]({way}{'#' if anchor else ''}{anchor})"
        pieces += [markdown[end : found.start()], turned]
        end = found.end()
    return "".join([*pieces, markdown[end:]])


def fill_navigation(nav: Any, pages: list[str]) -> Any:
    """The navigation with each `*` replaced by the pages that it stands for; a section without pages is left out."""
    named = set(_name_pages(nav))
    return _fill(nav, [page for page in sorted(pages) if page not in named])


def _name_pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, Mapping) else nav:
            yield from _name_pages(entry)


def _fill(nav: Any, free: list[str]) -> Any:
    """Takes out of `free` what it has placed, so that the first `*` that fits a page is the only one."""
    filled: list[Any] = []
    for entry in nav:
        if isinstance(entry, Mapping):
            for title, inside in entry.items():
                if pages := inside if isinstance(inside, str) else _fill(inside, free):
                    filled.append({title: pages})
        elif "*" in entry:
            fitting = [
                page for page in free if fnmatchcase(page, entry) and page.count("/") == entry.count("/")
            ]
            free[:] = [page for page in free if page not in fitting]
            filled += fitting
        else:
            filled.append(entry)
    return filled


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    pages = [path.relative_to(config.docs_dir).as_posix() for path in Path(config.docs_dir).rglob("*.md")]
    config.nav = fill_navigation(config.nav, pages)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    for paper, page in FROM_ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / paper).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    del config, files
    uri = page.file.src_uri
    if uri.startswith(SELDOM_SOUGHT):
        page.meta["search"] = {"boost": 0.1}
    if uri == WRITTEN_FOR_THE_SITE:
        return markdown
    papers = {there: paper for paper, there in FROM_ELSEWHERE.items()}
    return turn_links(markdown, papers.get(uri, f"docs/{uri}"), uri)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse what a reader's browser would fetch from another host."""
    from mkdocs.exceptions import PluginError

    del config
    if asked := REMOTE.search(re.sub(r"<link rel=\"canonical\"[^>]*>", "", output)):
        raise PluginError(
            f"{page.file.src_uri} would have browsers fetch {asked[1]}; the site has to hold all it shows"
        )
    return output
