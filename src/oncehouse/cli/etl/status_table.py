"""How `oncehouse etl status` looks: a table that fits a terminal, and under it what a person has to know or do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from oncehouse.cli.output import say, show_table
from oncehouse.etl.status_text import format_decision, format_lag, format_position, list_notes

if TYPE_CHECKING:
    from oncehouse.etl.status import TopicStatus


def show_status(found: Sequence[TopicStatus]) -> None:
    show_table(
        ["topic", "last (UTC), id", "rows", "behind", "now"],
        [
            (one.topic, format_position(one.last), one.rows, format_lag(one), format_decision(one))
            for one in found
        ],
        empty="the lineage has sources only; nothing is built",
    )
    notes = [(one.topic, note) for one in found for note in list_notes(one)]
    if notes:
        say("")
    for topic, note in notes:
        say(f"{topic}: {note}")
