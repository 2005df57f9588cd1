"""Offsets in ClickHouse: a KeeperMap table for a cluster, an EmbeddedRocksDB table for one server.

A change is one statement, which fails when the row is not the one that it was decided from. KeeperMap in strict mode
writes a row only if its version in ZooKeeper is the one that was read (a loser gets "Bad version"). EmbeddedRocksDB
has no such thing; there, all changes of a topic have one query id, and a server runs one query of an id at a time.
Transform views may read `last` and `next` of their topic from either table.
"""

from __future__ import annotations

import hashlib
import random
import time
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

from oncehouse.clickhouse.client import Client, failure_of
from oncehouse.clickhouse.error_codes import ErrorCode
from oncehouse.clickhouse.identifiers import quote_table, split_table
from oncehouse.errors import ConfigurationError, OncehouseError, PermanentError, TransientError
from oncehouse.etl.state.models import Offset
from oncehouse.etl.state.position import Position
from oncehouse.etl.state.topic_lease import new_offset
from oncehouse.etl.state.topic_state import decode_topic_state, encode_topic_state
from oncehouse.etl.state.transitions import Decide, OffsetSnapshot

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
_TIME = "toUnixTimestamp64Milli(now64(3))"
_FIELDS = f"""topic, toUnixTimestamp64Milli(last.1), last.2, toUnixTimestamp64Milli(next.1), next.2, rows,
    toUnixTimestamp64Milli(run), consumer, state, hostid, {_TIME}, generation, lane,
    toUnixTimestamp64Milli(resume.1), resume.2, book"""
_NOW = 10
_ATTRIBUTES = {
    **{
        name: name for name in ("last", "rows", "next", "consumer", "state", "hostid", "generation", "resume")
    },
    "lane": "job_kind",
    "book": "topic_state",
}
"""Columns that a change may set, and the attribute of the row that each holds; the table keeps its first names."""
_ONE_ROW = {"max_threads": 1}
_TURNS = {"replace_running_query": 0}  # who comes second waits, and does not end the first
_ATTEMPTS = 50
_TURN_SECONDS = 60
_ID_CHANGED = "the query id was changed on its way"


class _ClickHouseOffsets(ABC):
    def __init__(self, client: Client, table: str) -> None:
        self.table = table
        self.view_table: str | None = table
        self._client = client
        self._name = quote_table(table)
        self._clock: tuple[int, float] | None = None
        """The server's time at the latest read, and when that was by this process's own clock."""

    def _create(self, engine: str) -> None:
        database = split_table(self.table).quoted.rpartition(".")[0]
        if database:
            self._client.command(f"CREATE DATABASE IF NOT EXISTS {database}")
        self._client.command(f"CREATE TABLE IF NOT EXISTS {self._name} {_COLUMNS} ENGINE = {engine}")

    def read_all(self) -> OffsetSnapshot:
        rows = self._client.query(f"SELECT {_FIELDS} FROM {self._name}")  # noqa: S608 - the name is quoted
        now_ms = self._note_time(rows)
        return OffsetSnapshot(offsets={row[0]: _offset(row) for row in rows}, now_ms=now_ms)

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

    def _attempt(self, topic: str, decide: Decide, seen: Offset | None) -> Offset | None:
        """The row as written, or None when another process was quicker."""
        row, now_ms = (
            self._read(topic) if seen is None or self._clock is None else (seen, self._estimate_time())
        )
        # Every write moves `run`, so it distinguishes the versions of a row.
        run_ms = max(now_ms, row.run_ms + 1 if row else 0)
        wanted = replace(decide(row or new_offset(topic), now_ms), run_ms=run_ms)
        try:
            self._write(row, wanted)
        except OncehouseError as error:
            if not _is_rivalry(error):
                raise
            return None
        return wanted

    @abstractmethod
    def _write(self, row: Offset | None, wanted: Offset) -> None:
        """Fails when the topic's row is another one than `row`; where that is None, when there is one."""

    def _read(self, topic: str) -> tuple[Offset | None, int]:
        rows = self._client.query(
            f"SELECT {_FIELDS} FROM {self._name} WHERE topic = {{topic:String}}",  # noqa: S608 - the name is quoted
            {"topic": topic},
        )
        now_ms = self._note_time(rows)
        return _offset(rows[0]) if rows else None, now_ms

    def _note_time(self, rows: list[tuple[Any, ...]]) -> int:
        now_ms = int(rows[0][_NOW] if rows else self._client.query(f"SELECT {_TIME}")[0][0])
        self._clock = (now_ms, time.monotonic())
        return now_ms

    def _estimate_time(self) -> int:
        """The server's time by what it was: never ahead of it, so a lease is at worst taken for older than it is."""
        noted_ms, noted_at = self._clock or (0, 0.0)
        return noted_ms + int((time.monotonic() - noted_at) * 1000)


