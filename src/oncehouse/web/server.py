"""The web server of the dashboard: serves until it is closed, and ends the event streams with it."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import uvicorn

from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from oncehouse.common.http_auth import HttpAuth
    from oncehouse.web.app import Dashboard

_DRAIN_SECONDS = 3
_MOST_CONNECTIONS = 512


def listen(auth: HttpAuth) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in auth.host else socket.AF_INET
        return socket.create_server((auth.host, auth.port), family=family, backlog=128)
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(
            f"the dashboard cannot listen on {auth.host}:{auth.port} ({error}); name another address with --listen"
        ) from error


class Server:
    """Serves from its creation until `close`, on its own thread, so that the main thread keeps the signals."""

    def __init__(self, dashboard: Dashboard, listener: socket.socket) -> None:
        self._dashboard = dashboard
        self.port = int(listener.getsockname()[1])
        self._server = uvicorn.Server(
            uvicorn.Config(
                dashboard.app,
                log_level="warning",
                access_log=False,
                server_header=False,
                lifespan="off",
                # With proxy headers, a client could forge the address in the log of actions.
                proxy_headers=False,
                limit_concurrency=_MOST_CONNECTIONS,
                timeout_graceful_shutdown=_DRAIN_SECONDS,
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, name="oncehouse-dashboard", daemon=True
        )
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        self._dashboard.stopping = True
        self._server.should_exit = True
        self._thread.join()
