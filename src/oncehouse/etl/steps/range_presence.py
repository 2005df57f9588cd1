"""Whether the rows of an open range are in its table already: before a step that runs again.

While the table and the targets of its materialized views remember the range's token, a repeat adds nothing. They
forget by number of blocks, whichever writer has inserted them, and replicated ones by time too. When one of them may
have forgotten it, the rows themselves are counted, and nothing is inserted blindly. For batches of the pipeline the
same question is answered in `clickhouse/insert/lost_answer.py`, for batches of model sync in
`sync/rounds/batch_arrival.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from oncehouse.clickhouse.client import Client
from oncehouse.clickhouse.insert.block_counts import BlockCount, blocks_between, read_block_count
from oncehouse.clickhouse.insert.view_memory import remembers_since
from oncehouse.clickhouse.insert.view_proof import has_taken_token
from oncehouse.clickhouse.table_info import TableFacts
from oncehouse.errors import PermanentError
from oncehouse.etl.lineage.topic import Template, Topic
from oncehouse.etl.state.position import Position, format_seek_argument
from oncehouse.etl.state.topic_state import OpenRange
from oncehouse.etl.steps.destination_check import DestinationTable, check_destination
from oncehouse.etl.steps.source_ranges import count_range

_SAFE_SHARE = 0.5
"""Share of a time-bound memory that is relied on: clocks differ, and clean-up is early at times."""


class Presence(StrEnum):
    THERE = "there"
    ABSENT = "absent"
    REMEMBERED = "remembered"
    """The table itself will drop what it has."""


@dataclass(frozen=True, kw_only=True)
class BegunRange:
    """An open range, and what is known of its insert."""

    opened: OpenRange
    token: str
    reached: Position
    """How far the forward runs of the topic have come."""
    age_seconds: float
    """By the clock of the offsets; less than 0 where that was set back."""
    began: float
    """No later than it was begun, by ClickHouse's clock."""


def count_blocks(client: Client, topic: Topic, facts: TableFacts) -> str | None:
    """How many blocks the Fact table has taken, before a range of it is begun; None where it keeps no count.

    What is built aside is inserted under a new token each time, so nothing has to be remembered of it.
    """
    if topic.template is not Template.STEP:
        return None
    count = read_block_count(client, topic.dst, facts)
    return None if count is None else str(count)


def find_presence(
    client: Client,
    topic: Topic,
    begun: BegunRange,
    *,
    count_expected: Callable[[], int],
    count_found: Callable[[], int] | None = None,
) -> Presence:
    """Whether an open range's rows are in the table already. `count_found` counts those that are there."""
    destination, opened = check_destination(client, topic), begun.opened
    forgetful = find_forgetful(client, topic, destination, begun)
    if forgetful is None:
        return Presence.REMEMBERED
    if not destination.facts.column("pos") or not destination.facts.column("id"):
        raise PermanentError(
            f"Topic {topic.topic}: its range was begun {begun.age_seconds:.0f} s and {opened.steps_since} steps ago, "
            f"{forgetful} may have forgotten it, and {topic.dst} has no columns pos and id by which its rows could be "
            f"found. Look whether they are there; then `oncehouse etl seek {topic.topic}` to its end or its start, "
            "with --force."
        )
    expected = count_expected()
    if count_found is None:
        found = count_range(client, topic.dst, last=opened.last, next_=opened.next)
    else:
        found = count_found()
    if found == 0:
        return Presence.ABSENT
    # An insert that ended well has reached the views, too.
    if found == expected and (
        not destination.views or has_taken_token(client, begun.token, since=begun.began)
    ):
        return Presence.THERE
    raise PermanentError(
        f"Topic {topic.topic}: {topic.dst} holds {found} of the {expected} rows of its open range, {forgetful} may "
        f"have forgotten the insert, and nothing shows that all of it went in. Delete them and what its "
        f"{len(destination.views)} materialized views made of them; then `oncehouse etl seek {topic.topic} "
        f"{format_seek_argument(begun.reached)} --force` builds them again, under another token."
    )


def find_forgetful(
    client: Client, topic: Topic, destination: DestinationTable, begun: BegunRange
) -> str | None:
    """The table that may have lost the range's token, or may before a repeat is done; None where all remember it."""
    window = destination.window_seconds
    if window is not None and not 0 <= begun.age_seconds < window * _SAFE_SHARE:
        return topic.dst
    then = BlockCount.parse(begun.opened.block_count)
    blocks = blocks_between(then, read_block_count(client, topic.dst, destination.facts))
    if blocks is None or not destination.facts.remembers(
        blocks_since=blocks,
        seconds_since=max(0.0, begun.age_seconds),
        seconds_ahead=client.insert_timeout_seconds,
    ):
        return topic.dst
    for view in destination.views:
        if view.facts is not None and view.facts.engine == "Null":
            continue
        if (
            view.facts is None
            or begun.age_seconds < 0
            or not remembers_since(client, view.facts, begun.began)
        ):
            return view.target
    return None
