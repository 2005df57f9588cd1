"""What a log line with fields costs: our JSON formatter, and structlog's where it is installed.

    python benchmarks/log_lines.py

Both write the same record, with two bound fields and four of its own, as JSON into memory; structlog as its docs join
it with Python's logging (ProcessorFormatter), so that libraries' records get the same fields. Processor time, best of
five.
"""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable

from oncehouse.common import structured_logging
from oncehouse.common.structured_logging import LogFormat

LINES = 20_000
ROUNDS = 5
FIELDS = {"read": 1_500_000, "new": 1_350_000, "duplicate": 150_000, "seconds": 5.2}


def best(work: Callable[[], None]) -> float:
    """Least microseconds a line."""
    taken = []
    for _ in range(ROUNDS):
        started = time.process_time()
        for _ in range(LINES):
            work()
        taken.append(time.process_time() - started)
    return min(taken) / LINES * 1e6


def measure_own() -> float:
    structured_logging.start(LogFormat.JSON, io.StringIO())
    logger = logging.getLogger("oncehouse.pipeline")
    try:
        with structured_logging.bound(pipeline="shop", epoch=7):
            return best(lambda: structured_logging.write(logger, logging.INFO, "epoch settled", **FIELDS))
    finally:
        structured_logging.stop()


def measure_structlog() -> float | None:
    try:
        import structlog
    except ImportError:
        return None
    shared = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso"),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(io.StringIO())
    renderer = structlog.processors.JSONRenderer()
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processor=renderer))
    plain = logging.getLogger("joined")
    plain.addHandler(handler)
    plain.setLevel(logging.INFO)
    plain.propagate = False
    logger = structlog.get_logger("joined")
    with structlog.contextvars.bound_contextvars(pipeline="shop", epoch=7):
        return best(lambda: logger.info("epoch settled", **FIELDS))


def main() -> None:
    print(f"log_line_us                          {measure_own():.1f}")
    other = measure_structlog()
    print(
        "structlog is not installed" if other is None else f"structlog_line_us                    {other:.1f}"
    )


if __name__ == "__main__":
    main()
