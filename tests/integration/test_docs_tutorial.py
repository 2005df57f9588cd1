"""docs/tutorial.md from the first line to the last, in a shell, on the servers that it starts itself."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import yaml

from page_shell import PageShell, blocks, lend_packages, open_checkout

PAGE = "docs/tutorial.md"
KAFKA, CLICKHOUSE = "127.0.0.1:22492", "127.0.0.1:29113"
"""The addresses that the page prints; its reader has others."""

pytestmark = [pytest.mark.long, pytest.mark.servers, pytest.mark.timeout(1800)]


@pytest.fixture
def shell(tmp_path) -> Iterator[PageShell]:
    with open_checkout(tmp_path) as opened:
        yield opened


def test_the_tutorial_leads_from_a_topic_to_a_table(shell, tmp_path):
    found = blocks(PAGE)
    assert [kind for kind, _ in found] == ["sh", "sh", "yaml", "python", "sh", "sh", "sh", "sh"]
    servers, init, settings, produce, table, run, letters, lost = (text for _, text in found)

    first, *rest = servers.splitlines()
    shell.run_all(first)
    lend_packages(tmp_path / "checkout" / ".venv")
    shell.run_all("\n".join(rest))
    parts = json.loads(shell.run_all("oncehouse dev status --json 2>/dev/null")[0].text)["parts"]
    address = {part["part"]: part["address"].removeprefix("http://") for part in parts}

    def fit(block: str) -> str:
        assert KAFKA in block or CLICKHOUSE in block
        return block.replace(KAFKA, address["kafka"]).replace(CLICKHOUSE, address["clickhouse"])

    shop = tmp_path / "shop"
    shell.run_all(init)
    file = shop / "pipeline.yaml"
    put_in = yaml.safe_load(fit(settings))
    text = file.read_text(encoding="utf-8")
    for old, new in (
        ("localhost:9092", put_in["source"]["kafka"]["bootstrap_servers"]),
        ("http://localhost:8123", put_in["clickhouse"]["url"]),
    ):
        assert old in text
        text = text.replace(old, new)
    file.write_text(text, encoding="utf-8")

    (shop / "produce.py").write_text(fit(produce), encoding="utf-8")
    shell.run_all("python produce.py")
    printed, *_ = shell.run_all(table)
    assert "CREATE TABLE" in printed.text

    shell.run_all(run)
    status = json.loads(shell.run_all("oncehouse status --json 2>/dev/null")[0].text)
    names = ("read", "new", "duplicate", "dead_letter")
    assert [sum(kind["counts"][name] for kind in status["epochs"]) for name in names] == [1101, 1000, 100, 1]

    listed, *_ = shell.run_all(letters.splitlines()[0] + " --json 2>/dev/null")
    (letter,) = json.loads(listed.text)["dead_letters"]
    position = f"{letter['topic']}/{letter['partition']}/{letter['offset']}"
    shown, *_ = shell.run_all(letters.splitlines()[1].replace("events/0/550", position))
    assert "not an event" in shown.text

    count, *_ = shell.run_all(fit(lost))
    assert count.text.strip().splitlines()[-1] == "1000"
    again, *_ = shell.run_all(fit(lost.splitlines()[0]))
    assert again.text.strip().splitlines()[-1] == "1000"
