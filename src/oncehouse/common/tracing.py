"""Spans by OpenTelemetry: what a pipeline does, what took how long, inside of what, and what it was about.

They go to the process's own tracer provider: that of a program that traces itself, that of `tracing_export.py`, or
OpenTelemetry's own, which records nothing. Names of attributes begin with `oncehouse.`; secrets are redacted, and of
an exception only its class and message are kept, because a trace may hold anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import Span, Status, StatusCode

from oncehouse import __version__
from oncehouse.common.redaction import redact

__all__ = ["Span", "add_attributes", "fail", "span"]

Value = str | int | float | bool


@contextmanager
def span(name: str, /, **attributes: Value) -> Iterator[Span]:
    """Around a piece of work; inside of the span that this thread has open, if it has."""
    tracer = trace.get_tracer("oncehouse", __version__)
    with tracer.start_as_current_span(
        name, attributes=_format(attributes), record_exception=False, set_status_on_exception=False
    ) as opened:
        try:
            yield opened
        except BaseException as error:
            fail(opened, str(error))
            recorded = {"exception.type": type(error).__qualname__, "exception.message": redact(str(error))}
            opened.add_event("exception", recorded)
            raise


def add_attributes(opened: Span, **attributes: Value) -> None:
    """What is known only when the work is done."""
    opened.set_attributes(_format(attributes))


def fail(opened: Span, why: str) -> None:
    """The work did not succeed, though nothing was raised."""
    opened.set_status(Status(StatusCode.ERROR, redact(why)))


def _format(attributes: Mapping[str, Value]) -> dict[str, Value]:
    return {
        f"oncehouse.{name}": redact(value) if isinstance(value, str) else value
        for name, value in attributes.items()
    }
