"""`oncehouse chaos` up to its first server: the user's file on servers of its own, choices and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from oncehouse.cli.app import run_command
from oncehouse.config.file_loader import example_text, load_pipeline
from oncehouse.devstack.chaos import injected_defects, run_chaos
from oncehouse.devstack.chaos.injected_defects import DEFECTS
from oncehouse.devstack.chaos.pipeline_rewrite import RunPlace, load_there, write_there
from oncehouse.devstack.chaos.run_chaos import ChaosReport, ScenarioResult, choose
from oncehouse.devstack.chaos.scenario_run import NoFaultError
from oncehouse.devstack.chaos.scenarios import SCENARIOS, Scenario
from oncehouse.errors import ConfigurationError, TransientError

SECRETIVE = """
pipeline: shop
source:
  kafka:
    bootstrap_servers: ${env:NOBODY_SET_THIS}
    topics: [orders, refunds]
    options:
      security.protocol: SASL_SSL
      sasl.password: ${env:NOR_THIS}
      fetch.max.bytes: "1000000"
  format: avro
  avro:
    schemas: {"1": schemas/order.avsc}
    registry: {url: "https://registry:8081", password: "${file:nowhere}"}
  fields: {id: UInt64}
identity: {fields: [id], window: 1h}
shape:
  lookups:
    countries: {file: countries.csv, key: id, columns: {name: String}}
tables:
  - {name: one.orders, batch: {min_rows: 5, max_wait: 10m}}
  - {name: two.orders, batch_column: batch}
clickhouse:
  url: https://production:8443/shop
  user: writer
  password: ${env:NEITHER_THIS}
  ca_file: nowhere.pem
  insert_timeout: 20s
