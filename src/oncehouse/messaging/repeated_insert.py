"""Whether a batch whose INSERT got no answer may be sent again: the table and its views must still know its token.

The rows of a batch cannot be distinguished from others. So the blocks of all writers since it was first sent are
counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncehouse.clickhouse.insert.block_counts import BlockCount, blocks_between
from oncehouse.clickhouse.insert.deadline import Deadline, Moment, read_moment
from oncehouse.clickhouse.insert.view_memory import find_forgetful_view
from oncehouse.clickhouse.table_info import TableFacts, describe_table
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from oncehouse.clickhouse.client import Client


@dataclass(frozen=True, kw_only=True)
class SentInsert:
    """An INSERT whose outcome is not known."""

    count: BlockCount | None
    """How many blocks the table had taken before it first left; None where the table keeps no such count."""
    began: Moment


class TokenForgottenError(ConfigurationError):
    """A batch may be in the table, and the table or a view's target may not know it any more."""


def require_remembered(
    client: Client, table: str, token: str, sent: SentInsert, count: BlockCount | None
) -> None:
    """Raises TokenForgottenError where a repeat may double rows. `count` is the table's count of blocks by now."""
    facts = describe_table(client, table)
    if facts is None:
        return  # there is nothing that could take rows twice, and the INSERT says so
    ahead = client.insert_timeout_seconds
    now = client.now()
    seconds = Deadline(began=sent.began, seconds=0.0).elapsed(read_moment())
    if sent.count is None:
        blocks, is_remembered = None, facts.window_seconds is None or seconds + ahead < facts.window_seconds
    else:
        blocks = blocks_between(sent.count, count)
        is_remembered = blocks is not None and facts.remembers(
            blocks_since=blocks, seconds_since=seconds, seconds_ahead=ahead
        )
    if not is_remembered:
        raise TokenForgottenError(
            f"{table}: batch {token}: the answer to its INSERT was lost {seconds:.0f} s ago, and the table, which "
            f"remembers {_format_window(facts)}, has taken {'others' if blocks is None else blocks} since. It may "
            f"have forgotten the batch, so nothing is sent. {_ADVICE} Then raise {facts.window_setting}, or let fewer "
            "programs insert into the table"
        )
    target = find_forgetful_view(client, facts, since=max(0, int(now - seconds)), inserts=None, found=0)
    if target is not None:
        raise TokenForgottenError(
            f"{table}: batch {token}: the answer to its INSERT was lost {seconds:.0f} s ago, and {target}, to which a "
            "materialized view writes its rows, may have forgotten it: it was changed, or took too many blocks since. "
            f"So nothing is sent. {_ADVICE} Then let {target} remember more blocks"
        )


def _format_window(facts: TableFacts) -> str:
    seconds = "" if facts.window_seconds is None else f" of the last {facts.window_seconds:.0f} s"
    return f"{facts.window_blocks} blocks{seconds}"


# Rows that are deleted may not come back: a table that still knows the token drops what is sent again.
_ADVICE = (
    "Stop the consumer and look for the batch's rows in the table and in what its materialized views write to. If none "
    "is there, start the consumer again, which sends the batch. Otherwise delete none: insert those that are missing, "
    "set the offset of the consumer's group in this partition behind the batch, and start it."
)
