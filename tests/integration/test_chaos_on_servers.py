"""`oncehouse chaos` on its own servers: scenarios hold over a user's file, and a defect put in is noticed."""

from __future__ import annotations

import json

import pytest

from oncehouse.cli.app import run_command
from oncehouse.config.file_loader import example_text
from oncehouse.devstack.chaos.injected_defects import DEFECTS
from oncehouse.devstack.chaos.run_chaos import choose, make_plan, play_all

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

PATTERN = """
pipeline: lines
source:
  kafka: {bootstrap_servers: "${env:NOBODY_SET_THIS}", topics: [lines, others]}
  format: text
  text: {pattern: "(?P<level>[A-Z]+) (?P<id>[0-9]+) (?P<note>.*)"}
  fields: {level: String, id: UInt64, note: String}
identity: {fields: [id]}
tables:
  - {name: logs.errors, route: {where: "level = 'ERROR'"}}
  - {name: logs.all, columns: {number: id, text: note}, id_column: null}
clickhouse: {url: "https://production:8443", password: "${env:NOR_THIS}"}
ledger: {catalog: "postgresql+psycopg://production/db", files: s3://bucket/prefix}
"""


# One for each defect.
CHOSEN = (
    "driver killed, after registering",
    "connection cut",
    "two drivers",
    "Python worker killed",
    "SIGTERM",
)


def test_the_example_holds_and_each_defect_is_caught_by_the_fault_alone(tmp_path):
    file = tmp_path / "pipeline.yaml"
    file.write_text(example_text())
    plan = make_plan(file, events=600, seed=11, sample=None)
    chosen = choose(CHOSEN)
    assert {scenario.defect for scenario in chosen} == set(DEFECTS)
    told: list[str] = []
    report = play_all(plan, chosen, with_defects=True, say=told.append, on_result=lambda _: None)
    assert [
        (result.scenario, result.differences, result.defect_alone, result.defect_caught)
        for result in report.results
    ] == [(name, (), (), True) for name in CHOSEN], report
    assert report.rows == plan.traffic.identities
    assert report.went_well


def test_a_sample_of_the_users_own_is_played_for_formats_that_nobody_can_make_up(tmp_path, capsys):
    file, sample = tmp_path / "pipeline.yaml", tmp_path / "sample.txt"
    file.write_text(PATTERN)
    sample.write_text("".join(f"{'ERROR' if n % 3 else 'INFO'} {n} note of {n}\n" for n in range(100)))
    words = ["chaos", str(file), "--records", str(sample), "--events", "300", "--scenario", "connection cut"]
    assert run_command([*words, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["ok"], shown["rows"], shown["scenarios"][0]["held"]) == (True, 166, True)
