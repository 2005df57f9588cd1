"""Whether the rows of an open range are in its table already: before a step that runs again.

While the table remembers the range's token, a repeat adds nothing. When the range is older than that memory, the rows
themselves are counted, and nothing is inserted blindly. For batches of the pipeline the same question is answered in
`clickhouse/insert/lost_answer.py`, for batches of model sync in `sync/rounds/batch_arrival.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from oncehouse.clickhouse.client import Client
from oncehouse.errors import PermanentError
from oncehouse.etl.lineage.topic import Topic
from oncehouse.etl.state.topic_state import OpenRange
from oncehouse.etl.steps.destination_check import check_destination
from oncehouse.etl.steps.source_ranges import count_range

_SAFE_SHARE = 0.5
"""Share of a time-bound memory that is relied on: clocks differ, and clean-up is early at times."""


class Presence(StrEnum):
    THERE = "there"
    ABSENT = "absent"
    REMEMBERED = "remembered"
    """The table itself will drop what it has."""


def find_presence(
    client: Client,
    topic: Topic,
    opened: OpenRange,
    *,
    now_ms: int,
    count_expected: Callable[[], int],
    count_found: Callable[[], int] | None = None,
) -> Presence:
    """Whether an open range's rows are in the table already. `count_found` counts those that are there."""
    found_table = check_destination(client, topic)
    facts, window_seconds = found_table.facts, found_table.window_seconds
    age_seconds = (now_ms - opened.since_ms) / 1000
    # A clock that was set back says nothing of how old the range is.
    is_young = window_seconds is None or 0 <= age_seconds < window_seconds * _SAFE_SHARE
    if is_young and not opened.steps_since:
        return Presence.REMEMBERED
    if not facts.column("pos") or not facts.column("id"):
        raise PermanentError(
            f"Topic {topic.topic}: its range was begun {age_seconds:.0f} s and {opened.steps_since} steps ago, "
            f"{topic.dst} may have forgotten it, and has no columns pos and id by which its rows could be found. Look "
            f"whether they are there; then `oncehouse etl seek {topic.topic}` to its end or its start, with --force."
        )
    expected = count_expected()
    if count_found is None:
        found = count_range(client, topic.dst, last=opened.last, next_=opened.next)
    else:
        found = count_found()
    if found == 0:
        return Presence.ABSENT
    if found == expected and not facts.views:
        return Presence.THERE
    raise PermanentError(
        f"Topic {topic.topic}: {topic.dst} holds {found} of the {expected} rows of its open range, and no longer "
        f"remembers the insert. Delete them (and what its {len(facts.views)} materialized views made of them) and "
        "let the step run again, or seek past the range with --force."
    )
