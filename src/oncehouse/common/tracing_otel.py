"""Spans by OpenTelemetry's SDK (the extra `otel`), sent where its standard OTEL_* variables say.

Imports the SDK only when those variables ask for spans. Names of attributes begin with `oncehouse.`; secrets are struck
out of texts, and of an exception only its class and message are kept, because a trace may hold anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from oncehouse import __version__
from oncehouse.common import tracing
from oncehouse.common.redaction import redact
from oncehouse.common.tracing import Value
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, Tracer

EXPORTER = "OTEL_TRACES_EXPORTER"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_GROUP = "opentelemetry_traces_exporter"
_BY_PROTOCOL = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}


@contextmanager
def exporting(say: Callable[[str], None], environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Spans go out while this lasts, if the environment asks for them; those that wait are sent at its end."""
    name = choose_exporter(environment)
    if name is None:
        yield
        return
    try:
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        say(f"no spans are sent: {EXPORTER} or an endpoint is set, but not `pip install 'oncehouse[otel]'`")
        yield
        return
    provider = make_provider()
    provider.add_span_processor(BatchSpanProcessor(load_exporter(name)))
    try:
        with tracing.use(opener(provider.get_tracer("oncehouse", __version__))):
            yield
    finally:
        provider.shutdown()


def choose_exporter(environment: Mapping[str, str]) -> str | None:
    """The name of the exporter as packages declare it, none when no spans are asked for. Pure."""
    asked = environment.get(EXPORTER, "").strip().lower()
    has_endpoint = any(environment.get(name) for name in _ENDPOINTS)
    is_disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if is_disabled or asked == "none" or not (asked or has_endpoint):
        return None
    if asked not in {"", "otlp"}:
        return asked
    protocol = next((environment[name] for name in _PROTOCOLS if environment.get(name)), "http/protobuf")
    if protocol not in _BY_PROTOCOL:
        raise ConfigurationError(
            f"{_PROTOCOLS[1]}={protocol!a} is not known here; write {' or '.join(_BY_PROTOCOL)}"
        )
    return _BY_PROTOCOL[protocol]


def load_exporter(name: str) -> SpanExporter:
    """By its entry point, so that exporters of other packages work too."""
    found = next(iter(entry_points(group=_GROUP, name=name)), None)
    if found is None:
        known = ", ".join(sorted(point.name for point in entry_points(group=_GROUP)))
        raise ConfigurationError(
            f"No installed package exports spans as {name!a} ({EXPORTER}, or the protocol of OTLP); here are: {known}. "
            f"OTLP over gRPC needs the package opentelemetry-exporter-otlp-proto-grpc."
        )
    exporter: SpanExporter = found.load()()
    return exporter


def make_provider() -> TracerProvider:
    """Service, sampling and limits are what the environment says; `oncehouse` where it names no service."""
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider

    named = Resource.create()
    unnamed = str(named.attributes.get(SERVICE_NAME, "")).startswith("unknown_service")
    return TracerProvider(resource=named.merge(Resource({SERVICE_NAME: "oncehouse"})) if unnamed else named)


def opener(tracer: Tracer) -> tracing.Opener:
    """For `spans.use`; programs that trace themselves give a tracer of theirs."""

    @contextmanager
    def open_span(name: str, attributes: dict[str, Value]) -> Iterator[_Noting]:
        with tracer.start_as_current_span(
            name, attributes=_spell(attributes), record_exception=False, set_status_on_exception=False
        ) as opened:
            noting = _Noting(opened)
            try:
                yield noting
            except BaseException as error:
                noting.fail(str(error))
                told = {"exception.type": type(error).__qualname__, "exception.message": redact(str(error))}
                opened.add_event("exception", told)
                raise

    return open_span


class _Noting:
    def __init__(self, opened: Span) -> None:
        self._opened = opened

    def note(self, **attributes: Value) -> None:
        self._opened.set_attributes(_spell(attributes))

    def fail(self, why: str) -> None:
        from opentelemetry.trace import Status, StatusCode

        self._opened.set_status(Status(StatusCode.ERROR, redact(why)))


def _spell(attributes: Mapping[str, Value]) -> dict[str, Value]:
    return {
        f"oncehouse.{name}": redact(value) if isinstance(value, str) else value
        for name, value in attributes.items()
    }
