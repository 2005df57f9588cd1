"""What py4j and PySpark print about errors that a run reports itself, and what of it stays."""

from __future__ import annotations

import logging
import socketserver

import pytest
from py4j import clientserver, java_gateway
from py4j.protocol import Py4JNetworkError
from pyspark.accumulators import AccumulatorServer

from oncehouse.errors import FencedError
from oncehouse.pipeline.spark.log_filters import hide_known_traces


@pytest.fixture(autouse=True)
def _hide(monkeypatch) -> None:
    # As they were before, for the tests that follow.
    for logger in (logging.getLogger(), clientserver.logger, java_gateway.logger):
        monkeypatch.setattr(logger, "filters", list(logger.filters))
    monkeypatch.setattr(
        AccumulatorServer, "handle_error", socketserver.BaseServer.handle_error, raising=False
    )
    hide_known_traces()


def log_in_py4j(logger: logging.Logger, error: Exception) -> None:
    """Log as a module of py4j does while it handles the error."""
    about = (type(error), error, None)
    record = logger.makeRecord(
        logger.name, logging.ERROR, clientserver.__file__, 1, "There was an exception", (), about
    )
    logger.handle(record)


@pytest.mark.parametrize("logger", [clientserver.logger, java_gateway.logger, logging.getLogger()])
@pytest.mark.parametrize("error", [FencedError("taken over"), Py4JNetworkError("gone"), EOFError()], ids=repr)
def test_what_the_run_reports_itself_is_not_printed_with_a_trace(logger, error, caplog):
    log_in_py4j(logger, error)
    assert caplog.records == []


def test_any_other_failure_keeps_its_trace(caplog):
    log_in_py4j(clientserver.logger, ValueError("a defect"))
    assert "a defect" in caplog.text


def test_what_others_log_about_such_an_error_stays(caplog):
    logging.getLogger().error("of our own", exc_info=FencedError("taken over"))
    assert "of our own" in caplog.text


@pytest.mark.parametrize(("error", "printed"), [(EOFError(), False), (ValueError("a defect"), True)])
def test_the_server_of_accumulators_prints_no_trace_when_java_goes(error, printed, capsys):
    server = AccumulatorServer(("localhost", 0), socketserver.BaseRequestHandler, "")
    try:
        raise error
    except (EOFError, ValueError):
        server.handle_error(None, ("localhost", 1))
    finally:
        server.server_close()
    assert ("Traceback" in capsys.readouterr().err) is printed
