"""A small model of ClickHouse, at the place of the driver: the product's own client and statements run over it.

It has one table with a memory of tokens that is bounded by blocks and by time, two partitions, a materialized view
behind it, and, where that is asked for, two replicas of which one lags. Others may write to the table, requests may be
paused before they are sent, be held on their way or go on running, and servers forget sessions when they restart. A
statement that it does not know is an error, so that a new one of the product is noticed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from clickhouse_connect.driver import exceptions as driver
from urllib3 import exceptions as transport

from oncehouse.clickhouse.insert import send_guard
from oncehouse.clickhouse.server_names import report_server_names

DATABASE, TABLE = "default", "events"
PARTITIONS = 2
WINDOW_BLOCKS = 250
WINDOW_SECONDS = 3600
UNKNOWN_TABLE, SESSION_NOT_FOUND, SESSION_IS_LOCKED = 60, 372, 373
OURS = "insert_deduplication_token"

FINE, AWAY, REFUSES, ANSWER_LOST, DIES_BEFORE_VIEW, DIES_HALF_WAY, HELD, FROZEN, RUNS_ON = range(9)
FAULTS = range(9)
"""What becomes of the next INSERT. AWAY holds for all statements."""


Rows = tuple[tuple[int, str], ...]


class UnknownStatementError(Exception):
    """The product asks what this model does not answer: it is to be taught."""


class FrozenError(Exception):
    """The process stands still before the first byte of its INSERT; it goes on when the request arrives."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """The rows of an INSERT that fall into one partition."""

    partition: str
    token: str
    batch_id: str
    rows: Rows


@dataclass(frozen=True, kw_only=True)
class Part:
    number: int
    block: Block


@dataclass
class Memory:
    """Tokens of the latest blocks, in their order."""

    taken: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict)
    blocks: int = 0
    """How many it has taken, those included whose tokens nobody will send again."""

    def knows(self, block: Block, now: float, window_seconds: float | None) -> bool:
        found = self.taken.get((block.token, block.partition))
        if found is None:
            return False
        number, at = found
        in_time = window_seconds is None or now - at < window_seconds
        return in_time and self.blocks - number < WINDOW_BLOCKS

    def take(self, block: Block, now: float) -> None:
        self.taken[block.token, block.partition] = (self.blocks, now)
        self.blocks += 1


@dataclass
class Session:
    until: float
    query_id: str | None = None
    """Of the INSERT that uses it."""


@dataclass
class Request:
    """An INSERT that was sent, or is about to be."""

    query_id: str
    settings: Mapping[str, Any]
    blocks: tuple[Block, ...]
    may_leave: Callable[[], None]
    """The product's own last look at the clock."""
    paused: bool = False
    runs: bool = False
    killed: bool = False


