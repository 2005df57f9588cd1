"""Whether a Fact table, and each table that its materialized views fill, remembers what was inserted: before a step.

A step relies on their memory of tokens. A table that remembers nothing is refused with the statement that helps. What
a table holds that may have forgotten is in `range_presence.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from oncehouse.clickhouse.client import Client
from oncehouse.clickhouse.complete_results import WHOLE_ANSWERS
from oncehouse.clickhouse.identifiers import quote, quote_table
from oncehouse.clickhouse.insert.dedup_window import WindowNeeds
from oncehouse.clickhouse.preflight.finding import Finding, Level, objections
from oncehouse.clickhouse.preflight.requirements import Needs
from oncehouse.clickhouse.preflight.views import ViewFacts, check_views, read_views
from oncehouse.clickhouse.replica_sync import read_in_step
from oncehouse.clickhouse.table_info import TableFacts, describe_table
from oncehouse.errors import ConfigurationError
from oncehouse.etl.lineage.topic import Template, Topic
from oncehouse.etl.state.position import Position, Range, format_seek_argument
from oncehouse.etl.step_log import is_log_view
from oncehouse.etl.steps.source_ranges import IN_RANGE, bounds

LEAST_BLOCKS = 100
_PLACE = "toUnixTimestamp64Milli(toDateTime64(pos, 3)), toUInt64(id)"
_INTEGER = re.compile(r"(Nullable\()?U?Int(8|16|32|64)\)?")
_REPEAT_SECONDS = 600.0
# A range runs again before any other of its topic, so one insert lies between a step and its repeat.
_WINDOW = WindowNeeds(min_interval_seconds=_REPEAT_SECONDS, retry_horizon_seconds=_REPEAT_SECONDS)


@dataclass(frozen=True, kw_only=True)
class DestinationTable:
    """A Fact table, and what its materialized views fill."""

    facts: TableFacts
    views: tuple[ViewFacts, ...] = ()
    """Views that an INSERT reaches, those behind their targets included, without the scheduler's own log."""

    @property
    def tables(self) -> tuple[TableFacts, ...]:
        """All that must remember an INSERT, as far as this user sees them."""
        targets = (view.facts for view in self.views if view.facts is not None)
        return (self.facts, *(target for target in targets if target.is_merge_tree))

    @property
    def narrowest(self) -> TableFacts:
        """Of all of them, the one that remembers the fewest blocks."""
        return min(self.tables, key=lambda table: table.window_blocks)

    @property
    def window_seconds(self) -> float | None:
        """After so long the first of them forgets; None: by number only."""
        return min(
            (one.window_seconds for one in self.tables if one.window_seconds is not None), default=None
        )


def check_destination(client: Client, topic: Topic) -> DestinationTable:
    """What the Fact table is; refused when it is missing or would double rows after a crash."""
    facts = describe_table(client, topic.dst)
    if facts is None:
        raise ConfigurationError(
            f"Topic {topic.topic}: its table {topic.dst} does not exist on {client.address}. Create it, or correct "
            "`dst` in the lineage."
        )
    if topic.template != Template.STEP:
        return DestinationTable(facts=facts)
    destination = read_destination(client, facts)
    _check_memory(topic, facts)
    doubling = [one for one in check_view_targets(topic, destination.views) if one.level is Level.ERROR]
    if doubling:
        listed = " ".join(f"{one.where}: {one.what}; {one.advice}." for one in doubling)
        raise ConfigurationError(
            f"Topic {topic.topic}: a step that runs again after a crash would be doubled behind {topic.dst}. {listed}"
        )
    return destination


def read_destination(client: Client, facts: TableFacts) -> DestinationTable:
    views = tuple(view for view in read_views(client, facts) if not is_log_view(view.view, view.target))
    return DestinationTable(facts=facts, views=views)


def check_view_targets(topic: Topic, views: Iterable[ViewFacts]) -> Iterator[Finding]:
    """What would double a repeated step behind the Fact table. Pure."""
    needs = Needs(table=topic.dst, columns={}, batch_column="", id_column=None, window=_WINDOW)
    for view in views:
        is_narrow = view.facts is not None and view.facts.window_blocks >= LEAST_BLOCKS
        for finding in objections(check_views([view], needs)):
            # As for the Fact itself: a narrow memory is a warning, none is an error.
            yield replace(finding, level=Level.WARNING) if is_narrow else finding


