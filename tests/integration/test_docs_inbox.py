"""docs/inbox.md runs as it stands: its Python in one program, its commands in the same folder."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from oncehouse.cli.app import run_command

PAGE = Path(__file__).parents[2] / "docs" / "inbox.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "billing.py").write_text("def bill_stored(session, message):\n    pass\n")
    yield tmp_path
    for name in ("shop", "shop.billing"):
        sys.modules.pop(name, None)


def test_the_page_runs_as_it_stands(folder, redis, capsys):
    namespace = {"redis_url": redis.url}
    commands = 0
    for kind, body in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if kind == "yaml":
            (folder / "messaging.yaml").write_text(body)
        elif kind == "python":
            exec(compile(body, str(PAGE), "exec"), namespace)
        elif kind == "console":
            for line in body.splitlines():
                if line.startswith("$ oncehouse inbox") and not line.endswith("serve"):
                    assert run_command(shlex.split(line)[2:]) == 0, line
                    commands += 1
    assert commands == 7
    assert "orders/0/5" in capsys.readouterr().out
    namespace["mails"]._client.close()
    for opened in (namespace["engine"], namespace["orders"].engine):
        opened.dispose()