class KeeperMapOffsets(_ClickHouseOffsets):
    """`path` is where the table lives in ZooKeeper; the hosts of a cluster that share it share the offsets."""

    def __init__(self, client: Client, table: str = "ETL.Offsets", path: str = "/ETL/Offsets") -> None:
        super().__init__(client, table)
        self._path = path

    def prepare(self) -> None:
        quoted = self._path.replace("\\", "\\\\").replace("'", "\\'")
        try:
            self._create(f"KeeperMap('{quoted}') PRIMARY KEY topic")
        except PermanentError as error:
            if "keeper_map_path_prefix" not in str(error):
                raise
            raise ConfigurationError(
                f"{self._client.address} has no KeeperMap: its configuration lacks `keeper_map_path_prefix`. Set it on "
                "every server (it needs a Keeper or ZooKeeper), or choose `offsets: {store: rocksdb}` for one server, "
                "or `store: catalog`."
            ) from error

    def _write(self, row: Offset | None, wanted: Offset) -> None:
        values = _values(wanted)
        if row is None:
            sql = f"INSERT INTO {self._name} SELECT {', '.join(values.values())}"
        else:
            # A mutation costs by column, and by its condition for each of them: so only what differs is set, and one
            # column alone looks whether the row is the one that was seen. It may look at other topics' rows.
            changed = [f"{name} = {values[name]}" for name in _ATTRIBUTES if _differ(name, row, wanted)]
            guard = f"throwIf(topic = {{topic:String}} AND {_other_than(row)})"
            changed.append(f"run = fromUnixTimestamp64Milli({wanted.run_ms} + {guard})")
            sql = f"ALTER TABLE {self._name} UPDATE {', '.join(changed)} WHERE topic = {{topic:String}}"
        self._client.command(sql, _texts(row, wanted), {"keeper_map_strict_mode": 1, **_ONE_ROW})


