"""How long something takes or lasts, as a person would say it. What a pipeline file says is in `config_values.py`."""

from __future__ import annotations

_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def spell_duration(seconds: float) -> str:
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
