"""Operations in Redis, a stream a sync: nothing is written to the source database while Redis answers.

An entry is made inside the transaction of the change, with that transaction's id, so that no crash can fall between
commit and entry. Rounds pass over entries whose transaction still runs and drop those of aborted ones. While Redis does
not answer, operations go to the outbox table in the same transaction; rounds read both. PostgreSQL only: it is asked
what became of a transaction. Redis has to keep what it acknowledged (an append-only file, no eviction).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from sqlalchemy import Connection, Engine, text

from oncehouse.errors import ConfigurationError, TransientError
from oncehouse.sync.changes.change import Operation, OperationKind
from oncehouse.sync.changes.register import OperationWriter
from oncehouse.sync.changes.sql_storage import OutboxStorage
from oncehouse.sync.changes.storage import OperationBacklog

_log = logging.getLogger(__name__)

PREFIX = "oncehouse:sync:"
AWAY_SECONDS = 5.0
"""How long Redis is left alone after it did not answer, so that not every save waits for it."""

_OUTBOX_MARK = "table:"
_REMOVED_AT_ONCE = 1_000
_OWN_TRANSACTION = "SELECT CAST(pg_current_xact_id() AS text)"
# Ids beyond the snapshot belong to transactions that began after it; pg_xact_status would call them an error. Null: so
# long ago that PostgreSQL has forgotten, so it has ended.
_FATES = text(
    "SELECT x, CASE WHEN CAST(x AS xid8) >= pg_snapshot_xmax(pg_current_snapshot()) THEN 'in progress' "
    "ELSE coalesce(pg_xact_status(CAST(x AS xid8)), 'committed') END "
    "FROM unnest(CAST(:ids AS text[])) AS x"
)

Entry = tuple[str, str, str, str]
"""Id, key, kind, transaction."""


class RedisStorage:
    def __init__(
        self, client: redis.Redis, *, prefix: str = PREFIX, away_seconds: float = AWAY_SECONDS
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._away_seconds = away_seconds
        self._away_until = 0.0
        self._outbox = OutboxStorage()

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RedisStorage:
        """`config` is what redis-py's client is made with. A writer waits a second for Redis, unless it says more."""
        # redis-py tries again for seconds by itself; a save has the outbox table to turn to.
        once = Retry(NoBackoff(), 0)
        short = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0, "retry": once}
        given = {**short, **config, "decode_responses": True}
        prefix = given.pop("prefix", PREFIX)
        try:
            return cls(redis.Redis(**given), prefix=prefix)
        except TypeError as error:
            raise ConfigurationError(f"CLICKHOUSE_REDIS_CONFIG: {error}") from None

    def register(self, writer: OperationWriter, sync: str, kind: OperationKind, keys: Sequence[str]) -> None:
        if not keys:
            return
        if writer.vendor != "postgresql":
            raise ConfigurationError(
                f"Sync {sync}: the storage 'redis' asks PostgreSQL what became of a transaction, and this database is "
                f"{writer.vendor}; use the storage 'outbox'"
            )
        if time.monotonic() < self._away_until or not self._add(writer, sync, kind, keys):
            self._outbox.register(writer, sync, kind, keys)

    def _add(self, writer: OperationWriter, sync: str, kind: OperationKind, keys: Sequence[str]) -> bool:
        transaction = writer.execute(_OWN_TRANSACTION, {})[0][0]
        pipe = self._client.pipeline(transaction=False)
        for key in keys:
            pipe.xadd(self._prefix + sync, {"key": key, "kind": kind.value, "in": transaction})
        try:
            pipe.execute()
        except redis.RedisError as error:
            # Some entries may have been made: a key that is listed twice is read once.
            self._away_until = time.monotonic() + self._away_seconds
            _log.warning(
                "Sync %s: Redis does not answer (%s); operations go to the outbox table", sync, error
            )
            return False
        return True

    def list_operations(self, connection: Connection, sync: str, limit: int) -> list[Operation]:
        found = [
            Operation(id=_OUTBOX_MARK + one.id, key=one.key, kind=one.kind)
            for one in self._outbox.list_operations(connection, sync, limit)
        ]
        try:
            self._list_entries(connection, sync, limit, found)
        except redis.RedisError as error:
            if not found:
                raise TransientError(
                    f"Sync {sync}: Redis does not answer ({error}); its operations wait there"
                ) from error
        return found

    def _list_entries(self, connection: Connection, sync: str, limit: int, found: list[Operation]) -> None:
        after = "-"
        while len(found) < limit:
            entries = self._read_entries(sync, after, limit - len(found))
            if not entries:
                return
            fates = _ask_fates(connection, {entry[3] for entry in entries})
            self._drop(sync, [entry[0] for entry in entries if fates[entry[3]] == "aborted"])
            found += [
                Operation(id=entry[0], key=entry[1], kind=OperationKind(entry[2]))
                for entry in entries
                if fates[entry[3]] == "committed"
            ]
            after = f"({entries[-1][0]}"

    def _read_entries(self, sync: str, after: str, count: int) -> list[Entry]:
        answer: Any = self._client.xrange(self._prefix + sync, min=after, count=count)
        return [(number, fields["key"], fields["kind"], fields["in"]) for number, fields in answer]

    def remove(self, engine: Engine, sync: str, ids: Sequence[str]) -> None:
        in_table = [one.removeprefix(_OUTBOX_MARK) for one in ids if one.startswith(_OUTBOX_MARK)]
        if in_table:
            self._outbox.remove(engine, sync, in_table)
        try:
            self._drop(sync, [one for one in ids if not one.startswith(_OUTBOX_MARK)])
        except redis.RedisError as error:
            raise TransientError(
                f"Sync {sync}: Redis does not answer ({error}); what was synced is synced again when it does"
            ) from error

    def _drop(self, sync: str, ids: Sequence[str]) -> None:
        for start in range(0, len(ids), _REMOVED_AT_ONCE):
            self._client.xdel(self._prefix + sync, *ids[start : start + _REMOVED_AT_ONCE])

    def measure(self, connection: Connection, sync: str) -> OperationBacklog:
        table = self._outbox.measure(connection, sync)
        try:
            first: Any = self._client.xrange(self._prefix + sync, count=1)
            length: Any = self._client.xlen(self._prefix + sync)
            now: Any = self._client.time()
        except redis.RedisError as error:
            raise TransientError(f"Sync {sync}: Redis does not answer ({error})") from error
        ages = [] if table.oldest_seconds is None else [table.oldest_seconds]
        if first:
            ages.append(max(0.0, now[0] + now[1] / 1e6 - int(first[0][0].partition("-")[0]) / 1e3))
        return OperationBacklog(count=table.count + length, oldest_seconds=max(ages, default=None))


def _ask_fates(connection: Connection, transactions: Iterable[str]) -> dict[str, str]:
    return {row[0]: row[1] for row in connection.execute(_FATES, {"ids": sorted(transactions)})}
