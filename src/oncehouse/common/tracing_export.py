"""Where spans go: by OpenTelemetry's SDK (the extra `otel`) to what its standard OTEL_* variables name.

Imports nothing of OpenTelemetry unless those variables ask for spans.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

EXPORTER = "OTEL_TRACES_EXPORTER"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_GROUP = "opentelemetry_traces_exporter"
_BY_PROTOCOL = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}


@contextmanager
def export_spans(say: Callable[[str], None], environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Spans are sent while this lasts, if the environment asks for them; those that wait are sent at its end.

    Sets the provider of the whole process, which OpenTelemetry allows once.
    """
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
    from opentelemetry import trace

    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        yield  # the process has a provider already, such as that of opentelemetry-instrument
        return
    provider = make_provider()
    provider.add_span_processor(BatchSpanProcessor(load_exporter(name)))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()


def choose_exporter(environment: Mapping[str, str]) -> str | None:
    """The name of the exporter as packages declare it, none when no spans are asked for. Pure."""
    exporter = environment.get(EXPORTER, "").strip().lower()
    has_endpoint = any(environment.get(name) for name in _ENDPOINTS)
    is_disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if is_disabled or exporter == "none" or not (exporter or has_endpoint):
        return None
    if exporter not in {"", "otlp"}:
        return exporter
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