ledger: {catalog: "postgresql+psycopg://u:${env:NOT_EVEN_THIS}@host/db", files: s3://bucket/prefix}
epoch: {max_rows: 10}
lease: 2m
dead_letters: {max_share: 0.0}
spark: {master: yarn, settings: {spark.driver.memory: 900g}}
"""


@pytest.fixture
def place(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    return RunPlace(
        folder=folder, bootstrap_servers="127.0.0.1:1", clickhouse_url="http://127.0.0.1:2", number=7
    )


@pytest.fixture
def secretive(tmp_path):
    file = tmp_path / "pipeline.yaml"
    file.write_text(SECRETIVE)
    return file


def test_nothing_of_the_users_servers_is_left_and_no_secret_is_asked_for(secretive, place):
    there = write_there(secretive, place, events=800, keep_registry=False)
    text = there.read_text()
    for word in (
        "production",
        "NOBODY",
        "NOR_THIS",
        "registry",
        "SASL",
        "writer",
        "s3:",
        "postgres",
        "yarn",
        "900g",
    ):
        assert word not in text
    assert there.stat().st_mode & 0o077 == 0
    pipeline = load_pipeline(there)
    assert pipeline.source.kafka.bootstrap_servers == "127.0.0.1:1"
    assert pipeline.source.topics == ("chaos-7-000", "chaos-7-001")
    assert pipeline.clickhouse.url == "http://127.0.0.1:2"
    assert str(place.folder) in pipeline.ledger.files
    assert str(place.folder) in pipeline.ledger.catalog.get_secret_value()


def test_what_makes_the_pipeline_is_kept(secretive, place):
    pipeline = load_pipeline(write_there(secretive, place, events=800, keep_registry=False))
    assert pipeline.source.fields == {"id": "UInt64"}
    assert pipeline.source.kafka.options == {"fetch.max.bytes": "1000000"}
    assert pipeline.source.avro.schemas == {"1": str(secretive.parent / "schemas/order.avsc")}
    assert pipeline.shape.lookups["countries"].file == str(secretive.parent / "countries.csv")
    assert [(table.name, table.batch_column) for table in pipeline.tables] == [
        ("chaos_7.orders", "_batch_id"),
        ("chaos_7.orders_1", "batch"),
    ]
    assert pipeline.clickhouse.insert_timeout == 20


def test_limits_only_ever_become_smaller_and_windows_longer(secretive, place):
    pipeline = load_pipeline(write_there(secretive, place, events=800, keep_registry=False))
    assert pipeline.epoch.max_rows == 10
    assert pipeline.tables[0].batch.min_rows == 5
    assert pipeline.tables[0].batch.max_wait < 1
    assert pipeline.batch.max_rows == 200
    assert pipeline.lease == 5
    assert pipeline.identity.window == 86_400
    assert pipeline.dead_letters.max_share == 0.5


def test_a_registry_is_kept_where_only_a_sample_can_tell_the_schemas(secretive, place, tmp_path):
    (tmp_path / "nowhere").write_text("secret")
    there = write_there(secretive, place, events=800, keep_registry=True)
    assert "secret" not in there.read_text()
    assert load_pipeline(there).source.avro.registry.password.get_secret_value() == "secret"


def test_what_is_wrong_with_the_file_is_told_with_its_lines(tmp_path, place):
    file = tmp_path / "pipeline.yaml"
    file.write_text(SECRETIVE.replace("{id: UInt64}", "{id: UInt65}"))
    with pytest.raises(ConfigurationError, match=r"pipeline.yaml:15: source.fields.id"):
        load_there(file, place, keep_registry=False)


def test_a_pipeline_without_kafka_is_refused(tmp_path, place):
    document = yaml.safe_load(example_text())
    document["source"] = {"format": "frame", "fields": document["source"]["fields"]}
    file = tmp_path / "pipeline.yaml"
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigurationError, match="chaos is played over pipelines that read Kafka"):
        load_there(file, place, keep_registry=False)


def test_all_scenarios_are_played_unless_some_are_named():
    assert choose(()) == SCENARIOS
    last, first = SCENARIOS[-1].name, SCENARIOS[0].name
    assert [scenario.name for scenario in choose((last, first))] == [first, last]


def test_every_scenario_has_a_name_of_its_own_and_a_defect_that_exists():
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
    assert {scenario.defect for scenario in SCENARIOS} == set(DEFECTS)


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_changes_what_is_there(monkeypatch, name):
    changed: list[tuple[object, str]] = []
    monkeypatch.setattr(injected_defects, "_put", lambda holder, name, _: changed.append((holder, name)))
    DEFECTS[name]()
    assert changed
    assert not [name for holder, name in changed if not hasattr(holder, name)]


def test_what_is_not_there_is_not_changed():
    with pytest.raises(AttributeError):
        injected_defects._put(injected_defects, "no_such_function", None)


def test_the_docs_tell_of_every_scenario_and_defect():
    told = (Path(__file__).parents[3] / "docs" / "chaos.md").read_text()
    for scenario in SCENARIOS:
        assert f"| {scenario.name} | {scenario.row} | {scenario.what} | {scenario.defect} |" in told
    for defect in DEFECTS:
        assert f"\n| {defect} | " in told


def test_the_scenarios_are_listed(capsys):
    assert run_command(["chaos", "--list"]) == 0
    assert "answer swallowed" in capsys.readouterr().out
    assert run_command(["chaos", "--list", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out).values()
    assert [found["scenario"] for found in listed] == [scenario.name for scenario in SCENARIOS]


def test_a_scenario_that_nobody_knows_is_refused(capsys):
    assert run_command(["chaos", "--scenario", "earthquake"]) == 2
    assert "There is no scenario 'earthquake'" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_told(capsys, tmp_path):
    assert run_command(["chaos", str(tmp_path / "none.yaml")]) == 2
    assert "no such file" in capsys.readouterr().err


def make_result(**given) -> ScenarioResult:
    return ScenarioResult(
        **{"scenario": "SIGTERM", "faults_row": 17, "held": True, "seed": 4, "seconds": 1.0} | given
    )


@pytest.mark.parametrize(
    ("result", "well"),
    [
        (make_result(), True),
        (make_result(defect_caught=True), True),
        (make_result(defect_caught=False), False),
        (make_result(held=False, differences=("events: 3 rows lost",)), False),
    ],
)
def test_the_exit_tells_whether_all_held_and_every_defect_was_caught(
    result, well, monkeypatch, capsys, tmp_path
):
    def pretend(plan, scenarios, *, with_defects, say, on_result):
        on_result(result)
        return ChaosReport(pipeline="events", seed=4, records=9, rows=5, results=(result,))

    monkeypatch.setattr(run_chaos, "play_all", pretend)
    file = tmp_path / "pipeline.yaml"
    file.write_text(example_text())
    assert run_command(["chaos", str(file), "--events", "200", "--seed", "4"]) == (0 if well else 3)
    told = capsys.readouterr()
    for difference in result.differences:
        assert difference in told.err
    assert run_command(["chaos", str(file), "--events", "200", "--seed", "4", "--json"]) == (0 if well else 3)
    shown = json.loads(capsys.readouterr().out)
    assert (shown["ok"], shown["scenarios"][0]["held"], shown["seed"]) == (well, result.held, 4)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (NoFaultError("nobody died"), "the fault did not happen: nobody died"),
        (TransientError("Kafka is away"), "the run broke off: Kafka is away"),
    ],
)
def test_a_run_that_shows_nothing_has_not_held_and_catches_no_defect(error, told):
    class Silent:
        environment = type(
            "ChaosEnvironment", (), {"proxy": type("Proxy", (), {"take_back": lambda _self: None})()}
        )()

        def close(self) -> None: ...

    def fail(_play):
        raise error

    scenario = Scenario(name="x", row=1, what="", defect="", run=fail)
    assert run_chaos._act(Silent(), scenario, reference=None) == ([told], False)


def test_a_defect_that_shows_without_any_fault_does_not_count_as_caught(monkeypatch):
    class Silent:
        folder = Path()

        def __init__(self, *_given, defect="", **_which) -> None:
            self.defect = defect

    def act(run, _scenario, _reference):
        return (["3 rows lost"] if run.defect else [], True)

    monkeypatch.setattr(run_chaos, "ScenarioRun", Silent)
    monkeypatch.setattr(run_chaos, "_act", act)
    environment = type("ChaosEnvironment", (), {"seed": 1})()
    scenario = Scenario(name="x", row=1, what="", defect="token left out", run=lambda _: None)
    caught = {
        told: run_chaos._play(
            environment, scenario, None, number=1, defects={"token left out": alone}
        ).defect_caught
        for told, alone in (("only with the fault", []), ("always", ["3 rows lost"]))
    }
    assert caught == {"only with the fault": True, "always": False}
