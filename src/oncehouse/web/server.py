"""The web server of the dashboard: serves until it is closed, and ends the event streams with it."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from oncehouse.common.http_server import HttpServer, open_listener

if TYPE_CHECKING:
    from oncehouse.common.http_auth import HttpAuth
    from oncehouse.web.app import Dashboard


def listen(auth: HttpAuth) -> socket.socket:
    return open_listener(
        auth.host, auth.port, what="the dashboard", advice="name another address with --listen"
    )


class DashboardServer(HttpServer):
    def __init__(self, dashboard: Dashboard, listener: socket.socket) -> None:
        self._dashboard = dashboard
        super().__init__(dashboard.app, listener, name="oncehouse-dashboard")

    def close(self) -> None:
        self._dashboard.stopping = True
        super().close()
