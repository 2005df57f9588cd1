"""A batch as one block that can be sent twice and is stored once: how it is encoded, and with which settings."""

from __future__ import annotations

import math
import uuid
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncehouse.clickhouse.client import Client

_UNBOUNDED = 1 << 40


def batch_id_array(batch_id: str, rows: int) -> pa.DictionaryArray:
    """The batch column: one byte a row, and the id as text, which has no byte order to get wrong."""
    indices = pa.array(np.zeros(rows, dtype=np.int8))
    return pa.DictionaryArray.from_arrays(indices, pa.array([str(uuid.UUID(batch_id))]))


def encode_block(block: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    # Half the bytes on the line for no more processor time, here and in the server together.
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, block.schema, options=options) as writer:
        writer.write_batch(block)
    return sink.getvalue()


def insert_settings(batch_id: str) -> dict[str, str | int]:
    """The settings that make a repeated insert harmless; `check` finds out whether the user may set them."""
    return {
        "async_insert": 0,
        "insert_deduplicate": 1,
        "deduplicate_insert": "enable",
        "insert_deduplication_token": batch_id,
        "deduplicate_blocks_in_dependent_materialized_views": 1,
        "materialized_views_ignore_errors": 0,
        # One block: a token is remembered a block, so attempts must never differ in their number.
        "max_insert_threads": 1,
        "min_insert_block_size_rows": _UNBOUNDED,
        "min_insert_block_size_bytes": _UNBOUNDED,
        "max_insert_block_size": _UNBOUNDED,
        "max_insert_block_size_bytes": 0,
        # A null or a column that is missing is an error, never a default value that was not sent.
        "input_format_null_as_default": 0,
        "input_format_arrow_allow_missing_columns": 0,
        "timeout_overflow_mode": "throw",
    }


def repeatable_settings(client: Client, token: str, called: str) -> Mapping[str, Any]:
    """What to send along with an insert of one block, so that a repeat under the same token adds nothing."""
    return {
        **{name: value for name, value in insert_settings(token).items() if client.knows_setting(name)},
        "query_id": called,
        # The status line must be the insert's end, so nothing may be sent before it.
        "wait_end_of_query": 1,
        "send_progress_in_http_headers": 0,
        # The server gives up before the client does, so that a slow insert ends with an answer.
        "max_execution_time": max(1, math.ceil(client.insert_timeout_seconds)),
    }
