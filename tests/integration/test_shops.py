"""The example shops, small, as a user runs them; and that their comparison notices what is wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
WEEK = [f"2026-03-{day:02}" for day in range(2, 9)]
PATIENCE_SECONDS = 60
REGISTER = """
import sys
from sqlalchemy import create_engine
from models import DATABASE
from syncs import OrderSync
with create_engine(DATABASE).begin() as connection:
    OrderSync.register(connection, [int(sys.argv[1])])
"""

pytestmark = pytest.mark.servers


@contextmanager
def start_shop(name: str, *words: str, temporary: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, EXAMPLES / name / "run.py", *words],
        env={**ENVIRONMENT, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        # Asked, not killed: it has servers to stop.
        process.terminate()
        process.communicate()


def read_until(process: subprocess.Popen[str], words: str) -> list[str]:
    lines = []
    for line in process.stdout:
        lines.append(line)
        if words in line:
            return lines
    raise AssertionError(f"it did not say {words!r}: {''.join(lines)}{process.stderr.read()}")


def days_of(lines: list[str]) -> dict[str, list[str]]:
    """Orders and revenue of each day, from ClickHouse and from PostgreSQL."""
    rows = [line.split() for line in lines if line.startswith("2026-03-")]
    return {row[0]: row[1:] for row in rows}


def left_by(temporary: Path) -> list[object]:
    """Files, and processes that were started with this folder for theirs."""
    found: list[object] = list(temporary.iterdir())
    for process in Path("/proc").glob("[0-9]*"):
        try:
            said = process.joinpath("cmdline").read_bytes() + process.joinpath("environ").read_bytes()
        except OSError:
            continue  # it ended, or is somebody else's
        if os.fsencode(temporary) in said:
            found.append(process)
    return found


def test_the_django_shop_ends_with_dashboards_that_are_equal(tmp_path):
    with start_shop("django-shop", "--changes", "60", temporary=tmp_path) as process:
        output, errors = process.communicate()
    assert (process.returncode, errors) == (0, ""), output
    assert "60 of 60 changes" in output
    assert "FROM orders FINAL" in output
    days = days_of(output.splitlines())
    assert list(days) == WEEK
    assert all(row[:2] == row[2:] for row in days.values())
    assert output.endswith("\nequal\n")
    assert left_by(tmp_path) == []


@pytest.mark.long
def test_an_interrupted_shop_leaves_nothing_running(tmp_path):
    with start_shop("django-shop", temporary=tmp_path) as process:
        read_until(process, "250 of 1,000 changes")
        assert len(left_by(tmp_path)) > 5
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert (process.returncode, errors) == (130, "interrupted; everything is stopped\n")
    assert left_by(tmp_path) == []


@pytest.fixture
def example(monkeypatch):
    """The modules of the SQLAlchemy shop's command, importable as it imports them itself."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.syspath_prepend(str(EXAMPLES / "sqlalchemy-shop"))
    import run
    import shops

    yield run, shops
    for name in ("run", "shops"):
        sys.modules.pop(name, None)


@pytest.mark.long
def test_the_sqlalchemy_shop_stays_on_request_and_shows_what_was_changed_behind_its_back(
    tmp_path, example, capsys
):
    run, shops = example
    with start_shop("sqlalchemy-shop", "--changes", "60", "--stay", temporary=tmp_path) as process:
        shown = read_until(process, "export ")
        days = days_of(shown)
        assert list(days) == WEEK
        assert all(row[:2] == row[2:] for row in days.values())
        assert "equal\n" in shown
        addresses = dict(word.split("=", 1) for word in shown[-1].split()[1:])
        stage = shops.Stage(
            shop=run.SHOP, environment=addresses, log=tmp_path / "unused", say=lambda _line: None
        )
        assert shops.show_dashboard(stage) == 0

        with shops.connect_postgres(addresses) as connection:
            (order,) = connection.execute(
                "UPDATE lines SET price = price + 1 WHERE id = (SELECT min(l.id) FROM lines l JOIN orders o "
                "ON o.id = l.order_id WHERE NOT o.removed) RETURNING order_id"
            ).fetchone()
        capsys.readouterr()
        assert shops.show_dashboard(stage) >= 1
        told = capsys.readouterr().out
        assert "<- differs" in told
        assert told.endswith("rows differ: ClickHouse does not show what PostgreSQL has\n")

        subprocess.run(
            [sys.executable, "-c", REGISTER, str(order)],
            cwd=run.HERE,
            env={**ENVIRONMENT, **addresses},
            check=True,
        )
        deadline = time.monotonic() + PATIENCE_SECONDS
        while shops.show_dashboard(stage) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert shops.show_dashboard(stage) == 0

        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert left_by(tmp_path) == []
