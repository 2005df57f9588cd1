"""Settings of an INSERT under which each of its rows is a block of its own."""

from __future__ import annotations

ONE_ROW_BLOCKS = {
    "input_format_parallel_parsing": 0,
    "max_insert_block_size": 1,
    "min_insert_block_size_rows": 1,
    "min_insert_block_size_bytes": 1,
    "max_insert_threads": 1,
}
