"""Spans as OpenTelemetry's SDK would send them, kept in memory in the order in which they ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.util._once import Once

from oncehouse.common.tracing_export import make_provider


@contextmanager
def recorded_spans() -> Iterator[list[ReadableSpan]]:
    """Filled at the end of the block."""
    exporter, provider, found = InMemorySpanExporter(), make_provider(), []
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with fresh_provider():
        trace.set_tracer_provider(provider)
        yield found
    provider.shutdown()
    found += exporter.get_finished_spans()


@contextmanager
def fresh_provider() -> Iterator[None]:
    """No provider is set at first, and none afterwards; a process may set one only once otherwise."""
    _forget_provider()
    try:
        yield
    finally:
        _forget_provider()


def _forget_provider() -> None:
    trace._TRACER_PROVIDER = None
    trace._TRACER_PROVIDER_SET_ONCE = Once()