def explain_overflow(topic: Topic, narrowest: TableFacts) -> str:
    """A step made more blocks, one a partition, than a table remembers."""
    blocks = narrowest.window_blocks
    return (
        f"Topic {topic.topic}: this step has rows for more than {blocks} partitions, and {narrowest.database}."
        f"{narrowest.table} remembers {blocks} blocks, so that a repeat after a crash would be doubled. Nothing went "
        f"in. {_widen(narrowest, blocks * 10)}, or let it have fewer partitions."
    )


def refuse_existing_rows(client: Client, topic: Topic) -> None:
    """The first step of a topic goes into an empty table: rows that are there came by other offsets, and their
    ranges would be built a second time."""
    sql = f"SELECT count() FROM {quote_table(topic.dst)}"  # noqa: S608 - quoted
    rows = int(read_in_step(client, [topic.dst], lambda reader: reader.query(sql))[0][0])
    if rows:
        raise ConfigurationError(
            f"Topic {topic.topic} has no position yet, but {topic.dst} holds {rows} rows (a topic with another name, "
            "other offsets or another program has put them there), and may get them a second time. `oncehouse etl seek "
            f"{topic.topic} POSITION` lets it go on after the last of them; `seek {topic.topic} start --force` builds "
            "all of it next to them."
        )


def shows_positions(facts: TableFacts) -> bool:
    """Whether the table has the columns `pos` and `id` of its sources, so that rows can be found by their position."""
    pos, id_ = facts.column("pos"), facts.column("id")
    return pos is not None and id_ is not None and bool(_INTEGER.fullmatch(id_.type))


def refuse_rows_ahead(client: Client, topic: Topic, span: Range, forced_upto: Position) -> None:
    """The table does not hold rows of a range that the offsets say is still to be built, but for those that a forced
    seek allowed."""
    after = max(span.last, forced_upto)
    if after >= span.next:
        return
    source, dst = quote_table(topic.depends_on[0]), quote_table(topic.dst)
    # Most often there are none at all, so the source need not be read.
    any_ = f"SELECT 1 FROM {dst} WHERE {IN_RANGE} LIMIT 1"  # noqa: S608 - quoted
    both = (
        f"SELECT count() FROM {source} WHERE {IN_RANGE} "  # noqa: S608 - quoted
        f"AND ({_PLACE}) IN (SELECT {_PLACE} FROM {dst} WHERE {IN_RANGE})"
    )
    tables, bound = (topic.depends_on[0], topic.dst), bounds(after, span.next)
    if not read_in_step(client, [topic.dst], lambda reader: reader.query(any_, bound, WHOLE_ANSWERS)):
        return
    rows = int(read_in_step(client, tables, lambda reader: reader.query(both, bound, WHOLE_ANSWERS))[0][0])
    if not rows:
        return
    newest = format_seek_argument(find_newest_row(client, topic.dst))
    raise ConfigurationError(
        f"Topic {topic.topic}: {topic.dst} holds {rows} rows of {topic.depends_on[0]} after "
        f"{format_seek_argument(span.last)}, where the topic's offsets are: their catalog has lost its last "
        "transactions (a standby was promoted, a file was replaced by an older copy), or another program has inserted "
        f"them. Nothing is built, because they would be doubled. `oncehouse etl seek {topic.topic} {newest}` goes on "
        "after the last of them; the gap that it leaves holds their rows and must not be back-filled. If they are not "
        f"this topic's, `seek {topic.topic} {format_seek_argument(span.last)} --force` builds next to them."
    )


def find_newest_row(client: Client, table: str) -> Position:
    """Of a Fact table with `pos` and `id`, whatever its order; START where it is empty."""
    sql = f"SELECT max(({_PLACE})) FROM {quote_table(table)}"  # noqa: S608 - quoted
    rows = read_in_step(client, [table], lambda reader: reader.query(sql, settings=WHOLE_ANSWERS))
    time_ms, id_ = rows[0][0]
    return Position(time_ms=time_ms, id=id_)


def _check_memory(topic: Topic, facts: TableFacts) -> None:
    if facts.window_blocks >= LEAST_BLOCKS:
        return
    name = f"{facts.database}.{facts.table}"
    raise ConfigurationError(
        f"Topic {topic.topic}: {name} ({facts.engine}) remembers {facts.window_blocks} inserted blocks, so a step "
        f"that runs again after a crash would double its rows. {_widen(facts, LEAST_BLOCKS * 10)}"
    )


def _widen(facts: TableFacts, blocks: int) -> str:
    table = f"{quote(facts.database)}.{quote(facts.table)}"
    return f"ALTER TABLE {table} MODIFY SETTING {facts.window_setting} = {blocks}"
