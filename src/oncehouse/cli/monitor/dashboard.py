"""`oncehouse dashboard`: everything that is watched, in a browser, until it is stopped."""

from __future__ import annotations

from typing import Annotated

import typer

from oncehouse.cli.arguments import Logs
from oncehouse.cli.monitor_options import (
    AllowHosts,
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
from oncehouse.cli.output import print_note, say
from oncehouse.cli.pipeline.run import INTERRUPTED_EXIT_CODE, Stop

DEFAULT_ADDRESS = "127.0.0.1:8088"

Listen = Annotated[
    str, typer.Option("--listen", metavar="HOST:PORT", help="Where to listen; other machines need a token.")
]
ReadOnly = Annotated[bool, typer.Option("--read-only", help="Show everything; allow no actions.")]


def dashboard(
    files: Files = None,
    *,
    etl: EtlFile = None,
    messaging: Messaging = None,
    group: Groups = None,
    health: HealthFiles = None,
    module: Modules = None,
    listen: Listen = DEFAULT_ADDRESS,
    token_file: TokenFile = None,
    allow_host: AllowHosts = None,
    read_only: ReadOnly = False,
    log_format: Logs = None,  # noqa: ARG001 - its callback acts
) -> None:
    """Show pipelines, Facts, outbox, consumers, syncs and leases in a browser, with their actions."""
    from oncehouse.common.http_auth import make_http_auth

    targets = choose_targets(files, etl, messaging, group, health, module)
    auth = make_http_auth(listen, token=read_token(token_file), names=allow_host or [])
    from oncehouse.monitoring.monitor import Monitor
    from oncehouse.web.app import Dashboard
    from oncehouse.web.server import DashboardServer
    from oncehouse.web.server import listen as open_listener

    monitor = Monitor(targets)
    listener = open_listener(auth)
    server = DashboardServer(Dashboard(monitor, auth, read_only=read_only, say=print_note), listener)
    try:
        with Stop(lambda _text: print_note("stopping")) as stop:
            host = f"[{auth.host}]" if ":" in auth.host else auth.host
            say(f"dashboard at http://{host}:{server.port}/ (Ctrl-C ends it)")
            while server.is_alive() and not stop.requested.wait(0.2):
                pass
    finally:
        server.close()
        monitor.close()
    if stop.interrupted:
        raise typer.Exit(INTERRUPTED_EXIT_CODE)
