"""Settings without which an answer may be the beginning of one, or that of some shards only, and call that success."""

from __future__ import annotations

from collections.abc import Mapping

WHOLE_ANSWERS: Mapping[str, str | int] = {
    "read_overflow_mode": "throw",
    "result_overflow_mode": "throw",
    "timeout_overflow_mode": "throw",
    # What each shard of a Distributed table is held to.
    "read_overflow_mode_leaf": "throw",
    "timeout_overflow_mode_leaf": "throw",
    "skip_unavailable_shards": 0,
}
