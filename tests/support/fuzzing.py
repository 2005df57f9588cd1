"""How often a fuzzing test tries: a little in every session, much more under `make fuzz`."""

from __future__ import annotations

import os

from hypothesis import settings


def examples(count: int) -> settings:
    return settings(max_examples=count * int(os.environ.get("FUZZ_FACTOR", "1")), deadline=None)
