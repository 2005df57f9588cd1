"""How often a fuzzing test tries: a little in every session, much more under `make fuzz`, which runs them alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import settings

Test = TypeVar("Test", bound=Callable[..., None])


def examples(count: int) -> Callable[[Test], Test]:
    """So many examples, times FUZZ_FACTOR, and the marker by which `make fuzz` selects the test."""
    tries = settings(max_examples=count * int(os.environ.get("FUZZ_FACTOR", "1")), deadline=None)
    return lambda test: pytest.mark.fuzz(tries(test))
