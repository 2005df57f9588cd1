"""Durations, sizes and texts as a person reads them in messages, tables and log lines.

They are rounded. `config/field_types.py` formats the exact values of a pipeline file.
"""

from __future__ import annotations

_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def format_elapsed(seconds: float) -> str:
    """Two units at most: `3d 4h`, `12m 5s`, `0.8s`."""
    if abs(seconds) < 10:
        return f"{seconds:.1f}s"
    whole = round(abs(seconds))
    parts: list[str] = []
    for unit, length in _UNITS:
        count, whole = divmod(whole, length)
        if count or parts:
            parts.append(f"{count}{unit}")
    shown = " ".join(part for part in parts[:2] if part[:-1] != "0")
    return f"-{shown}" if seconds < 0 else shown


def format_bytes(count: float) -> str:
    """Three digits and a unit, as a pipeline file writes it: `0B`, `0.977KB`, `129GB`."""
    size = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.3g}{unit}"
        size /= 1024
    return f"{size:,.3g}TB"


def escape_unprintable(text: str, *, keep: str = "", longest: int | None = None) -> str:
    """Control and invisible characters as Python escapes, except those in `keep`; cut after `longest` characters."""
    # An escape is never shorter than its character, so what is cut here would not be shown.
    shown = text if longest is None else text[: longest + 1]
    if not shown.isprintable():
        shown = "".join(
            character
            if character.isprintable() or character in keep
            else character.encode("unicode_escape").decode("ascii")
            for character in shown
        )
    return shown if longest is None or len(shown) <= longest else f"{shown[:longest]}…"
