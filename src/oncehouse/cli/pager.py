"""Listings that are longer than the screen go through a pager, as `git log` does.

Only where standard output is a terminal, and never JSON. `PAGER` names the program (`less` by itself; empty or `cat`:
none), `oncehouse --no-pager …` does without. What a command shows is kept until it has ended, so nothing that waits for
an answer of a person, or goes on until it is stopped, is paged.
"""

from __future__ import annotations

import io
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rich.text import Text

_page: ContextVar[io.StringIO | None] = ContextVar("oncehouse_page", default=None)
_is_wanted = True
# Quit when all fits, let colours through, leave the screen as it is.
_LESS_OPTIONS = "FRX"


def want_pager(*, wanted: bool) -> None:
    """For this process: what `--no-pager` says."""
    global _is_wanted  # noqa: PLW0603 - an option of the whole command line
    _is_wanted = wanted


def open_page() -> io.StringIO | None:
    """Where to write what is shown now, in place of standard output; none where nothing is paged."""
    return _page.get()


@contextmanager
def paged() -> Iterator[None]:
    """Output inside is kept, and printed at the end: by a pager if the screen is too small for it."""
    if not may_page():
        yield
        return
    page = io.StringIO()
    token = _page.set(page)
    try:
        yield
    finally:
        _page.reset(token)
        show_page(page.getvalue())


def may_page() -> bool:
    return _is_wanted and sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and bool(find_pager())


def find_pager() -> list[str]:
    """The program and its arguments; none when no pager is wanted, or it is not installed."""
    program = os.environ.get("PAGER")
    try:
        words = shlex.split("less" if program is None else program)
    except ValueError:  # quotes that do not end
        return []
    return words if words and words != ["cat"] and shutil.which(words[0]) else []


def show_page(text: str) -> None:
    size = shutil.get_terminal_size()
    if count_lines(text, size.columns) < size.lines:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    environment = {"LESS": _LESS_OPTIONS, **os.environ}
    with subprocess.Popen(
        find_pager(), stdin=subprocess.PIPE, stdout=sys.stdout, env=environment, encoding="utf-8"
    ) as pager:
        try:
            pager.communicate(text)
        except KeyboardInterrupt:
            pager.wait()  # Ctrl-C is for the pager, which has the terminal until it ends


def count_lines(text: str, columns: int) -> int:
    """Lines of a screen of this width. Pure."""
    return sum(-(-max(1, Text.from_ansi(line).cell_len) // max(1, columns)) for line in text.splitlines())
