"""The settings that the exactness of an INSERT … SELECT hangs on, whatever the user's profile says of them. Pure.

They go out with each insert. What a profile forbids to set makes the insert fail, and `etl check` names it before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oncehouse.clickhouse.complete_results import WHOLE_ANSWERS

_UNBOUNDED = 1 << 40
"""Rows or bytes of a block, never reached: what halving keeps small is memory."""
_OVERFLOW_MODES = ("distinct", "group_by", "join", "set", "sort", "transfer")

_SETTINGS: Mapping[str, str | int] = {
    "async_insert": 0,
    # A token is remembered only if all of these say so. The last one needs no stable order, since there is a token.
    "insert_deduplicate": 1,
    "deduplicate_insert": "enable",
    "deduplicate_insert_select": "force_enable",
    "deduplicate_blocks_in_dependent_materialized_views": 1,
    # A view that failed, or lost its table, would lose rows without a word.
    "materialized_views_ignore_errors": 0,
    "ignore_materialized_views_with_dropped_target_table": 0,
    # One block an insert: tokens are remembered by block, so their number must not change between attempts.
    "max_insert_threads": 1,
    "min_insert_block_size_rows": _UNBOUNDED,
    "min_insert_block_size_bytes": 0,
    "max_insert_block_size": _UNBOUNDED,
    "max_insert_block_size_bytes": 0,
    "use_strict_insert_block_limits": 0,
    # Several servers that each insert their share would do so under one token: all but the first would be dropped.
    "parallel_distributed_insert_select": 0,
    # With `break` or `any`, a limit of the profile would cut the rows short and call that success.
    **{f"{what}_overflow_mode": "throw" for what in _OVERFLOW_MODES},
    # As would a shard that is away: the step would go past the rows that it did not see.
    **WHOLE_ANSWERS,
    "throw_on_max_partitions_per_insert_block": 1,
}


def insert_settings(token: str, most_blocks: int = 0) -> dict[str, Any]:
    """What an insert is sent with. `most_blocks` is how many blocks, one a partition, it may make; 0 sets no bound."""
    return {
        "insert_deduplication_token": token,
        **_SETTINGS,
        # A block of each partition is remembered: of more than that, a repeat would double what was forgotten.
        "max_partitions_per_insert_block": most_blocks,
    }


def required_settings() -> dict[str, str]:
    """Settings that every insert needs, and their values as the server spells them."""
    return {name: str(value) for name, value in _SETTINGS.items()}
