"""Samples as Prometheus reads them: its text format, or OpenMetrics for a scraper that asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from oncehouse.common.redaction import redact
from oncehouse.metrics.collect import MetricSample
from oncehouse.metrics.definitions import ALL, Kind, Metric

PLAIN = "text/plain"


class SampleCollector(Collector):
    """Collects for each scrape; keeps nothing between scrapes."""

    def __init__(self, collect: Callable[[], Iterable[MetricSample]]) -> None:
        self._collect = collect

    def describe(self) -> Iterable[Family]:
        return [_family(metric) for metric in ALL]

    def collect(self) -> Iterator[Family]:
        by_metric: dict[Metric, dict[tuple[str, ...], float]] = {}
        for sample in self._collect():
            # The same labels twice would make the whole scrape unreadable; the later one counts.
            by_metric.setdefault(sample.metric, {})[sample.labels] = sample.value
        for metric in ALL:
            if metric not in by_metric:
                continue
            family = _family(metric)
            for labels, value in by_metric[metric].items():
                family.add_metric([redact(label) for label in labels], value)
            yield family


def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    return kind(metric.name, metric.says, labels=metric.labels)


def make_registry(collect: Callable[[], Iterable[MetricSample]]) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SampleCollector(collect))
    return registry


def write_text(registry: CollectorRegistry, accept: str = PLAIN) -> tuple[bytes, str]:
    """The scrape, and its content type."""
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
