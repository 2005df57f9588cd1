"""The comparison at the end of the scheduler's example fails when a transform is wrong."""

from __future__ import annotations

import shutil

import pytest

from etl_example import EXAMPLE, read_table, run_example


@pytest.mark.servers
def test_a_transform_that_takes_the_last_row_of_a_step_again_is_noticed(tmp_path):
    folder = tmp_path / "etl"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    sql = folder / "tables.sql"
    wrong = sql.read_text().replace("(pos, id) > span.1", "(pos, id) >= span.1")
    assert wrong != sql.read_text()
    sql.write_text(wrong)
    # Small steps, so that there are borders between them whatever the pace; and no expectation that would stop them.
    facts = folder / "lineage" / "facts.yaml"
    counted = "at_least: 1, at_most: 1}"
    assert counted in facts.read_text()
    facts.write_text(
        facts.read_text().replace("maxstep: 20000", "maxstep: 100").replace(counted, "at_least: 0}")
    )
    done = run_example(folder, "--no-kill")
    assert done.returncode == 1, done.stdout + done.stderr
    missing, too_many = read_table(done.stdout)["dwh.orders"][2:]
    assert missing == "0"
    assert int(too_many) > 0
