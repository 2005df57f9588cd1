"""Whether a Fact table remembers what was inserted, and what it holds when it may have forgotten: before a step.

A step relies on the table's memory of tokens. A table that remembers nothing is refused with the statement that
helps. When an open range is older than the memory, the rows themselves are counted, and nothing is inserted blindly.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from oncehouse.clickhouse.client import Client
from oncehouse.clickhouse.describe import TableFacts, describe_table
from oncehouse.clickhouse.names import quote
from oncehouse.errors import ConfigurationError, PermanentError
from oncehouse.etl.book import Opened
from oncehouse.etl.records import Template, Topic
from oncehouse.etl.sources import count_range

LEAST_BLOCKS = 100
_SAFE_SHARE = 0.5
"""Share of a time-bound memory that is relied on: clocks differ, and clean-up is early at times."""


class Presence(StrEnum):
    THERE = "there"
    ABSENT = "absent"
    REMEMBERED = "remembered"
    """The table itself will drop what it has."""


def check_destination(client: Client, topic: Topic) -> TableFacts:
    """The facts of the Fact table; refused when it is missing or would double rows after a crash."""
    facts = describe_table(client, topic.dst)
    if facts is None:
        raise ConfigurationError(
            f"Topic {topic.topic}: its table {topic.dst} does not exist on {client.address}. Create it, or correct "
            "`dst` in the lineage."
        )
    if topic.template == Template.STEP:
        _check_memory(topic, facts)
        for target in _read_view_targets(client, facts):
            _check_memory(topic, target)
    return facts


def _check_memory(topic: Topic, facts: TableFacts) -> None:
    if facts.window_blocks >= LEAST_BLOCKS:
        return
    name = f"{facts.database}.{facts.table}"
    raise ConfigurationError(
        f"Topic {topic.topic}: {name} ({facts.engine}) remembers {facts.window_blocks} inserted blocks, so a step "
        f"that runs again after a crash would double its rows. ALTER TABLE {quote(facts.database)}."
        f"{quote(facts.table)} MODIFY SETTING {facts.window_setting} = {LEAST_BLOCKS * 10}"
    )


def _read_view_targets(client: Client, facts: TableFacts) -> tuple[TableFacts, ...]:
    """Tables that materialized views fill from this one; each needs a memory of its own.

    Targets that keep no memory at all (a Buffer before a log, say) take what comes, twice after a crash.
    """
    if not facts.views:
        return ()
    rows = client.query(
        "SELECT target_database || '.' || target_table FROM system.tables WHERE engine = 'MaterializedView' "
        "AND database || '.' || name IN {views:Array(String)} AND target_table != ''",
        {"views": list(facts.views)},
    )
    found = (describe_table(client, name) for (name,) in rows if name.count(".") == 1)
    return tuple(target for target in found if target is not None and target.is_merge_tree)


def find_presence(
    client: Client,
    topic: Topic,
    opened: Opened,
    *,
    now_ms: int,
    count_expected: Callable[[], int],
    count_found: Callable[[], int] | None = None,
) -> Presence:
    """Whether an open range's rows are in the table already. `count_found` counts those that are there."""
    facts = check_destination(client, topic)
    age_seconds = max(0, now_ms - opened.since_ms) / 1000
    is_young = facts.window_seconds is None or age_seconds < facts.window_seconds * _SAFE_SHARE
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
