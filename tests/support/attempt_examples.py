"""Attempts to insert a batch, as the loader would make them."""

from __future__ import annotations

import uuid
from dataclasses import replace

from oncehouse.clickhouse.insert.outcome import InsertRequest
from oncehouse.common.query_ids import attempt_query_id


def first_attempt(rows, **changes):
    request = InsertRequest(
        table="events",
        columns=tuple(rows.column_names),
        batch_column="_batch_id",
        batch_id=str(uuid.uuid4()),
        attempt=1,
        rows=rows.num_rows,
        earlier_query_ids=(),
        outcome_unknown=False,
        may_be_forgotten=False,
        merges_rows=False,
    )
    return replace(request, **changes)


def next_attempt(request, **changes):
    earlier = (*request.earlier_query_ids, attempt_query_id(request.batch_id, request.attempt))
    again = replace(request, attempt=request.attempt + 1, earlier_query_ids=earlier, outcome_unknown=True)
    return replace(again, **changes)
