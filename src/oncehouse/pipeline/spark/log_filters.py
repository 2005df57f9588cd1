"""Traces of py4j and PySpark that only repeat what a run says in its own words, kept off the screen.

When a callback of Spark's stream ends with an error of ours, or Java goes, these libraries print a trace for each
thread that notices, and so does Python's socket server. The run ends with the error itself, or starts the stream again.
"""

from __future__ import annotations

import logging
import socketserver
import sys
from pathlib import Path
from typing import Any

from oncehouse.errors import OncehouseError

# The last one is the root, on which py4j logs some of its own.
_LOGGERS = ("py4j.clientserver", "py4j.java_gateway", "")


def hide_known_traces() -> None:
    """For the rest of this process; calling it again changes nothing."""
    from pyspark.accumulators import AccumulatorServer

    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_is_news)
    setattr(AccumulatorServer, "handle_error", _handle_error)  # noqa: B010 - typed as a method, which is not assigned


def _is_news(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not (_is_known(error) and "py4j" in Path(record.pathname).parts)


def _is_known(error: BaseException | None) -> bool:
    """An error of ours, which is reported where it ends; or a connection whose other end has gone."""
    from py4j.protocol import Py4JError

    return isinstance(error, OncehouseError | Py4JError | ConnectionError | EOFError)


def _handle_error(server: socketserver.BaseServer, request: Any, client_address: Any) -> None:
    if not _is_known(sys.exception()):
        socketserver.BaseServer.handle_error(server, request, client_address)
