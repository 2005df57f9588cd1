"""The blocks of docs/consumer.md run as they stand there, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "consumer.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_page_runs(tmp_path, capsys):
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    names = {"__name__": "page"}
    for block in blocks:
        exec(compile(block.replace("/tmp/", f"{tmp_path}/"), str(PAGE), "exec"), names)
    assert len(blocks) == 4
    assert "records in" in capsys.readouterr().out
    assert (tmp_path / "consumer-health.json").exists()
