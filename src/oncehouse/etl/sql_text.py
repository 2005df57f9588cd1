"""SQL as text: statements told apart, comments set aside. Knows quotes and comments, and nothing of grammar."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""(?P<quoted>'(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `(?:[^`\\]|\\.)*`)
    | (?P<comment>--[^\n]* | /\*.*?\*/ | \#[\ !][^\n]*)
    | (?P<end>;)""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, kw_only=True)
class Statement:
    text: str
    line: int
    """Where its first word stands, counted from 1."""

    @property
    def words(self) -> str:
        """Without comments, so that it begins with its first word."""
        return _TOKEN.sub(lambda found: " " if found["comment"] else found[0], self.text).strip()


def split_statements(text: str) -> tuple[Statement, ...]:
    """What stands between semicolons; pieces of nothing but comments are left out."""
    ends = [found.start() for found in _TOKEN.finditer(text) if found["end"]]
    statements, start = [], 0
    for end in (*ends, len(text)):
        statement = Statement(text=text[start:end].strip(), line=text.count("\n", 0, start) + 1)
        if words := statement.words:
            first = text.index(words.split(maxsplit=1)[0], start)
            statements.append(Statement(text=statement.text, line=text.count("\n", 0, first) + 1))
        start = end + 1
    return tuple(statements)
