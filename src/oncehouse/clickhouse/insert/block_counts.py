"""How many blocks a table has taken so far from all writers: the measure of which tokens it still remembers.

Every block that is inserted takes a number, also one that the table drops as a repeat. A MergeTree table counts them
itself, and its parts show the highest; a replicated one has a log entry for each (and for more than that: merges and
mutations, which errs on the safe side). Two counts of one table say how many came between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncehouse.clickhouse.client import failure_of
from oncehouse.clickhouse.error_codes import ErrorCode
from oncehouse.clickhouse.identifiers import split_table
from oncehouse.errors import ConfigurationError, TransientError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from oncehouse.clickhouse.client import Client
    from oncehouse.clickhouse.table_info import TableFacts

_UUID = "SELECT toString(any(uuid)) FROM system.tables WHERE database = {database:String} AND name = {table:String}"
_PARTS = "SELECT max(max_block_number) FROM system.parts WHERE database = {database:String} AND table = {table:String}"
# Asked of Keeper, so it does not depend on how far this replica has come; less than 0 where Keeper did not answer.
_LOG = (
    "SELECT if(count() = 0, -1, toInt64(max(log_max_index))) FROM system.replicas WHERE database = {database:String} "
    "AND table = {table:String} AND zookeeper_exception = '' AND is_session_expired = 0"
)

# ClickHouse refuses an insert into more partitions than this (max_partitions_per_insert_block).
_MOST_PARTITIONS = 100


@dataclass(frozen=True, kw_only=True)
class BlockCount:
    uuid: str
    """Another one stands behind the name after an exchange or when the table was made again."""
    blocks: int

    def __str__(self) -> str:
        return f"{self.uuid} {self.blocks}"

    @classmethod
    def parse(cls, text: str | None) -> BlockCount | None:
        if text is None:
            return None
        uuid, _, blocks = text.partition(" ")
        return cls(uuid=uuid, blocks=int(blocks))


def read_block_count(
    client: Client, table: str, facts: TableFacts | None, settings: Mapping[str, Any] | None = None
) -> BlockCount | None:
    """The table's count; None where it keeps no such count or the user may not see it.

    One small request in any case, which carries `settings`: it opens the attempt's session as well. A replicated table
    without its Keeper takes no INSERT either: that is a TransientError.
    """
    if facts is None or not facts.is_merge_tree or facts.engine.startswith("Shared"):
        client.query("SELECT 1", settings=settings)
        return None
    name = split_table(table)
    key = {"database": name.database or client.database, "table": name.table}
    counted = _LOG if facts.is_replicated else _PARTS
    try:
        rows = client.query(f"SELECT ({_UUID}), ({counted})", key, settings)
    except ConfigurationError as error:
        if failure_of(error).code != ErrorCode.ACCESS_DENIED:
            raise
        client.query("SELECT 1", settings=settings)
        return None
    uuid, blocks = rows[0]
    if not uuid:
        return None
    if (count := int(blocks or 0)) < 0:
        raise TransientError(
            f"{table}: the replica on {client.address} has lost its Keeper, so the table takes no INSERT and its "
            "blocks cannot be counted. Bring Keeper back, or name another replica in the url; it is tried again."
        )
    return BlockCount(uuid=uuid, blocks=count)


def blocks_between(then: BlockCount | None, now: BlockCount | None) -> int | None:
    """How many blocks the table took between two counts; None if the counts cannot be compared.

    A count that has gone back belongs to a table that was emptied, lost parts or was made again.
    """
    if then is None or now is None or then.uuid != now.uuid or now.blocks < then.blocks:
        return None
    return now.blocks - then.blocks


def most_own_blocks(attempts: int, facts: TableFacts | None) -> int:
    """How many blocks so many inserts may have made: the measure where the table shows no count."""
    return attempts * (_MOST_PARTITIONS if facts is not None and facts.partition_key else 1)
