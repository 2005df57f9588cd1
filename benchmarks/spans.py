"""What a span costs that nobody records, and one that is recorded: python benchmarks/spans.py

Processor time of opening, adding an attribute and closing; docs/decisions/0026-spans.md has the figures.
"""

from __future__ import annotations

import time

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from oncehouse.common.tracing import add_attributes, span

ROUNDS, SPANS = 5, 5_000


def measure(name: str) -> None:
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        for number in range(SPANS):
            with span("insert", pipeline="events", batch=number, table="events", attempt=1) as opened:
                add_attributes(opened, outcome="done")
        best = min(best, time.process_time() - start)
    print(f"{name:24}{best / SPANS * 1e6:8.1f} microseconds")


def main() -> None:
    measure("without a provider")
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
    trace.set_tracer_provider(provider)
    measure("recorded in memory")


if __name__ == "__main__":
    main()
