"""Offsets in ClickHouse: a KeeperMap table for a cluster, an EmbeddedRocksDB table for one server.

KeeperMap in strict mode updates a row only if its version in ZooKeeper is the one that was read (a loser gets
"Bad version"). EmbeddedRocksDB has no such thing, two updates of one row can both match; there, changes of a
topic take turns, and who makes the turn's table has the turn, because one server creates a name only once.
Transform views may read `last` and `next` of their topic from either table.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from oncehouse.clickhouse.client import Client, failure_of
from oncehouse.clickhouse.names import quote_table, split_table
from oncehouse.errors import ConfigurationError, OncehouseError, PermanentError, TransientError
from oncehouse.etl.book import read_book, write_book
from oncehouse.etl.mutex import blank
from oncehouse.etl.offsets import Decide, Snapshot
from oncehouse.etl.records import Offset, Position

_COLUMNS = """(
    topic String,
    last Tuple(DateTime64(3), UInt64),
    rows UInt64,
    next Tuple(DateTime64(3), UInt64),
    run DateTime64(3) DEFAULT now64(3),
    consumer String,
    state String,
    hostid String,
    generation UInt64,
    lane String,
    resume Tuple(DateTime64(3), UInt64),
    book String
)"""
_FIELDS = """topic, toUnixTimestamp64Milli(last.1), last.2, toUnixTimestamp64Milli(next.1), next.2, rows,
    toUnixTimestamp64Milli(run), consumer, state, hostid, toUnixTimestamp64Milli(now64(3)), generation, lane,
    toUnixTimestamp64Milli(resume.1), resume.2, book"""
_NOW = 10
_LAST = "(fromUnixTimestamp64Milli({last_ms:Int64}), {last_id:UInt64})"
_NEXT = "(fromUnixTimestamp64Milli({next_ms:Int64}), {next_id:UInt64})"
_RESUME = "(fromUnixTimestamp64Milli({resume_ms:Int64}), {resume_id:UInt64})"
_NEW_ROW = f"""{{topic:String}}, {_LAST}, {{rows:UInt64}}, {_NEXT}, now64(3), {{consumer:String}}, {{state:String}},
    {{hostid:String}}, {{generation:UInt64}}, {{lane:String}}, {_RESUME}, {{book:String}}"""
# A mutation evaluates its condition once for each column that it sets, so only those that differ are set.
_ASSIGNMENTS = {
    "last": f"last = {_LAST}",
    "rows": "rows = {rows:UInt64}",
    "next": f"next = {_NEXT}",
    "consumer": "consumer = {consumer:String}",
    "state": "state = {state:String}",
    "hostid": "hostid = {hostid:String}",
    "generation": "generation = {generation:UInt64}",
    "lane": "lane = {lane:String}",
    "resume": f"resume = {_RESUME}",
    "book": "book = {book:String}",
}
# Every write moves `run`, so it tells the versions of a row apart; a person who clears the hostid by hand does not.
_MOVE_RUN = "run = greatest(now64(3), addMilliseconds(run, 1))"
_IF_UNCHANGED = """topic = {topic:String} AND run = fromUnixTimestamp64Milli({seen_run_ms:Int64})
    AND hostid = {seen_hostid:String}"""
# The same condition, and an error when the row is another one by now: who frees a topic need not read it again.
_OR_THROW = """topic = {topic:String} AND NOT throwIf(topic = {topic:String}
    AND (run, hostid) != (fromUnixTimestamp64Milli({seen_run_ms:Int64}), {seen_hostid:String}))"""
_KEEPER_EXCEPTION = 999
_THROWN = 395
_TABLE_EXISTS = 57
_UNKNOWN_TABLE = 60
_ATTEMPTS = 50
_TURN_SECONDS = 30


class _ClickHouseOffsets:
    def __init__(self, client: Client, table: str) -> None:
        self.table = table
        self.view_table: str | None = table
        self._client = client
        self._name = quote_table(table)

    def _create(self, engine: str) -> None:
        database = split_table(self.table).quoted.rpartition(".")[0]
        if database:
            self._client.command(f"CREATE DATABASE IF NOT EXISTS {database}")
        self._client.command(
            f"CREATE TABLE IF NOT EXISTS {self._name} {_COLUMNS} ENGINE = {engine} PRIMARY KEY topic"
        )

    def read_all(self) -> Snapshot:
        rows = self._client.query(f"SELECT {_FIELDS} FROM {self._name}")  # noqa: S608 - the name is quoted
        now_ms = rows[0][_NOW] if rows else self._read_time()
        return Snapshot(offsets={row[0]: _offset(row) for row in rows}, now_ms=now_ms)

    def _read(self, topic: str) -> tuple[Offset | None, int]:
        rows = self._client.query(
            f"SELECT {_FIELDS} FROM {self._name} WHERE topic = {{topic:String}}",  # noqa: S608 - the name is quoted
            {"topic": topic},
        )
        return (_offset(rows[0]), rows[0][_NOW]) if rows else (None, self._read_time())

    def _read_time(self) -> int:
        return int(self._client.query("SELECT toUnixTimestamp64Milli(now64(3))")[0][0])

    def _attempt(self, topic: str, decide: Decide, seen: Offset | None) -> Offset | None:
        """The row as written, or None when somebody else was quicker."""
        row, now_ms = (seen, seen.run_ms) if seen else self._read(topic)
        wanted = decide(row or blank(topic), now_ms)
        if row is None:
            sql, parameters = f"INSERT INTO {self._name} SELECT {_NEW_ROW}", _parameters(wanted)
        else:
            is_freed = seen is not None and not wanted.hostid
            condition = _OR_THROW if is_freed else _IF_UNCHANGED
            sql = f"ALTER TABLE {self._name} UPDATE {_assign(row, wanted)} WHERE {condition}"
            parameters = {**_parameters(wanted), "seen_run_ms": row.run_ms, "seen_hostid": row.hostid}
            if is_freed:
                return wanted if self._send(sql, parameters) else None
        self._send(sql, parameters)
        # An update whose condition met nothing is silent: the row itself says whether it is ours.
        written = self._read(topic)[0]
        is_ours = written is not None and written == replace(wanted, run_ms=written.run_ms)
        return written if is_ours and written and written.run_ms > (row.run_ms if row else 0) else None

    def _send(self, sql: str, parameters: dict[str, Any]) -> bool:
        """Whether the server took it; False when a rival's write came between."""
        try:
            self._client.command(sql, parameters, {"keeper_map_strict_mode": 1})
        except OncehouseError as error:
            if not _is_rivalry(error):
                raise
            return False
        return True


