"""The metrics endpoint of a run: what the ledger says of the pipeline, and what Spark says of its stream."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from oncehouse.cli.monitor_options import read_token
from oncehouse.pipeline.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from oncehouse.metrics.collect import MetricSample


@contextmanager
def serve_metrics(
    file: Path, pipeline: str, listen: str | None, *, report: Callable[[Progress], None]
) -> Iterator[Callable[[Progress], None]]:
    """While it lasts, metrics are served there; gives what to call with progress in place of `report`."""
    if listen is None:
        yield report
        return
    from oncehouse.common.http_auth import make_http_auth
    from oncehouse.metrics.collect import collect, stream_samples
    from oncehouse.monitoring.monitor import Monitor, MonitorTargets

    auth = make_http_auth(listen, token=read_token(None))
    from oncehouse.metrics.exposition import make_registry
    from oncehouse.metrics.server import MetricsServer

    monitor = Monitor(MonitorTargets(pipelines=(file,)))
    newest = Progress()

    def read() -> Iterator[MetricSample]:
        yield from collect(monitor)
        if newest.stream is not None:
            yield from stream_samples(pipeline, newest.stream)

    def listen_too(progress: Progress) -> None:
        nonlocal newest
        newest = progress
        report(progress)

    server = MetricsServer(auth, make_registry(read))
    try:
        yield listen_too
    finally:
        server.close()
        monitor.close()
