"""`oncehouse metrics`: everything that can be measured, as Prometheus reads it, once or for as long as it is asked."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from oncehouse.cli.monitor_options import (
    EtlFile,
    Files,
    Groups,
    HealthFiles,
    Messaging,
    Modules,
    TokenFile,
    choose_targets,
    read_token,
)
from oncehouse.cli.output import say, show_json
from oncehouse.cli.pipeline.run import INTERRUPTED_EXIT_CODE, Stop
from oncehouse.common.json_documents import Answer

if TYPE_CHECKING:
    from oncehouse.metrics.definitions import Kind
    from oncehouse.monitoring.monitor import Monitor, MonitorTargets

# A person or a cron job waits for the answer of a server; a scrape that is repeated need not.
_PATIENT_SECONDS = 5.0
Listen = Annotated[
    str | None,
    typer.Option(
        "--listen", metavar="HOST:PORT", help="Serve them at /metrics until stopped, instead of printing."
    ),
]


@dataclass(frozen=True, kw_only=True)
class Measured:
    name: str
    kind: Kind
    labels: dict[str, str]
    value: float


@dataclass(frozen=True, kw_only=True)
class MetricList(Answer, of=("metrics",)):
    metrics: list[Measured]


def metrics(
    files: Files = None,
    *,
    etl: EtlFile = None,
    messaging: Messaging = None,
    group: Groups = None,
    health: HealthFiles = None,
    module: Modules = None,
    listen: Listen = None,
    token_file: TokenFile = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON and nothing else: name, kind, labels and value of each."),
    ] = False,
) -> None:
    """Print all metrics in Prometheus' text format, or serve them."""
    targets = choose_targets(files, etl, messaging, group, health, module)
    if listen is not None:
        _serve(targets, listen, read_token(token_file))
        return
    with closing(open_monitor(targets, wait_seconds=_PATIENT_SECONDS)) as monitor:
        if as_json:
            _show_json(monitor)
        else:
            _show_text(monitor)


def _show_text(monitor: Monitor) -> None:
    from oncehouse.metrics.collect import collect
    from oncehouse.metrics.exposition import make_registry, write_text

    text, _ = write_text(make_registry(lambda: collect(monitor)))
    sys.stdout.write(text.decode())


def open_monitor(targets: MonitorTargets, *, wait_seconds: float) -> Monitor:
    from oncehouse.monitoring.monitor import Monitor

    return Monitor(targets, wait_seconds=wait_seconds)


def _show_json(monitor: Monitor) -> None:
    from oncehouse.metrics.collect import collect

    found = [
        Measured(
            name=sample.metric.name,
            kind=sample.metric.kind,
            labels=dict(zip(sample.metric.labels, sample.labels, strict=True)),
            value=sample.value,
        )
        for sample in collect(monitor)
    ]
    show_json(MetricList(metrics=found))


def _serve(targets: MonitorTargets, listen: str, token: str | None) -> None:
    from oncehouse.common.http_auth import make_http_auth

    auth = make_http_auth(listen, token=token)
    from oncehouse.metrics.collect import collect
    from oncehouse.metrics.exposition import make_registry
    from oncehouse.metrics.server import MetricsServer

    monitor = open_monitor(targets, wait_seconds=1.0)
    server = MetricsServer(auth, make_registry(lambda: collect(monitor)))
    try:
        with Stop(_print_note) as stop:
            say(f"metrics at http://{auth.host}:{server.port}/metrics")
            while not stop.requested.wait(0.5):
                pass
    finally:
        server.close()
        monitor.close()
    if stop.interrupted:
        raise typer.Exit(INTERRUPTED_EXIT_CODE)


def _print_note(text: str) -> None:
    sys.stderr.write(text.partition(":")[0] + "\n")
