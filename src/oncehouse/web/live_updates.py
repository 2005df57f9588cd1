"""Live pages: server-sent events with the live part of a page, sent whenever it changes.

A browser opens the URL of the page as an event stream. Streams of the same page share one rendering; a stream ends
when its client disconnects or the process stops.
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
_POLL_SECONDS = 0.2
# How soon a browser tries again after the process has ended or was away.
_RETRY = "retry: 2000\n\n"


class FragmentCache:
    """Recently rendered fragments by URL; one thread renders a fragment while the others wait for it."""

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
                # A rendering that is under way is then not shared, which costs one more rendering.
                self._made.clear()
                self._makers.clear()
            maker = self._makers.setdefault(key, threading.Lock())
        with maker:
            with self._lock:
                if (text := self._find_fresh(key)) is not None:
                    return text
            text = make()
            with self._lock:
                # Fresh from the end of the rendering, so that waiting threads do not repeat a slow one.
                self._made[key] = (self._monotonic(), text)
            return text

    def _find_fresh(self, key: Hashable) -> str | None:
        made = self._made.get(key)
        return None if made is None or self._monotonic() - made[0] >= _SHARED_SECONDS else made[1]


def write_event(name: str, text: str) -> str:
    """One event, whatever line ends the text has."""
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = "".join(f"data: {line}\n" for line in plain.split("\n"))
    return f"event: {name}\n{lines}\n"


async def stream_changes(
    make: Callable[[], Awaitable[str]],
    *,
    is_over: Callable[[], Awaitable[bool]],
    refresh_seconds: float = REFRESH_SECONDS,
) -> AsyncIterator[str]:
    """The result of `make` whenever it changes, with heartbeats in between so that a dead connection is noticed."""
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
        await _sleep(refresh_seconds, is_over)


async def _sleep(seconds: float, is_over: Callable[[], Awaitable[bool]]) -> None:
    """Sleep in steps, so that the process can stop early."""
    until = time.monotonic() + seconds
    # Only polling detects a client that disconnects: there is no event to wait for.
    while (left := until - time.monotonic()) > 0 and not await is_over():  # noqa: ASYNC110
        await asyncio.sleep(min(left, _POLL_SECONDS))
