"""`oncehouse dashboard` as a command: where it listens, what it refuses to start with, and how it ends."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from oncehouse.cli.app import run_command
from oncehouse.cli.monitor_options import TOKEN_VARIABLE
from oncehouse.config.file_loader import example_text

MAIN = "from oncehouse.cli.app import main; main()"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "pipeline.yaml"
    path.write_text(example_text())
    return path


def test_it_serves_until_it_is_told_to_stop_with_a_live_page_open(file):
    command = [sys.executable, "-c", MAIN, "dashboard", str(file), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            told = process.stdout.readline()
            address = re.search(r"http://127\.0\.0\.1:\d+/", told)
            assert address is not None, process.stderr.read()
            with urllib.request.urlopen(address[0] + "leases", timeout=20) as answer:
                assert "has no ledger yet" in answer.read().decode()
            events = urllib.request.Request(address[0] + "leases", headers={"accept": "text/event-stream"})
            with urllib.request.urlopen(events, timeout=20) as stream:
                assert stream.readline().startswith(b"retry:")
                process.send_signal(signal.SIGTERM)
                stream.read()
            assert process.wait(20) == 0
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--listen", "0.0.0.0:0"], "a token is needed"),
        (["--listen", "8088"], "HOST:PORT"),
        (["--token-file", "none.txt"], "the token cannot be read"),
        (["--etl", "none.yaml"], "no such file"),
        (["--group", "billing"], "--group needs --messaging"),
    ],
)
def test_what_would_not_work_is_told_at_once(file, capsys, arguments, says, monkeypatch):
    monkeypatch.chdir(file.parent)
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert run_command(["dashboard", str(file), *arguments]) == 2
    assert says in capsys.readouterr().err


def test_an_address_that_is_taken_is_told(file, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run_command(["dashboard", str(file), "--listen", f"127.0.0.1:{port}"]) == 2
    assert "cannot listen" in capsys.readouterr().err


def test_a_short_token_is_refused_and_never_printed(file, capsys, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "short-1")
    assert run_command(["dashboard", str(file), "--listen", "0.0.0.0:0"]) == 2
    assert "16 printable" in (err := capsys.readouterr().err)
    assert "short-1" not in err
