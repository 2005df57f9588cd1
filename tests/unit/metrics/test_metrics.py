"""Metrics: one list of names, each told in a scrape that Prometheus' own parser reads; alerts and panels name them."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import socket
import sys
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack, closing
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import typer
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from monitored_system import EPOCHS, HISTORY, ORDERS, StandIn, make_system, write_health
from oncehouse.cli.app import app, run_command
from oncehouse.cli.monitor import metrics as command
from oncehouse.common.http_auth import make_http_auth
from oncehouse.errors import ConfigurationError
from oncehouse.ledger.models import RequestKind
from oncehouse.metrics import definitions
from oncehouse.metrics import server as serving
from oncehouse.metrics.collect import MetricSample, collect, stream_samples
from oncehouse.metrics.exposition import make_registry, write_text
from oncehouse.metrics.server import MetricsServer
from oncehouse.pipeline.progress import Progress, StreamProgress

ROOT = Path(__file__).resolve().parents[3]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
RUNBOOKS = ROOT / "docs" / "runbooks"
STREAM = StreamProgress(
    batch=7,
    records=100,
    input_per_second=50.0,
    processed_per_second=80.0,
    phase_seconds={"triggerExecution": 1.25, "addBatch": 1.0},
)


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    return make_system(tmp_path_factory.mktemp("targets"))


@pytest.fixture(scope="module")
def monitor(system):
    with closing(StandIn(system.targets)) as opened:
        yield opened


@pytest.fixture(scope="module")
def scrape(monitor) -> str:
    def everything():
        yield from collect(monitor)
        yield from stream_samples("orders", STREAM)

    text, content_type = write_text(make_registry(everything))
    assert content_type.startswith("text/plain")
    return text.decode()


def read(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(text: str, metric: str, /, **labels: str) -> float:
    return read(text)[metric, tuple(sorted(labels.items()))]


def test_every_metric_of_the_list_is_told_under_its_kind_and_its_labels(scrape):
    told: dict[str, set[tuple[str, ...]]] = {}
    kinds: dict[str, str] = {}
    for family in text_string_to_metric_families(scrape):
        for sample in family.samples:
            told.setdefault(sample.name, set()).add(tuple(sorted(sample.labels)))
            kinds[sample.name] = family.type
    assert told == {metric.name: {tuple(sorted(metric.labels))} for metric in definitions.ALL}
    assert kinds == {metric.name: metric.kind.value for metric in definitions.ALL}


def test_openmetrics_is_told_to_whoever_asks_for_it(monitor):
    text, content_type = write_text(
        make_registry(lambda: collect(monitor)), "application/openmetrics-text; version=1.0.0"
    )
    assert content_type.startswith("application/openmetrics-text")
    assert {family.name for family in parse_openmetrics(text.decode())} >= {
        "oncehouse_records",
        "oncehouse_batches",
    }


def test_the_figures_are_those_of_the_ledger(scrape, monitor):
    overview = monitor.activity("orders").overview
    (totals,) = overview.epochs
    assert value(scrape, "oncehouse_epochs_total", pipeline="orders", kind="kafka") == HISTORY + EPOCHS
    for fate in ("new", "duplicate", "dead_letter", "skipped", "waiting"):
        told = value(scrape, "oncehouse_records_total", pipeline="orders", kind="kafka", fate=fate)
        assert told == getattr(totals.counts, fate) > 0
    assert value(scrape, "oncehouse_lag_records", pipeline="orders", topic="payments", partition="0") == 400
    batches = {"pipeline": "orders", "table": "shop.payments", "status": "PARKED"}
    assert value(scrape, "oncehouse_batches", **batches) == 1
    assert value(scrape, "oncehouse_insert_seconds", pipeline="orders", table=ORDERS) == pytest.approx(0.7)
    assert value(scrape, "oncehouse_paused", pipeline="clicks", stage="ingest") == 1
    assert value(scrape, "oncehouse_lease_held", pipeline="orders", stage="retention") == 0
    assert value(scrape, "oncehouse_etl_failures", topic="Refunds") == 1
    assert value(scrape, "oncehouse_spark_phase_seconds", pipeline="orders", phase="addBatch") == 1


def test_a_refusal_that_nobody_has_seen_yet_is_told_as_zero(scrape):
    """A series that is born at 1 has no increase."""
    for kind in RequestKind:
        for pipeline in ("orders", "clicks"):
            assert value(scrape, "oncehouse_requests_refused_total", pipeline=pipeline, kind=kind) >= 0


def test_what_cannot_be_read_is_told_and_costs_nothing_else(system, scrape, tmp_path):
    broken = StandIn(system.targets)
    broken.targets.health_files[0].unlink()
    broken.ends = {}
    (system.folder / "clicks" / "catalog.db").rename(tmp_path / "away.db")
    try:
        text = write_text(make_registry(lambda: collect(broken)))[0].decode()
    finally:
        (tmp_path / "away.db").rename(system.folder / "clicks" / "catalog.db")
        write_health(broken.targets.health_files[0])
    assert value(text, "oncehouse_answers", part="pipeline", name="clicks") == 0
    assert value(text, "oncehouse_answers", part="kafka", name="orders") == 0
    assert value(text, "oncehouse_consumer_healthy", file=str(broken.targets.health_files[0])) == 0
    assert value(text, "oncehouse_answers", part="pipeline", name="orders") == 1
    assert ("oncehouse_lag_records", ()) not in read(text)


def test_hostile_labels_stay_labels():
    hostile = 'a"} 1\noncehouse_lag_records{x="\\'
    sample = MetricSample(definitions.DEAD_LETTERS, ("orders", hostile), 3.0)
    told = read(write_text(make_registry(lambda: [sample]))[0].decode())
    assert told == {("oncehouse_dead_letters", (("pipeline", "orders"), ("reason", hostile))): 3.0}


def test_the_reference_page_is_written_from_the_list():
    assert (ROOT / "docs" / "reference" / "metrics.md").read_text() == definitions.write_reference()
    assert len(definitions.BY_NAME) == len(definitions.ALL)


def test_the_command_prints_what_prometheus_reads(system, capsys, monkeypatch):
    monkeypatch.setattr(command, "_PATIENT_SECONDS", 0.1)  # nobody is there to be waited for
    file = str(system.targets.pipelines[0])
    assert run_command(["metrics", file, "--health", str(system.targets.health_files[0])]) == 0
    told = read(capsys.readouterr().out)
    assert told["oncehouse_answers", (("name", "orders"), ("part", "pipeline"))] == 1
    assert run_command(["metrics", file, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["metrics"]
    assert {
        "name": "oncehouse_index_segments",
        "kind": "gauge",
        "labels": {"pipeline": "orders"},
        "value": float(EPOCHS),
    } in listed


def test_files_that_are_wrong_are_told_before_anything_is_served(system, capsys, tmp_path):
    file = str(system.targets.pipelines[0])
    assert run_command(["metrics", file, "--messaging", str(tmp_path / "none.yaml")]) == 2
    assert "no such file" in capsys.readouterr().err
    assert run_command(["metrics", file, "--group", "billing"]) == 2
    assert "--group needs --messaging" in capsys.readouterr().err
    assert run_command(["metrics", file, file]) == 2
    assert "already" in capsys.readouterr().err


# The endpoint.


def get(port: int, path: str = "/metrics", **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def serve():
    opened = []

    def start(auth, collecting=lambda: [MetricSample(definitions.SCRAPE_SECONDS, (), 1.0)]):
        opened.append(MetricsServer(auth, make_registry(collecting)))
        return opened[-1].port

    yield start
    for server in opened:
        server.close()


def test_the_endpoint_serves_this_machine_by_its_own_names(serve):
    port = serve(make_http_auth("127.0.0.1:0", token=None))
    status, text = get(port)
    assert (status, value(text, "oncehouse_scrape_seconds")) == (200, 1.0)
    assert get(port, Host="localhost:9")[0] == 200
    assert get(port, Host="evil.example")[0] == 421
    assert get(port, "/")[0] == 404


def test_with_a_token_the_endpoint_asks_for_it_and_not_for_a_name(serve):
    port = serve(make_http_auth("0.0.0.0:0", token="correct-horse-battery"))
    assert get(port)[0] == 401
    assert get(port, Authorization="Bearer wrong-horse-battery")[0] == 401
    assert get(port, Authorization="Bearer correct-horse-battery", Host="metrics.example")[0] == 200


def test_a_scrape_that_fails_unexpectedly_is_an_answer_without_a_trace(serve):
    def fail():
        raise KeyError("secret")

    assert get(serve(make_http_auth("127.0.0.1:0", token=None), fail)) == (500, "unexpected KeyError\n")


def test_silent_connections_take_no_threads_and_shut_no_scrape_out(serve):
    port = serve(make_http_auth("127.0.0.1:0", token=None))
    before = threading.active_count()
    with ExitStack() as opened:
        for _ in range(200):
            opened.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert get(port)[0] == 200
        assert threading.active_count() < before + 10


def test_a_door_to_other_machines_needs_a_token_of_some_length():
    with pytest.raises(ConfigurationError, match="a token is needed"):
        make_http_auth("0.0.0.0:9464", token=None)
    with pytest.raises(ConfigurationError, match="16 printable"):
        make_http_auth("0.0.0.0:9464", token="short")
    for wrong in ("9464", "host:", ":1", "host:70000", "host:-1"):
        with pytest.raises(ConfigurationError, match="HOST:PORT"):
            make_http_auth(wrong, token=None)
    assert make_http_auth("[::1]:0", token=None).knows("[::1]:8088")


def test_a_run_serves_the_metrics_of_its_pipeline_and_of_sparks_stream(system, monkeypatch, capsys):
    """The engine is a stand-in that looks at the run's own endpoint while it runs."""
    ports, told = [], []

    class Noting(MetricsServer):
        def __init__(self, *given) -> None:
            super().__init__(*given)
            ports.append(self.port)

    def run_pipeline(pipeline, *, progress, **_):
        progress(Progress(read=3, stream=STREAM))
        told.append(get(ports[0]))
        return SimpleNamespace(progress=Progress(read=3), parked=0, refused=())

    engine = ModuleType("oncehouse.pipeline.run")
    engine.run_pipeline = run_pipeline
    monkeypatch.setitem(sys.modules, "oncehouse.pipeline.run", engine)
    monkeypatch.setattr(serving, "MetricsServer", Noting)
    file = str(system.targets.pipelines[0])
    assert run_command(["run", "--once", file, "--metrics", "127.0.0.1:0"]) == 0
    ((status, text),) = told
    assert status == 200
    assert value(text, "oncehouse_spark_micro_batch", pipeline="orders") == 7
    assert value(text, "oncehouse_epochs_total", pipeline="orders", kind="kafka") == HISTORY + EPOCHS
    with pytest.raises(urllib.error.URLError):
        get(ports[0])


