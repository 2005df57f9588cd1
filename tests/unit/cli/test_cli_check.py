"""`oncehouse check` looks at every part, tells all it finds, and ends with the code of the worst."""

import json

import pytest

from oncehouse.cli.app import run_command
from oncehouse.cli.pipeline import check
from oncehouse.clickhouse.preflight.check import Finding, Level
from oncehouse.config.file_loader import example_text
from oncehouse.errors import ConfigurationError, DataLossError, TransientError

WARNING = Finding(level=Level.WARNING, where="events", what="[red]odd", advice="look at it")
ERROR = Finding(level=Level.ERROR, where="events.price", what="no such column", advice="add it")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "pipeline.yaml"
    path.write_text(example_text())
    return path


@pytest.fixture
def parts(monkeypatch):
    """What each part answers: findings, or an error that is raised."""
    answers = {"identity": [], "kafka": [], "clickhouse": [], "ledger": [], "clocks": [], "sample": []}

    def answer_as(name):
        def look(pipeline):
            if isinstance(answers[name], Exception):
                raise answers[name]
            return answers[name]

        return look

    for name in answers:
        monkeypatch.setattr(check, f"examine_{name}", answer_as(name))
    return answers


def test_nothing_found_is_ready_to_run(file, parts, capsys):
    assert run_command(["check", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "pipeline events is ready to run"


def test_a_warning_is_told_and_stops_nothing(file, parts, capsys):
    parts["clickhouse"] = [WARNING]
    assert run_command(["check", str(file)]) == 0
    assert capsys.readouterr().out.startswith("warning: events: [red]odd\n  look at it\n")


def test_every_part_is_looked_at_even_when_others_are_wrong(file, parts, capsys):
    parts["kafka"] = TransientError("Kafka is away.\nStart it.")
    parts["clickhouse"] = [WARNING, ERROR]
    parts["ledger"] = ConfigurationError("no room")
    assert run_command(["check", str(file), "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False
    assert [(found["level"], found["where"], found["advice"]) for found in told["findings"]] == [
        ("error", "kafka", "Start it."),
        ("warning", "events", "look at it"),
        ("error", "events.price", "add it"),
        ("error", "ledger", ""),
    ]


@pytest.mark.parametrize(
    ("kafka", "clickhouse", "code"),
    [
        (TransientError("away"), [], 75),
        (TransientError("away"), [ERROR], 2),
        (DataLossError("gone"), [], 5),
        (DataLossError("gone"), [ERROR], 2),
    ],
)
def test_what_has_to_be_put_right_weighs_more_than_what_may_pass(kafka, clickhouse, code, file, parts):
    parts["kafka"], parts["clickhouse"] = kafka, clickhouse
    assert run_command(["check", str(file)]) == code


def test_a_wrong_file_is_told_before_any_server_is_asked(file, parts, capsys):
    parts["kafka"] = RuntimeError("asked")
    file.write_text(file.read_text().replace("window: 60d", "window: soon"))
    assert run_command(["check", str(file)]) == 2
    assert "identity.window: 'soon' is not a duration" in capsys.readouterr().err


OK = Finding(level=Level.OK, where="events: window", what="the table remembers the last 1200 blocks")


def test_what_is_right_is_shown_to_whoever_asks_why(file, parts, capsys):
    parts["clickhouse"] = [OK]
    assert run_command(["check", str(file)]) == 0
    assert "1200 blocks" not in capsys.readouterr().out
    assert run_command(["check", str(file), "--explain"]) == 0
    assert "ok: events: window: the table remembers the last 1200 blocks\n" in capsys.readouterr().out


def test_text_is_set_in_80_columns_and_statements_stay_in_one_piece(file, parts, capsys):
    statement = "ALTER TABLE `sales`.`events` MODIFY SETTING non_replicated_deduplication_window = 12000"
    finding = Finding(
        level=Level.ERROR,
        where="events: non_replicated_deduplication_window",
        what="the table remembers no blocks at all, a retry needs 12000 " + "(some figures) " * 8,
        advice=f"did you mean another table? Otherwise run: {statement}\nor ask somebody",
    )
    parts["clickhouse"] = [finding]
    run_command(["check", str(file)])
    lines = capsys.readouterr().out.splitlines()
    assert f"    {statement}" in lines
    assert lines[-1] == "  or ask somebody"
    assert all(len(line) <= 80 for line in lines if statement not in line)
    assert all(line.startswith("  ") for line in lines[1:])


def test_a_server_that_is_away_is_told_once(file, parts, capsys):
    parts["clickhouse"] = parts["clocks"] = TransientError("ClickHouse is away.\nStart it.")
    assert run_command(["check", str(file)]) == 75
    assert capsys.readouterr().out.count("ClickHouse is away.") == 1


def test_a_look_up_that_is_not_there_is_told_beside_the_rest(file, parts, capsys):
    shape = "shape:\n  lookups:\n    countries: {file: no.csv, key: product_id, columns: {name: String}}\n"
    file.write_text(example_text() + shape)
    assert run_command(["check", str(file)]) == 2
    assert "error: shape: shape.lookups.countries:\n" in capsys.readouterr().out


def test_an_expression_that_cannot_be_computed_is_told_with_its_line(file, parts, capsys):
    text = example_text() + 'shape:\n  where: "product_di > 1"\n'
    file.write_text(text)
    assert run_command(["check", str(file)]) == 2
    line = len(text.splitlines())
    assert f"pipeline.yaml:{line}: shape.where: there is no column 'product_di'" in capsys.readouterr().err