class KeeperMapOffsets(_ClickHouseOffsets):
    """`path` is where the table lives in ZooKeeper; the hosts of a cluster that share it share the offsets."""

    def __init__(self, client: Client, table: str = "ETL.Offsets", path: str = "/ETL/Offsets") -> None:
        super().__init__(client, table)
        self._path = path

    def prepare(self) -> None:
        quoted = self._path.replace("\\", "\\\\").replace("'", "\\'")
        try:
            self._create(f"KeeperMap('{quoted}')")
        except PermanentError as error:
            if "keeper_map_path_prefix" not in str(error):
                raise
            raise ConfigurationError(
                f"{self._client.address} has no KeeperMap: its configuration lacks `keeper_map_path_prefix`. Set it on "
                "every server (it needs a Keeper or ZooKeeper), or choose `offsets: {store: rocksdb}` for one server, "
                "or `store: catalog`."
            ) from error

    def change(self, topic: str, decide: Decide, seen: Offset | None = None) -> Offset:
        for attempt in range(_ATTEMPTS):
            written = self._attempt(topic, decide, seen if attempt == 0 else None)
            if written is not None:
                return written
            time.sleep(random.uniform(0, 0.005 * (attempt + 1)))  # noqa: S311 - spreads rivals, no secret
        raise TransientError(
            f"Topic {topic}: its row in {self.table} changed {_ATTEMPTS} times while it was to be written. "
            "Look for several schedulers with one host id; the same call can be tried again."
        )