# Alerts, panels and runbooks.


def used_metrics(expression: str) -> dict[str, set[str]]:
    """Metrics of an expression, with the labels that are chosen by."""
    found: dict[str, set[str]] = {}
    for name, labels in re.findall(r"\b(oncehouse_\w+)(?:\{([^}]*)\})?", expression):
        found.setdefault(name, set()).update(re.findall(r"(\w+)\s*[=!]", labels))
    return found


def check_expression(expression: str) -> None:
    used = used_metrics(expression)
    assert used, expression
    for name, labels in used.items():
        assert name in definitions.BY_NAME, f"{expression}: there is no metric {name}"
        assert labels <= set(definitions.BY_NAME[name].labels), expression
        counter = definitions.BY_NAME[name].kind is definitions.Kind.COUNTER
        assert not counter or re.search(rf"(increase|rate)\({name}", expression), (
            f"{expression}: {name} only grows"
        )
    grouped = {
        label
        for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression)
        for label in re.split(r", ?", group)
    }
    known = {label for name in used for label in definitions.BY_NAME[name].labels}
    assert grouped <= known, expression
    assert expression.count("(") == expression.count(")")


def rules() -> list[dict]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    return group["rules"]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_stands_on_metrics_of_the_list_and_has_its_runbook(rule):
    check_expression(rule["expr"])
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert re.fullmatch(r"\d+[smh]", rule["for"])
    told = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    grouped = re.match(r"(?:sum|max) by \(([^)]*)\)", rule["expr"])
    kept = (
        set(re.split(r", ?", grouped[1]))
        if grouped
        else set(definitions.BY_NAME[next(iter(used_metrics(rule["expr"])))].labels)
    )
    assert told <= kept, f"{rule['alert']}: its summary names labels that the expression has not"
    runbook = ROOT / rule["annotations"]["runbook"]
    text = runbook.read_text()
    assert text.startswith(f"# {rule['alert']}\n")
    assert f"```promql\n{rule['expr']}\n```" in text
    assert "\n## Check\n\n- " in text
    assert "\n## Fix\n\n- " in text


