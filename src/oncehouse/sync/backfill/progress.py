"""How far a way through a model's keys has come, as one frozen value; the CLI only draws it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class KeyProgress:
    sync: str
    doing: str
    """What happens to the keys, in a word or two."""
    keys: int = 0
    """Gone through, those of a former process included."""
    estimate: int = 0
    """About how many there are."""
    rows: int = 0
    """Sent to ClickHouse by this process."""


ReportProgress = Callable[[KeyProgress], None]


def ignore_progress(_progress: KeyProgress) -> None:
    """For those who watch nothing."""
