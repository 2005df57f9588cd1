"""SQL as text: splits statements and removes comments. Knows what ClickHouse's lexer quotes, and no grammar."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

TEMPLATE_FILE = ".sql.j2"
"""Ends the name of a template of the user's own. It is known here so that a lineage is read without Jinja."""
_TOKEN = re.compile(
    r"""(?P<word>[^\W\d][\w$]*)
    | (?P<quoted>'(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `(?:[^`\\]|\\.)*`
        | \u201c[^\u201d]*\u201d | \u2018[^\u2019]*\u2019
        | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
    | (?P<comment>--[^\n]* | //[^\n]* | \#[\ !][^\n]*)
    | (?P<nested>/\*)
    | (?P<open>['"`\u201c\u2018])
    | (?P<end>;)""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")


def is_template_file(name: str) -> bool:
    return name.endswith(TEMPLATE_FILE)


class UnclosedError(ValueError):
    """A quote or a comment that is not closed: where statements end cannot be known."""

    def __init__(self, what: str, line: int) -> None:
        super().__init__(what, line)
        self.line = line

    def __str__(self) -> str:
        return f"{self.args[0]} in line {self.line} is not closed"


@dataclass(frozen=True, kw_only=True)
class SqlStatement:
    text: str
    line: int
    """Where its first word stands, counted from 1."""

    @property
    def words(self) -> str:
        """Without comments, so that it begins with its first word."""
        return _strip_comments(self.text)


def split_statements(text: str) -> tuple[SqlStatement, ...]:
    """What stands between semicolons; pieces of nothing but comments are left out."""
    ends = [start for kind, start, _ in _scan(text) if kind == "end"]
    statements, start = [], 0
    for end in (*ends, len(text)):
        piece = text[start:end]
        if _strip_comments(piece):
            first = start + _first_word(piece)
            statements.append(SqlStatement(text=piece.strip(), line=text.count("\n", 0, first) + 1))
        start = end + 1
    return tuple(statements)


def _first_word(text: str) -> int:
    """Where the text begins, past spaces and comments."""
    at = 0
    for kind, start, end in _scan(text):
        if kind != "comment" or text[at:start].strip():
            break
        at = end
    return at + len(text[at:]) - len(text[at:].lstrip())


def _strip_comments(text: str) -> str:
    pieces, at = [], 0
    for kind, start, end in _scan(text):
        if kind == "comment":
            pieces += [text[at:start], " "]
            at = end
    return "".join((*pieces, text[at:])).strip()


def _scan(text: str) -> Iterator[tuple[str, int, int]]:
    """Kind, start and end of all that could hold a semicolon, and of those that end a statement."""
    at = 0
    while (found := _TOKEN.search(text, at)) is not None:
        kind, at = found.lastgroup or "", found.end()
        if kind == "nested":
            kind, at = "comment", _end_of_comment(text, found.start())
        elif kind == "open":
            raise UnclosedError(f"the quote {found[0]}", text.count("\n", 0, found.start()) + 1)
        yield ("quoted" if kind == "tag" else kind), found.start(), at


def _end_of_comment(text: str, start: int) -> int:
    """Comments of /* … */ stand inside of each other."""
    depth = 0
    for found in _COMMENT_EDGE.finditer(text, start):
        depth += 1 if found[0] == "/*" else -1
        if depth == 0:
            return found.end()
    raise UnclosedError("the comment /*", text.count("\n", 0, start) + 1)
