"""How near a table is to having too many parts, as ClickHouse counts them: by partition.

Reads system tables only. A user who may not see them is no error: then the server's refusals are all that is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncehouse.clickhouse.client import failure_of
from oncehouse.clickhouse.error_codes import ErrorCode
from oncehouse.clickhouse.identifiers import split_table
from oncehouse.clickhouse.table_info import read_setting
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from oncehouse.clickhouse.client import Client

_SETTING = "parts_to_delay_insert"
# What servers have had by default since 23.6; taken where the user may not ask.
_USUALLY_DELAYED_FROM = 1000


class PartPressure:
    """Of one table. Asks once from how many parts on inserts are slowed down, and each time how many there are."""

    def __init__(self, client: Client, table: str) -> None:
        self._client = client
        name = split_table(table)
        self._key = {"database": name.database or client.database, "table": name.table}
        self._delayed_from: int | None = None
        self._may_ask = True

    def read_share(self) -> float:
        """Parts of the fullest partition, as a share of those that slow inserts down; 0 if the user may not read it.

        Raises what the server raises otherwise.
        """
        if not self._may_ask:
            return 0.0
        try:
            if self._delayed_from is None:
                self._delayed_from = self._read_delayed_from()
            found = self._client.query(
                "SELECT count() FROM system.parts WHERE active AND database = {database:String} "
                "AND table = {table:String} GROUP BY partition_id ORDER BY count() DESC LIMIT 1",
                self._key,
            )
        except ConfigurationError as error:
            if failure_of(error).code != ErrorCode.ACCESS_DENIED:
                raise
            self._may_ask = False
            return 0.0
        # A setting of 0 never slows anything down.
        return int(found[0][0]) / self._delayed_from if found and self._delayed_from else 0.0

    def _read_delayed_from(self) -> int:
        defined = self._client.query(
            "SELECT engine_full FROM system.tables WHERE database = {database:String} AND name = {table:String}",
            self._key,
        )
        own = read_setting(defined[0][0], _SETTING) if defined else None
        if own is not None:
            return own
        try:
            rows = self._client.query(
                "SELECT value FROM system.merge_tree_settings WHERE name = {name:String}", {"name": _SETTING}
            )
        except ConfigurationError as error:
            if failure_of(error).code != ErrorCode.ACCESS_DENIED:
                raise
            rows = []
        return int(rows[0][0]) if rows else _USUALLY_DELAYED_FROM
