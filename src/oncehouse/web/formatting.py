"""Formats numbers, times and untrusted text for pages. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from markupsafe import Markup

from oncehouse.common.formatting import escape_unprintable, format_bytes, format_elapsed
from oncehouse.common.redaction import redact

ABSENT = "\N{EN DASH}"


def format_number(count: float | None) -> str:
    if count is None:
        return ABSENT
    return f"{count:,.0f}" if isinstance(count, int) or abs(count) >= 10 or not count else f"{count:,.1f}"


def format_short(count: float | None) -> str:
    """Three digits and a unit: 12,345,678 is 12.3M."""
    if count is None:
        return ABSENT
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= size * (10 if unit == "k" else 1):
            return f"{count / size:.3g}{unit}"
    return format_number(count)


def format_duration(seconds: float | None) -> str:
    return ABSENT if seconds is None else format_elapsed(seconds)


def format_moment(seconds: float | None) -> str:
    """Seconds since 1970 as a time in UTC."""
    if not seconds:
        return ABSENT
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def format_size(count: float | None) -> str:
    return ABSENT if count is None else format_bytes(count)


def format_share(share: float | None) -> str:
    return ABSENT if share is None else f"{share:.0%}"


def make_visible(value: object) -> object:
    """A value without secrets and with control and invisible characters escaped, except line ends."""
    if value is None:
        return ABSENT
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return escape_unprintable(redact(value), keep="\n")


def draw_curve(points: Sequence[float], *, width: int, height: int) -> tuple[str, str]:
    """A curve as SVG paths: its line, and the area under it. The highest point touches the top."""
    highest = max(points, default=0) or 1
    step = width / max(1, len(points) - 1)
    places = [
        (at * step, height - 1 - (height - 2) * point / highest) for at, point in enumerate(points)
    ] or [(0.0, float(height - 1))]
    line = " L".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f"M{line}", f"M0,{height} L{line} L{places[-1][0]:.1f},{height} Z"
