"""Spans of what a run does: what took how long, inside of what, and what it was about.

Code opens one around its work, `with span("read", epoch=7):`. They are for OpenTelemetry, which is an extra: until
somebody gives an opener (`use`), a span costs a look at a variable and nothing is imported. `spans_export.py` makes
the opener that `oncehouse run` uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Protocol, Self

Value = str | int | float | bool


class Span(Protocol):
    def note(self, **attributes: Value) -> None:
        """What is known only when the work is done."""

    def fail(self, why: str) -> None:
        """The work did not succeed, though nothing was raised."""


Opener = Callable[[str, dict[str, Value]], AbstractContextManager[Span]]


class _Nothing:
    """Stands in for a span that nobody wants; one for all."""

    def note(self, **attributes: Value) -> None:
        pass

    def fail(self, why: str) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


_NOTHING = _Nothing()
_opener: Opener | None = None


def span(name: str, /, **attributes: Value) -> AbstractContextManager[Span]:
    """Around a piece of work; inside of the span that this thread has open, if it has."""
    return _NOTHING if _opener is None else _opener(name, attributes)


@contextmanager
def use(opener: Opener) -> Iterator[None]:
    """Spans of the whole process are opened so, while this lasts."""
    global _opener  # noqa: PLW0603 - spans are opened on threads that nobody could hand an opener to
    before, _opener = _opener, opener
    try:
        yield
    finally:
        _opener = before
