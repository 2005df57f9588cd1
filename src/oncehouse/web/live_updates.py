"""Live pages: the changing part of a page, sent again over server-sent events whenever it is another than before.

A browser opens the page's own address as an event stream. What several visitors look at is read once a moment; a
stream ends with its visitor or with the process.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable

REFRESH_SECONDS = 2.0
MOST_STREAMS = 64
_SHARED_SECONDS = 1.0
_MOST_SHARED = 256
_BEAT_SECONDS = 15.0
_LOOK_SECONDS = 0.2
# How soon a browser tries again after the process has ended or was away.
_RETRY = "retry: 2000\n\n"


class Shared:
    """Fragments that were made within the last moment, by address; one maker at a time, the others wait for it."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._made: dict[Hashable, tuple[float, str]] = {}
        self._makers: dict[Hashable, threading.Lock] = {}

    def get(self, key: Hashable, make: Callable[[], str]) -> str:
        with self._lock:
            if (text := self._find_fresh(key)) is not None:
                return text
            if len(self._makers) >= _MOST_SHARED:
                # Whoever makes one of them just now is then not waited for, which costs a second making.
                self._made.clear()
                self._makers.clear()
            maker = self._makers.setdefault(key, threading.Lock())
        with maker:
            with self._lock:
                if (text := self._find_fresh(key)) is not None:
                    return text
            text = make()
            with self._lock:
                # From its end on, so that those who waited for a slow one do not make it again one by one.
                self._made[key] = (self._monotonic(), text)
            return text

    def _find_fresh(self, key: Hashable) -> str | None:
        made = self._made.get(key)
        return None if made is None or self._monotonic() - made[0] >= _SHARED_SECONDS else made[1]


def write_event(name: str, text: str) -> str:
    """One event; whatever line ends the text has, it stays one."""
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = "".join(f"data: {line}\n" for line in plain.split("\n"))
    return f"event: {name}\n{lines}\n"


async def stream_changes(
    make: Callable[[], Awaitable[str]],
    *,
    is_over: Callable[[], Awaitable[bool]],
    refresh_seconds: float = REFRESH_SECONDS,
) -> AsyncIterator[str]:
    """What `make` gives, whenever it is another than before, and a beat in between so that a dead line is noticed."""
    yield _RETRY
    before: str | None = None
    quiet_since = time.monotonic()
    while not await is_over():
        text = await make()
        if text != before:
            before, quiet_since = text, time.monotonic()
            yield write_event("page", text)
        elif time.monotonic() - quiet_since > _BEAT_SECONDS:
            quiet_since = time.monotonic()
            yield ": still here\n\n"
        await _rest(refresh_seconds, is_over)


async def _rest(seconds: float, is_over: Callable[[], Awaitable[bool]]) -> None:
    """In steps, so that the end of the process need not wait for the whole of it."""
    until = time.monotonic() + seconds
    # A visitor who leaves is noticed by asking alone: there is no event to wait for.
    while (left := until - time.monotonic()) > 0 and not await is_over():  # noqa: ASYNC110
        await asyncio.sleep(min(left, _LOOK_SECONDS))
