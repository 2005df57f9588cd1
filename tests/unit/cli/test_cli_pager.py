"""Long listings go through a pager on a terminal, a pseudo one here, and nowhere else."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.text import Text

from oncehouse.cli import pager
from oncehouse.cli.app import app, run_command
from oncehouse.cli.output import open_console, say
from oncehouse.config.file_loader import example_text

LINES, COLUMNS = 12, 100
GRANTS = 18
"""Lines that `oncehouse grants` shows at the least: more than the screen has."""


class Terminal:
    """What a person sees."""

    def __init__(self) -> None:
        self._screen, self._end = pty.openpty()
        self.resize(LINES)
        self.stdout = os.fdopen(self._end, "w", encoding="utf-8")
        self._seen: list[bytes] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def run(self, *arguments: str) -> int:
        with contextlib.redirect_stdout(self.stdout):
            return run_command(list(arguments))

    def resize(self, lines: int) -> None:
        fcntl.ioctl(self._end, termios.TIOCSWINSZ, struct.pack("HHHH", lines, COLUMNS, 0, 0))

    def _read(self) -> None:
        while True:
            try:
                self._seen.append(os.read(self._screen, 1 << 16))
            except OSError:  # nobody holds the other end any more
                return

    def close(self) -> str:
        self.stdout.close()
        self._reader.join()
        os.close(self._screen)
        return b"".join(self._seen).decode().replace("\r\n", "\n")


@pytest.fixture
def terminal(tmp_path, monkeypatch) -> Iterator[Terminal]:
    monkeypatch.chdir(tmp_path)
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pager, "_is_wanted", True)  # whatever the last command line said
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("PAGER", "sed 's/^/| /'")  # shows what went through it
    Path("pipeline.yaml").write_text(example_text(), encoding="utf-8")
    opened = Terminal()
    # Python asks the standard output that the process began with for the size of the screen.
    size = os.get_terminal_size
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: size(opened.stdout.fileno()))
    yield opened
    if not opened.stdout.closed:
        opened.close()


def test_a_listing_that_is_longer_than_the_screen_goes_through_the_pager(terminal):
    assert terminal.run("grants") == 0
    seen = terminal.close().splitlines()
    assert len(seen) > GRANTS
    assert all(line.startswith("| ") for line in seen)


def test_one_that_fits_does_not(terminal):
    terminal.resize(500)
    assert terminal.run("grants") == 0
    assert "| " not in terminal.close()


@pytest.mark.parametrize("arguments", [["--no-pager", "grants"], ["grants", "--json"]], ids=" ".join)
def test_nor_does_one_of_a_person_who_wants_none_nor_json(terminal, arguments):
    assert terminal.run(*arguments) == 0
    seen = terminal.close()
    assert not seen.startswith("| ")


@pytest.mark.parametrize(
    ("name", "value"), [("PAGER", ""), ("PAGER", "cat"), ("PAGER", "no-such-program-here"), ("TERM", "dumb")]
)
def test_nor_where_the_environment_has_no_pager(terminal, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert terminal.run("grants") == 0
    seen = terminal.close()
    assert len(seen.splitlines()) > GRANTS
    assert "| " not in seen


def test_a_pipe_gets_everything_at_once(terminal, capfd):
    assert run_command(["grants"]) == 0
    assert "| " not in capfd.readouterr().out


def test_no_pager_holds_for_one_command_line_alone(terminal):
    assert terminal.run("--no-pager", "version") == 0
    assert terminal.run("grants") == 0
    assert terminal.close().splitlines()[-1].startswith("| ")


def test_colours_come_through_the_pager_unless_nobody_wants_them(terminal, monkeypatch):
    @pager.paged()
    def show() -> None:
        for number in range(2 * LINES):
            open_console().print(Text(str(number), style="red"))

    with contextlib.redirect_stdout(terminal.stdout):
        show()
        monkeypatch.setenv("NO_COLOR", "1")
        show()
    lines = terminal.close().splitlines()
    assert lines[0] == "| \x1b[31m0\x1b[0m"
    assert lines[2 * LINES] == "| 0"


def test_a_pager_that_is_left_early_ends_the_command_well(terminal, monkeypatch):
    monkeypatch.setenv("PAGER", "head -n 1")
    assert terminal.run("grants") == 0
    assert len(terminal.close().splitlines()) == 1


def test_what_was_shown_before_a_failure_is_shown(terminal):
    @pager.paged()
    def show() -> None:
        say("as far as it went")
        raise OSError("away")

    with contextlib.redirect_stdout(terminal.stdout), pytest.raises(OSError, match="away"):
        show()
    assert terminal.close() == "as far as it went\n"


@pytest.mark.parametrize(
    ("text", "lines"), [("", 0), ("a\nb\n", 2), ("x" * 21, 3), ("\x1b[31m" + "x" * 10, 1), ("日" * 6, 2)]
)
def test_lines_of_the_screen_are_counted_as_it_wraps_them(text, lines):
    assert pager.count_lines(text, 10) == lines


def test_a_real_terminal_pages_by_the_program_of_the_environment(terminal):
    """In a process of its own, as a shell starts it."""
    program = "from oncehouse.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "grants"], stdout=terminal.stdout, stdin=terminal.stdout, check=False
    )
    assert done.returncode == 0
    assert all(line.startswith("| ") for line in terminal.close().splitlines())


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("statsu", "Did you mean 'status'?"),
        ("batches lst", "Did you mean 'list'?"),
        ("etl logg", "Did you mean 'log'?"),
        ("run --onec", "--once"),
        ("status --ledgr-only", "--ledger-only"),
    ],
)
def test_a_command_or_option_that_is_misspelt_is_answered_with_the_one_that_was_meant(words, meant, capsys):
    assert run_command(words.split()) == 2
    assert meant in capsys.readouterr().err


def is_paged(command: Any, words: str) -> bool:
    for word in words.split():
        command = command.commands[word]
    function = command.callback
    while function is not None and Path(function.__code__.co_filename).name != "contextlib.py":
        function = getattr(function, "__wrapped__", None)
    return function is not None


def test_long_listings_are_paged():
    whole = typer.main.get_command(app)
    listings = [
        "batches list",
        "dead-letters list",
        "etl log",
        "etl log checks",
        "inbox list",
        "dlq list",
        "status",
    ]
    assert [words for words in listings if not is_paged(whole, words)] == []
    # Whoever is asked a question has to see what it is about, and a run shows what it does while it does it.
    assert not any(is_paged(whole, words) for words in ("run", "dlq purge", "etl run", "version"))
