"""The examples of docs/retries.md that need no servers do what the page says."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "retries.md"


def run(at: int) -> None:
    block = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[at]
    exec(compile(block, "docs/retries.md", "exec"), {"__name__": "shop"})


def test_the_shop_hands_one_message_through_all_retry_topics_into_the_dead_letters(capsys):
    run(0)
    *handled, letter = capsys.readouterr().out.splitlines()
    assert all("orders  " in line and "order 2" not in line for line in handled)
    assert letter.startswith("b'order 2' {'oncehouse-origin': b'orders/0/2'")
    assert "'oncehouse-attempt': b'4', 'oncehouse-error': b'ValueError: no such customer'" in letter


def test_a_key_waits_and_another_does_not(capsys):
    run(1)
    assert capsys.readouterr().out == "['bob 1', 'ann 1', 'ann 2']\n"
