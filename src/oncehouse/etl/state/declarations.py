"""How far a source has come, as its loader declares it: `last` in the row of the source's own topic.

A declaration is a promise: every row at that position or before it is in the table, and none will come. It goes ahead
only, unless a person says otherwise; and one loader makes it, since another one's promise says nothing of its rows.
"""

from __future__ import annotations

from dataclasses import replace

from oncehouse.errors import PermanentError
from oncehouse.etl.state.models import Offset
from oncehouse.etl.state.position import START, Position
from oncehouse.etl.state.transitions import OffsetStore


class DeclarationError(PermanentError):
    """A declaration that goes back, or that another loader makes."""


def declare(
    store: OffsetStore, topic: str, upto: Position, *, consumer: str, is_forced: bool = False
) -> Offset:
    """Write the declaration down. Of the same loader, one that is behind what is known changes nothing."""

    def decide(row: Offset, _now_ms: int) -> Offset:
        if not is_forced:
            _check_consumer(row, consumer)
            if upto <= row.last:
                return row
        return replace(row, last=upto, next=upto, consumer=consumer)

    return store.change(topic, decide)


def withdraw(store: OffsetStore, topic: str) -> Offset:
    """From now on the newest row of the table says how far it has come."""
    return store.change(topic, lambda row, _now_ms: replace(row, last=START, next=START, consumer=""))


def _check_consumer(row: Offset, consumer: str) -> None:
    if row.last > START and row.consumer not in ("", consumer):
        raise DeclarationError(
            f"Source {row.topic} is declared by {row.consumer}, and {consumer} would declare it too: what one loader "
            "has brought says nothing of the other's rows. Give each a table of its own, or, when the other one is "
            f"gone, `oncehouse etl declare {row.topic} --withdraw`."
        )
