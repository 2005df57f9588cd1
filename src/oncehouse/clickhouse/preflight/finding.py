"""What a look before the start found: how grave, where, what, and what to do about it. Frozen values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Level(StrEnum):
    ERROR = "error"
    """The pipeline must not run like this."""
    WARNING = "warning"
    INFO = "info"
    OK = "ok"
    """Checked and found right; the figures say why."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    level: Level
    where: str
    what: str
    advice: str = ""


def objections(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Everything but what was found right."""
    return tuple(finding for finding in findings if finding.level is not Level.OK)