class RocksDbOffsets(_ClickHouseOffsets):
    """On one server only: its table is not replicated."""

    def __init__(self, client: Client, table: str = "ETL.OffsetsLocal") -> None:
        super().__init__(client, table)

    def prepare(self) -> None:
        self._create("EmbeddedRocksDB")

    def change(self, topic: str, decide: Decide, seen: Offset | None = None) -> Offset:
        with self._turn(topic):
            written = self._attempt(topic, decide, seen) or self._attempt(topic, decide, None)
        if written is None:
            raise TransientError(
                f"Topic {topic}: its row in {self.table} was changed by somebody who did not wait for the turn. "
                "The same call can be tried again."
            )
        return written

    @contextmanager
    def _turn(self, topic: str) -> Iterator[None]:
        name = self._turn_table(topic)
        deadline = time.monotonic() + 2 * _TURN_SECONDS
        while not self._enter(name):
            if time.monotonic() > deadline:
                raise TransientError(
                    f"Topic {topic}: others hold the turn to change {self.table} for a minute. "
                    f"If no scheduler runs, DROP TABLE {name} ends it."
                )
            time.sleep(random.uniform(0.002, 0.02))  # noqa: S311 - spreads rivals, no secret
            self._end_forgotten(name)
        try:
            yield
        finally:
            with suppress(TransientError):  # a turn that could not be given back is ended by its age
                self._client.command(f"DROP TABLE IF EXISTS {name}")

    def _turn_table(self, topic: str) -> str:
        return quote_table(f"{self.table}_turn_{hashlib.sha256(topic.encode()).hexdigest()[:16]}")

    def _enter(self, name: str) -> bool:
        try:
            self._client.command(f"CREATE TABLE {name} (x UInt8) ENGINE = Memory")
        except PermanentError as error:
            if failure_of(error).code == _TABLE_EXISTS:
                return False
            raise
        return True

    def _end_forgotten(self, name: str) -> None:
        """End the turn of a process that died in it. Its table is renamed by its uuid, so that of several
        who find it only one ends it, and none ends the turn of who came next."""
        database, table = (part.strip("`") for part in name.rpartition(".")[::2])
        found = self._client.query(
            "SELECT toString(uuid) FROM system.tables WHERE database = {database:String} AND name = {name:String} "
            "AND metadata_modification_time < now() - {seconds:UInt32}",
            {"database": database or self._client.database, "name": table, "seconds": _TURN_SECONDS},
        )
        for (uuid,) in found:
            ended = quote_table(f"{self.table}_ended_{uuid.replace('-', '')}")
            try:
                self._client.command(f"RENAME TABLE {name} TO {ended}")
            except PermanentError as error:
                if failure_of(error).code not in {_TABLE_EXISTS, _UNKNOWN_TABLE}:
                    raise


def _assign(row: Offset, wanted: Offset) -> str:
    different = [column for column in _ASSIGNMENTS if getattr(wanted, column) != getattr(row, column)]
    return ", ".join([_MOVE_RUN, *(_ASSIGNMENTS[column] for column in different)])


def _is_rivalry(error: OncehouseError) -> bool:
    code = failure_of(error).code
    words = ("Bad version", "Node exists", "No node")
    return code == _THROWN or (code == _KEEPER_EXCEPTION and any(word in str(error) for word in words))


def _offset(row: tuple[Any, ...]) -> Offset:
    topic, last_ms, last_id, next_ms, next_id, rows, run_ms, consumer, state, hostid, _now_ms, *beside = row
    generation, lane, resume_ms, resume_id, book = beside
    return Offset(
        topic=topic,
        last=Position(time_ms=last_ms, id=last_id),
        next=Position(time_ms=next_ms, id=next_id),
        rows=rows,
        run_ms=run_ms,
        consumer=consumer,
        state=state,
        hostid=hostid,
        generation=generation,
        lane=lane,
        resume=Position(time_ms=resume_ms, id=resume_id),
        book=read_book(book),
    )


def _parameters(row: Offset) -> dict[str, Any]:
    return {
        "topic": row.topic,
        "last_ms": row.last.time_ms,
        "last_id": row.last.id,
        "next_ms": row.next.time_ms,
        "next_id": row.next.id,
        "rows": row.rows,
        "consumer": row.consumer,
        "state": row.state,
        "hostid": row.hostid,
        "generation": row.generation,
        "lane": row.lane,
        "resume_ms": row.resume.time_ms,
        "resume_id": row.resume.id,
        "book": write_book(row.book),
    }
