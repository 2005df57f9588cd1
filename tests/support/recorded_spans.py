"""Spans as OpenTelemetry's SDK would send them, kept in memory in the order in which they ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from oncehouse.common import tracing
from oncehouse.common.tracing_otel import make_provider, opener


@contextmanager
def recorded_spans() -> Iterator[list[ReadableSpan]]:
    """Filled at the end of the block."""
    exporter, provider, found = InMemorySpanExporter(), make_provider(), []
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with tracing.use(opener(provider.get_tracer("tests"))):
        yield found
    provider.shutdown()
    found += exporter.get_finished_spans()
