"""Query ids of inserts: the batch id and the number of the attempt, so that a later attempt can end an earlier one."""

from __future__ import annotations

ATTEMPT_QUERY_ID = "^[0-9a-f-]{36}-[0-9]+$"
"""What `attempt_query_id` gives, as a regular expression of ClickHouse."""


def attempt_query_id(batch_id: str, attempt: int) -> str:
    """The id of this attempt's INSERT, and of the session that it needs."""
    return f"{batch_id}-{attempt}"
