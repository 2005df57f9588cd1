"""Reading from a server that may be unavailable: its answer, or why there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from oncehouse.errors import OncehouseError

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class NoAnswer:
    why: str
    failed: bool
    """The server was asked and could not be reached; False if there was nothing to ask."""


def ask(question: Callable[[], Answer]) -> Answer | NoAnswer:
    """The result of the question, or the error that it raised."""
    try:
        return question()
    except OncehouseError as error:
        return NoAnswer(why=str(error), failed=True)