def test_every_runbook_belongs_to_an_alert_and_is_in_the_list():
    written = {path.name for path in RUNBOOKS.glob("*.md")} - {"README.md"}
    assert written == {Path(rule["annotations"]["runbook"]).name for rule in rules()}
    listed = re.findall(r"^\| \[(\w+)\]\(([^)]+)\)", (RUNBOOKS / "README.md").read_text(), re.MULTILINE)
    assert listed == [(rule["alert"], Path(rule["annotations"]["runbook"]).name) for rule in rules()]


def test_commands_that_runbooks_name_exist():
    commands = {
        found
        for path in RUNBOOKS.glob("*.md")
        for found in re.findall(r"`(oncehouse [^`]+)`", path.read_text())
    }
    assert len(commands) > 20
    root = typer.main.get_command(app)
    for named in sorted(commands):
        check_command(root, shlex.split(named)[1:])


def check_command(found, words: list[str]) -> None:
    while words and isinstance(getattr(found, "commands", None), dict):
        assert words[0] in found.commands, words
        found, words = found.commands[words[0]], words[1:]
    options = {
        option for parameter in found.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    assert {word for word in words if word.startswith("-")} <= options, words


def test_the_grafana_dashboard_is_written_from_its_rows_and_names_metrics_of_the_list():
    place = ROOT / "tools" / "grafana.py"
    spec = importlib.util.spec_from_file_location("grafana", place)
    assert spec is not None
    assert spec.loader is not None
    grafana = importlib.util.module_from_spec(spec)
    sys.modules["grafana"] = grafana
    spec.loader.exec_module(grafana)
    text = grafana.FILE.read_text()
    assert text == grafana.write_dashboard()
    panels = json.loads(text)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        for target in panel.get("targets", ()):
            check_expression(target["expr"])
    taken = [
        (x, y)
        for p in panels
        for x in range(p["gridPos"]["x"], p["gridPos"]["x"] + p["gridPos"]["w"])
        for y in range(p["gridPos"]["y"], p["gridPos"]["y"] + p["gridPos"]["h"])
    ]
    assert len(set(taken)) == len(taken), "panels lie over each other"
    assert max(x for x, _ in taken) == 23
