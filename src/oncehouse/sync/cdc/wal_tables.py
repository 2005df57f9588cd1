"""What the database's log has of a model: its table, and which of the sync's columns are columns of it.

A framework provides it (`ModelSync.describe_log`). What only Python makes (serializers, expressions, steps of the
user's own) is not in a log; it is refused by name, and never left out without a word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oncehouse.sync.model.model_sync import ModelSync

STEPS = (
    *("need_sync", "pre_sync", "get_sync_queryset", "get_sync_select", "get_sync_objects"),
    *("get_insert_batch", "insert_batch", "post_sync", "post_sync_failed"),
)
"""What rounds call; the pipeline calls none of it."""


def leave_out(name: str, what: str) -> str:
    return f"columns[{name!r}]: {what}. Leave it out: columns = {{{name!r}: None}}"


def refuse_steps(sync: type[ModelSync]) -> tuple[str, ...]:
    """Steps that the user's class has of its own."""
    found = []
    for step in STEPS:
        owner = next((base for base in sync.__mro__ if step in vars(base)), None)
        if owner is not None and not owner.__module__.startswith("oncehouse.sync."):
            found.append(
                f"{step}: no round runs, so it would never be called. Take it out of {owner.__qualname__}, or let the "
                "outbox feed this sync"
            )
    return tuple(found)


def refuse_watch(sync: type[ModelSync]) -> tuple[str, ...]:
    if not getattr(sync, "watch", None):
        return ()
    advice = "Take it out, together with the columns that come from there"
    return (f"watch: the log has the rows of the model's own table, whatever changes elsewhere. {advice}",)
