"""Spans: nothing while nobody wants them, nested and free of secrets when somebody does, sent where OTEL_* says."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import StatusCode

from oncehouse.cli.app import run_command
from oncehouse.common.redaction import remember
from oncehouse.common.tracing import add_attributes, fail, span
from oncehouse.common.tracing_export import choose_exporter, export_spans, load_exporter
from oncehouse.errors import ConfigurationError
from oncehouse.pipeline.progress import Progress
from oncehouse.pipeline.stages.progress_reporter import RunResult
from page_shell import blocks
from recorded_spans import fresh_provider, recorded_spans


@pytest.fixture(autouse=True)
def _no_provider() -> Iterator[None]:
    with fresh_provider():
        yield


def test_the_command_line_imports_nothing_of_opentelemetry_while_no_span_is_asked_for():
    program = (
        "import sys, oncehouse.cli.app\nfrom oncehouse.common.tracing_export import export_spans\n"
        "with export_spans(print, {}):\n    pass\n"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_without_a_provider_a_span_records_nothing():
    with span("epoch", epoch=1) as nothing:
        add_attributes(nothing, new=3)
        fail(nothing, "no")
        assert not nothing.is_recording()


def test_a_span_lies_in_the_one_that_its_thread_has_open():
    with recorded_spans() as found, span("epoch", epoch=7), span("read", epoch=7) as inner:
        add_attributes(inner, records=12)
    read, epoch = found
    assert read.parent.span_id == epoch.context.span_id
    assert dict(read.attributes) == {"oncehouse.epoch": 7, "oncehouse.records": 12}
    assert read.resource.attributes["service.name"] == "oncehouse"


def test_a_failure_is_told_without_secrets_and_without_its_trace():
    remember("sup3r-s3cret-word")
    with recorded_spans() as found:
        with pytest.raises(OSError, match="away"), span("insert", detail="as sup3r-s3cret-word"):
            raise OSError("away: password sup3r-s3cret-word")
        with span("insert") as tried:
            fail(tried, "timed out")
    raised, failed = found
    assert raised.status.status_code is failed.status.status_code is StatusCode.ERROR
    assert failed.status.description == "timed out"
    (event,) = raised.events
    assert set(event.attributes) == {"exception.type", "exception.message"}
    assert event.attributes["exception.type"] == "OSError"
    assert "sup3r" not in raised.to_json()


@pytest.mark.parametrize(
    ("environment", "exporter"),
    [
        ({}, None),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, None),
        ({"OTEL_SDK_DISABLED": "TRUE", "OTEL_TRACES_EXPORTER": "otlp"}, None),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "otlp_proto_http"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, "otlp_proto_http"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x/v1/traces"}, "otlp_proto_http"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "otlp_proto_grpc"),
        ({"OTEL_TRACES_EXPORTER": "Console"}, "console"),
    ],
)
def test_the_standard_environment_says_whether_and_by_what_spans_go_out(environment, exporter):
    assert choose_exporter(environment) == exporter


def test_an_exporter_or_a_protocol_that_is_not_there_is_named():
    with pytest.raises(ConfigurationError, match=r"as 'zipkin'.*here are: console, otlp_proto_http"):
        load_exporter("zipkin")
    with pytest.raises(ConfigurationError, match="http/protobuf or grpc"):
        choose_exporter({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"})


def test_without_the_extra_the_run_goes_on_and_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    told = []
    with export_spans(told.append, {"OTEL_TRACES_EXPORTER": "otlp"}):
        assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    assert "pip install 'oncehouse[otel]'" in told[0]


class Collector(HTTPServer):
    """Takes what OTLP over HTTP brings."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, bytes]] = []
        super().__init__(("127.0.0.1", 0), _Taking)


class _Taking(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.server.taken.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as opened:
        thread = threading.Thread(target=opened.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield opened
        opened.shutdown()
        thread.join()


def test_a_run_sends_its_spans_to_the_collector_of_the_environment(collector, tmp_path, monkeypatch, capsys):
    def run_pipeline(*_: object, **__: object) -> RunResult:
        with span("epoch", pipeline="events", epoch=3):
            return RunResult(progress=Progress(), parked=0, refused=())

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("oncehouse.pipeline.run.run_pipeline", run_pipeline)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop-events")
    assert run_command(["init"]) == 0
    assert run_command(["run", "--once"]) == 0
    ((path, body),) = collector.taken
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    assert path == "/v1/traces"
    named = {entry.key: entry.value.string_value for entry in resource.resource.attributes}
    assert named["service.name"] == "shop-events"
    (sent,) = resource.scope_spans[0].spans
    assert sent.name == "epoch"
    assert {entry.key for entry in sent.attributes} == {"oncehouse.pipeline", "oncehouse.epoch"}


def test_a_provider_that_is_there_is_left_alone():
    with recorded_spans() as found:
        before = trace.get_tracer_provider()
        with export_spans(print, {"OTEL_TRACES_EXPORTER": "otlp"}), span("epoch"):
            assert trace.get_tracer_provider() is before
    assert [one.name for one in found] == ["epoch"]


def test_the_program_of_the_page_traces_by_its_own_provider():
    ((_, block),) = [told for told in blocks("docs/tracing.md") if told[0] == "python"]
    seen = {}
    program = block.replace("...", "seen['provider'] = trace.get_tracer_provider()")
    assert program != block
    exec(compile(program, "docs/tracing.md", "exec", dont_inherit=True), {"seen": seen})
    assert isinstance(seen["provider"], TracerProvider)
    seen["provider"].shutdown()
