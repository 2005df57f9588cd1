"""Which server gave an answer: the name that ClickHouse puts into the header of each answer.

Behind one address may stand several servers, and a balancer may change from one to another between two statements of
one decision. The name is `display_name` of the server's configuration, its host's full name unless set; SQL has it as
`displayName()`.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clickhouse_connect.driver.httpclient import HttpClient

HEADER = "X-ClickHouse-Server-Display-Name"
NO_NAME = ""
"""An answer without the header: something between client and server has taken it out."""


class _Listeners(threading.local):
    sets: tuple[set[str], ...] = ()


_listeners = _Listeners()


@contextmanager
def collect_server_names() -> Iterator[set[str]]:
    """The names of the servers that answer this thread's requests inside."""
    names: set[str] = set()
    outer = _listeners.sets
    _listeners.sets = (*outer, names)
    try:
        yield names
    finally:
        _listeners.sets = outer


def report_server_names(client: HttpClient) -> None:
    """Let each answer of this driver be known to `collect_server_names`. The driver itself drops the header."""
    pool = client.http
    request = pool.request

    def request_and_report(*arguments: Any, **named: Any) -> Any:
        response = request(*arguments, **named)
        name = response.headers.get(HEADER, NO_NAME)
        for names in _listeners.sets:
            names.add(name)
        return response

    pool.request = request_and_report  # type: ignore[method-assign]  # the driver makes its pool itself