class RocksDbOffsets(_ClickHouseOffsets):
    """On one server only: its table is not replicated."""

    def __init__(self, client: Client, table: str = "ETL.OffsetsLocal") -> None:
        super().__init__(client, table)

    def prepare(self) -> None:
        # Rows come one by one: what is made for many at once writes a file for each.
        self._create("EmbeddedRocksDB PRIMARY KEY topic SETTINGS optimize_for_bulk_insert = 0")

    def _write(self, row: Offset | None, wanted: Offset) -> None:
        values = ", ".join(_values(wanted).values())
        alone = f"NOT throwIf(queryID() != {{query_id:String}}, '{_ID_CHANGED}')"
        if row is None:
            found = f"(SELECT count() FROM {self._name} WHERE topic = {{topic:String}})"  # noqa: S608 - quoted
            source = f"WHERE {alone} AND NOT throwIf({found} > 0)"
        else:
            source = f"FROM {self._name} WHERE topic = {{topic:String}} AND {alone} AND NOT throwIf({_other_than(row)})"
        self._send_alone(f"INSERT INTO {self._name} SELECT {values} {source}", row, wanted)

    def _send_alone(self, sql: str, row: Offset | None, wanted: Offset) -> None:
        query_id = self._query_id(wanted.topic)
        deadline = time.monotonic() + _TURN_SECONDS
        while True:
            try:
                self._client.command(
                    sql,
                    {**_texts(row, wanted), "query_id": query_id},
                    {"query_id": query_id, **_ONE_ROW, **_TURNS},
                )
            except OncehouseError as error:
                if _ID_CHANGED in str(error):
                    raise ConfigurationError(
                        f"Something between this host and ClickHouse changes the ids of queries, by which changes of "
                        f"{self.table} take turns. Connect to the server itself, or use `offsets: {{store: catalog}}`."
                    ) from error
                if (
                    failure_of(error).code != ErrorCode.QUERY_WITH_SAME_ID_IS_ALREADY_RUNNING
                    or time.monotonic() > deadline
                ):
                    raise
                time.sleep(random.uniform(0.001, 0.01))  # noqa: S311 - spreads rivals, no secret
            else:
                return

    def _query_id(self, topic: str) -> str:
        """The same for every host that changes the topic's row."""
        name = split_table(self.table)
        whole = f"{name.database or self._client.database}\0{name.table}\0{topic}"
        return f"oncehouse-etl-offsets:{hashlib.sha256(whole.encode()).hexdigest()[:32]}"


def _values(row: Offset) -> dict[str, str]:
    """Each column's value as it stands in a statement. Whole numbers are written, which the server plans faster; what
    people or programs may have named is bound."""
    return {
        "topic": "{topic:String}",
        "last": _place(row.last),
        "rows": str(row.rows),
        "next": _place(row.next),
        "run": f"fromUnixTimestamp64Milli({row.run_ms})",
        "consumer": "{consumer:String}",
        "state": "{state:String}",
        "hostid": "{hostid:String}",
        "generation": str(row.generation),
        "lane": "{lane:String}",
        "resume": _place(row.resume),
        "book": _quote_ascii(encode_topic_state(row.topic_state)),
    }


def _quote_ascii(text: str) -> str:
    """The topic state is JSON of plain characters and stands in the statement: bound, it would be part of the address,
    where most of its characters take three."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    if not (escaped.isascii() and escaped.isprintable()):
        raise AssertionError(f"the topic state holds more than plain characters: {text!r}")
    return f"'{escaped}'"


def _place(position: Position) -> str:
    return f"(fromUnixTimestamp64Milli({position.time_ms}), {position.id})"


def _other_than(row: Offset) -> str:
    """A person who clears the hostid by hand does not move `run`."""
    return f"(run != fromUnixTimestamp64Milli({row.run_ms}) OR hostid != {{seen_hostid:String}})"


def _differ(column: str, row: Offset, wanted: Offset) -> bool:
    attribute = _ATTRIBUTES[column]
    return bool(getattr(row, attribute) != getattr(wanted, attribute))


def _texts(row: Offset | None, wanted: Offset) -> dict[str, str]:
    """What the statements bind."""
    return {
        "topic": wanted.topic,
        "consumer": wanted.consumer,
        "state": wanted.state,
        "hostid": wanted.hostid,
        "lane": wanted.job_kind,
        "seen_hostid": row.hostid if row else "",
    }


def _is_rivalry(error: OncehouseError) -> bool:
    code = failure_of(error).code
    words = ("Bad version", "Node exists", "No node")
    if code == ErrorCode.KEEPER_EXCEPTION:
        return any(word in str(error) for word in words)
    return code == ErrorCode.FUNCTION_THROW_IF_VALUE_IS_NON_ZERO


def _offset(row: tuple[Any, ...]) -> Offset:
    topic, last_ms, last_id, next_ms, next_id, rows, run_ms, consumer, state, hostid, _now_ms, *rest = row
    generation, job_kind, resume_ms, resume_id, topic_state = rest
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
        job_kind=job_kind,
        resume=Position(time_ms=resume_ms, id=resume_id),
        topic_state=decode_topic_state(topic_state),
    )