@dataclass
class SimulatedClickHouse:
    replicated: bool = False
    now: float = 0.0
    fault: int = FINE
    parts: list[Part] = field(default_factory=list)
    shown: list[set[int]] = field(default_factory=lambda: [set(), set()])
    """Numbers of the parts that each replica has fetched."""
    view: list[Block] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)
    view_memory: Memory = field(default_factory=Memory)
    sent: dict[str, tuple[Rows, ...]] = field(default_factory=dict)
    """Rows by batch."""
    late: list[Request] = field(default_factory=list)
    current: int = 0
    """The server that answers at the address."""
    sessions: dict[str, Session] = field(default_factory=dict)
    """Of the current server."""
    finished: set[str] = field(default_factory=set)
    """Query ids in its query log."""

    # What happens to it

    def write_by_others(self, blocks: int) -> None:
        """Their rows are of no interest; what counts is that the table remembers so many blocks more."""
        self.memory.blocks += blocks
        self.view_memory.blocks += blocks

    def fail_over(self) -> None:
        """The server at the address dies, with what runs on it and what it alone knew; the other replica answers."""
        self._restart()
        self.finished.clear()
        if self.replicated:
            self.current = 1 - self.current

    def _restart(self) -> None:
        self.late = [request for request in self.late if not request.runs]
        self.sessions.clear()

    def fetch(self) -> None:
        for shown in self.shown:
            shown.update(part.number for part in self.parts)

    def deliver(self) -> None:
        """What was held arrives, what was paused wakes up, what runs comes to its end."""
        late, self.late = self.late, []
        for request in late:
            if request.runs:
                self._end(request)
                continue
            try:
                if request.paused:
                    request.may_leave()
                self._begin(request)
            except Exception:  # noqa: BLE001 - nobody waits for the answer
                continue
            self._end(request)

    def delete_batch(self, batch_id: str) -> None:
        """A person does so, in the table and in what its view has."""
        self.parts = [part for part in self.parts if part.block.batch_id != batch_id]
        self.view = [block for block in self.view if block.batch_id != batch_id]

    # What is in it

    @property
    def rows(self) -> list[tuple[int, str]]:
        return [row for part in self.parts for row in part.block.rows]

    def rows_of(self, batch_id: str) -> list[tuple[int, str]]:
        return [row for part in self.parts if part.block.batch_id == batch_id for row in part.block.rows]

    @property
    def view_rows(self) -> list[tuple[int, str]]:
        return [row for block in self.view for row in block.rows]

    def batches_the_view_lacks(self) -> set[str]:
        seen = {(block.batch_id, block.partition) for block in self.view}
        return {
            part.block.batch_id
            for part in self.parts
            if (part.block.batch_id, part.block.partition) not in seen
        }

    # What it is asked

    def connect(self, *_: object) -> Driver:
        driver = Driver(self)
        report_server_names(driver)  # type: ignore[arg-type]  # as to the driver that is played
        return driver

    def insert(self, data: pa.Table, settings: Mapping[str, Any], may_leave: Callable[[], None]) -> None:
        request = Request(
            query_id=str(settings["query_id"]),
            settings=settings,
            blocks=_blocks(data, str(settings[OURS])),
            may_leave=may_leave,
        )
        rows = tuple(block.rows for block in request.blocks)
        before = self.sent.setdefault(request.blocks[0].batch_id, rows)
        assert before == rows, "a batch that is sent again is the same, row by row"
        fault, self.fault = self.fault, FINE
        if fault == FROZEN:
            request.paused = True
            self.late.append(request)
            raise FrozenError
        may_leave()
        if fault == HELD:
            self.late.append(request)
            raise transport.ReadTimeoutError(None, "", "the answer does not come")  # type: ignore[arg-type]
        if fault == REFUSES:
            raise _refusal(UNKNOWN_TABLE, "UNKNOWN_TABLE")
        self._begin(request)
        if fault == RUNS_ON:
            request.runs = True
            self.late.append(request)
            raise transport.ReadTimeoutError(None, "", "the answer does not come")  # type: ignore[arg-type]
        if fault == DIES_HALF_WAY:
            self._take(request.blocks[:1], views=False)
        elif fault == DIES_BEFORE_VIEW:
            self._take(request.blocks, views=False)
        else:
            self._end(request)
        if fault in {DIES_HALF_WAY, DIES_BEFORE_VIEW}:
            self._restart()
        if fault in {ANSWER_LOST, DIES_HALF_WAY, DIES_BEFORE_VIEW}:
            raise transport.ProtocolError("the connection was cut")

    def _begin(self, request: Request) -> None:
        if (name := request.settings.get("session_id")) is not None:
            self._enter(str(name), request.settings).query_id = request.query_id

    def _end(self, request: Request) -> None:
        if not request.killed:
            self._take(request.blocks, views=True)
            self.finished.add(request.query_id)
        self._leave(request.settings)

    def _take(self, blocks: Iterable[Block], *, views: bool) -> None:
        window = WINDOW_SECONDS if self.replicated else None
        for block in blocks:
            if not self.memory.knows(block, self.now, window):
                number = self.memory.blocks
                self.memory.take(block, self.now)
                self.parts.append(Part(number=number, block=block))
                self.shown[self.current].add(number)
            elif not self.replicated:
                # A plain table gives a number to each block, and only then looks whether it has it.
                self.memory.blocks += 1
            if views and not self.view_memory.knows(block, self.now, window):
                self.view_memory.take(block, self.now)
                self.view.append(block)

    def answer(
        self, sql: str, parameters: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> list[tuple[Any, ...]]:
        if self.fault == AWAY:
            raise transport.NewConnectionError(None, "nobody listens")  # type: ignore[arg-type]
        if (name := settings.get("session_id")) is not None:
            self._enter(str(name), settings)
            self._leave(settings)
        for pattern, respond in _STATEMENTS:
            if re.search(pattern, sql):
                return respond(self, parameters)
        raise UnknownStatementError(sql)

    # Sessions

    def _enter(self, name: str, settings: Mapping[str, Any]) -> Session:
        session = self.sessions.get(name)
        if session is not None and session.query_id is not None:
            raise _refusal(SESSION_IS_LOCKED, "SESSION_IS_LOCKED")
        if session is None or session.until < self.now:
            if settings.get("session_check"):
                raise _refusal(SESSION_NOT_FOUND, "SESSION_NOT_FOUND")
            session = self.sessions[name] = Session(until=0.0)
        session.until = self.now + float(settings.get("session_timeout", 60))
        return session

    def _leave(self, settings: Mapping[str, Any]) -> None:
        session = self.sessions.get(str(settings.get("session_id")))
        if session is not None:
            session.query_id = None
            if settings.get("close_session"):
                del self.sessions[str(settings["session_id"])]

    # Statements

    def _kill(self, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        for request in self.late:
            if request.runs and request.query_id in parameters["ids"]:
                request.killed = True
                self._end(request)
        self.late = [request for request in self.late if not request.killed]
        return []

    def _processes(self, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        return [(one.query_id,) for one in self.late if one.runs and one.query_id in parameters["ids"]]

    def _visible(self) -> list[Block]:
        shown = self.shown[self.current]
        return [part.block for part in self.parts if not self.replicated or part.number in shown]

    def _count_by_partition(self, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        counted: Counter[str] = Counter()
        for block in self._visible():
            if block.batch_id == parameters["batch"]:
                counted[block.partition] += len(block.rows)
        return list(counted.items())

    def _count_by_batch(self, _: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        counted: Counter[str] = Counter()
        for block in self._visible():
            counted[block.batch_id] += len(block.rows)
        return list(counted.items())

    def _describe(self, _: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        return [("uuid", self._engine, self._engine_full, "id % 2", "id", [f"{DATABASE}.sums"])]

    @property
    def _engine(self) -> str:
        return "ReplicatedMergeTree" if self.replicated else "MergeTree"

    @property
    def _engine_full(self) -> str:
        kind = "replicated" if self.replicated else "non_replicated"
        seconds = f", replicated_deduplication_window_seconds = {WINDOW_SECONDS}" if self.replicated else ""
        return f"{self._engine} SETTINGS {kind}_deduplication_window = {WINDOW_BLOCKS}{seconds}"

    def _engines(self, _: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        return [(DATABASE, TABLE, self._engine, self._engine_full)]

    def _mark(self, _: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        # Of a plain table the parts tell, which is as far as the latest block that became one, others' included.
        return [("uuid", self.memory.blocks)]

    def _sync(self, _: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        self.shown[self.current].update(part.number for part in self.parts)
        return []

    def _replica(self, _: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        behind = len(self.parts) - len(self._visible())
        return [(f"server {self.current}", f"uuid {self.current}", 0, 0, behind, behind, 2)]

    def _finished(self, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        return [(len(self.finished & set(parameters["ids"])),)]


_NOTHING: list[tuple[Any, ...]] = []
_STATEMENTS: tuple[
    tuple[str, Callable[[SimulatedClickHouse, Mapping[str, Any]], list[tuple[Any, ...]]]], ...
] = (
    (r"^KILL QUERY WHERE query_id IN .* SYNC$", SimulatedClickHouse._kill),
    (r"^SELECT query_id FROM system\.processes WHERE query_id IN", SimulatedClickHouse._processes),
    (r"^SELECT _partition_id, count\(\) FROM `events` WHERE", SimulatedClickHouse._count_by_partition),
    (r"^SELECT toString\(`\w+`\), count\(\) FROM `events` GROUP BY", SimulatedClickHouse._count_by_batch),
    (r"^SELECT length\(dependencies_table\) FROM system\.tables", lambda *_: [(1,)]),
    (r"^SELECT toString\(uuid\), engine, engine_full", SimulatedClickHouse._describe),
    (r"^SELECT name, type, default_kind.* FROM system\.columns", lambda *_: _NOTHING),
    (r"^SELECT \(SELECT toString\(any\(uuid\)\) FROM system\.tables", SimulatedClickHouse._mark),
    (r"^SELECT database, name, engine, engine_full FROM system\.tables", SimulatedClickHouse._engines),
    (
        r"^SELECT displayName\(\), toString\(serverUUID\(\)\), is_readonly.* FROM system\.replicas",
        SimulatedClickHouse._replica,
    ),
    (r"^SELECT name, value FROM system\.settings", lambda *_: _NOTHING),
    (r"^SELECT count\(\) FROM system\.query_log WHERE type = 'QueryFinish'", SimulatedClickHouse._finished),
    (r"^SYSTEM FLUSH LOGS", lambda *_: _NOTHING),
    (r"^SYSTEM SYNC REPLICA `default`\.`events` LIGHTWEIGHT$", SimulatedClickHouse._sync),
    (r"^SELECT 1$", lambda *_: [(1,)]),
)


class _AllSettings:
    def __contains__(self, name: object) -> bool:
        return True


class Driver:
    """As much of the driver as the product's client uses."""

    server_settings = _AllSettings()
    server_version = "25.8.1.1"
    url = "http://simulated"

    def __init__(self, server: SimulatedClickHouse) -> None:
        self._server = server
        self.http = self
        """The pool of connections, of which the product may want to hear each answer."""

    def request(self, answer: Callable[[], Any], **_: Any) -> Any:
        name = f"server {self._server.current}"
        return SimpleNamespace(content=answer(), headers={"X-ClickHouse-Server-Display-Name": name})

    def query(self, sql: str, *, parameters: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
        rows = self.http.request(partial(self._server.answer, sql, parameters, settings)).content
        return SimpleNamespace(result_rows=rows)

    def command(self, sql: str, *, parameters: Mapping[str, Any], settings: Mapping[str, Any]) -> object:
        return self.http.request(partial(self._server.answer, sql, parameters, settings)).content

    def raw_insert(
        self, table: str, columns: list[str], body: Iterable[bytes], settings: Mapping[str, Any], *, fmt: str
    ) -> None:
        assert (table, fmt) == (f"`{TABLE}`", "ArrowStream")
        if self._server.fault == AWAY:
            self._server.answer("SELECT 1", {}, {})
        data = pa.ipc.open_stream(b"".join(body)).read_all()
        assert [f"`{name}`" for name in data.column_names] == columns
        # What the product has said about this request is asked again when a paused process goes on.
        said = copy_context()
        self.http.request(
            partial(self._server.insert, data, dict(settings), lambda: said.run(ask_whether_it_may_leave))
        )


def ask_whether_it_may_leave() -> None:
    """The product's guard of the connection, which stands below the driver that is played here."""
    if (sending := send_guard._sending.get()) is not None:
        sending.require_time()


def _blocks(data: pa.Table, token: str) -> tuple[Block, ...]:
    (batch_id,) = {str(one) for one in data.column(data.num_columns - 1).to_pylist()}
    rows = list(zip(data.column("id").to_pylist(), data.column("note").to_pylist(), strict=True))
    split = [[row for row in rows if int(row[0]) % PARTITIONS == number] for number in range(PARTITIONS)]
    return tuple(
        Block(partition=str(number), token=token, batch_id=batch_id, rows=tuple(found))
        for number, found in enumerate(split)
        if found
    )


def _refusal(code: int, name: str) -> driver.DatabaseError:
    return driver.DatabaseError(f"Code: {code}. DB::Exception: refused. ({name})", code=code, name=name)
