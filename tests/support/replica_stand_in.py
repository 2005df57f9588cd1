"""A stand-in for a replicated table: two plain ClickHouse servers behind one address, as a balancer would show them.

The servers of the dev stack have no ReplicatedMergeTree. Imitated is what a client can see of one:

- Every table of the MergeTree family says that it is Replicated…, in `system.tables` and `system.replicas`.
- An INSERT is taken by replica-1 and reaches replica-2 after `lag_seconds`, or at `release()`. Tokens are those of
  replica-1, as Keeper would share them. An INSERT … SELECT reads from the server that the balancer chose.
- Every other statement is answered by the servers of `route`, in turns; `X-ClickHouse-Server-Display-Name` and
  `displayName()` say which one it was.
- SYSTEM SYNC REPLICA waits until the server that it reached has what was written before, or for `receive_timeout`. A
  replica without its Keeper (`lose_keeper`) refuses it.
- With `has_quorum`, a SELECT with `select_sequential_consistency` is refused by a server that lags.

Not imitated: inserts taken by replica-2 (so sessions are those of replica-1), quorums that are waited for, merges that
differ, parts that arrive in another order, `ON CLUSTER`. DDL reaches both servers, what needs no data at once; KILL
QUERY reaches replica-1.
"""

from __future__ import annotations

import http.client
import itertools
import math
import threading
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, assert_never

from oncehouse.clickhouse.error_codes import ErrorCode
from oncehouse.devstack.server_base import LOCALHOST
from replica_http import (
    TIMEOUT_SECONDS,
    HttpAnswer,
    HttpRequest,
    ReplicaServer,
    ask,
    refuse,
)
from replica_sql import (
    InsertSelect,
    Statement,
    imitate,
    read_statement,
    split_insert_select,
)

UNTIL_RELEASED = math.inf
_AT_THE_FIRST = {Statement.INSERT, Statement.CREATE, Statement.CHANGE, Statement.KILL}


class ReplicaStandIn:
    """Listens on a free port from `with` on.

    >>> with ReplicaStandIn(ports=(8123, 8124)) as replicas:
    ...     replicas.lag_seconds = UNTIL_RELEASED
    ...     replicas.route(1)
    """

    def __init__(self, *, ports: tuple[int, int]) -> None:
        self._ports = ports
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._waiting: list[tuple[float, HttpRequest]] = []
        self._written = self._applied = 0
        self._turns = {kind: itertools.cycle([0]) for kind in Statement}
        self._without_keeper: set[int] = set()
        self._ended = False
        self.lag_seconds = 0.0
        self.has_quorum = False
        self.names_servers = True
        self.statements: Counter[tuple[Statement, int]] = Counter()
        """How many of each kind each server has answered."""
        self.failures: list[str] = []
        """What replica-2 could not repeat: then the stand-in itself is at fault."""
        self._http = ReplicaServer((LOCALHOST, 0))
        self._http.answer = self._reply

    @property
    def port(self) -> int:
        return self._http.server_address[1]

    @property
    def url(self) -> str:
        return f"http://{LOCALHOST}:{self.port}"

    @property
    def delayed(self) -> int:
        """Writes that replica-2 does not have yet."""
        with self._changed:
            return self._written - self._applied

    def route(self, *servers: int, **others: Sequence[int]) -> None:
        """Which of the servers 0 and 1 answer from now on, in turns; other ones for some kinds of statements.

        >>> replicas.route(0, insert_select=(1,), sync=(0, 1))
        """
        turns = itertools.cycle(servers)
        with self._changed:
            self._turns = dict.fromkeys(Statement, turns)
            for kind, own in others.items():
                self._turns[Statement[kind.upper()]] = itertools.cycle(own)

    def release(self) -> None:
        """Let replica-2 have all that it lacks, and wait for that; what comes later is delayed as before."""
        with self._changed:
            self._waiting = [(0.0, request) for _, request in self._waiting]
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._applied == self._written, timeout=TIMEOUT_SECONDS)

    def lose_keeper(self, server: int, *, lost: bool = True) -> None:
        (self._without_keeper.add if lost else self._without_keeper.discard)(server)

    def __enter__(self) -> Self:
        for target in (self._http.serve_forever, self._apply):
            threading.Thread(target=target, name="oncehouse-replicas", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._http.shutdown()
        self._http.server_close()

    # What a request becomes

    def _reply(self, request: HttpRequest) -> tuple[HttpAnswer, str]:
        answer, server = self.answer(request)
        return answer, self.name_of(server) if self.names_servers else ""

    def answer(self, request: HttpRequest) -> tuple[HttpAnswer, int]:
        """The answer, and which server gave it."""
        kind = read_statement(request.sql)
        server = 0
        if kind not in _AT_THE_FIRST:
            with self._changed:
                server = next(self._turns[kind])
        self.statements[kind, server] += 1
        return self._perform(kind, request, server), server

    def _perform(self, kind: Statement, request: HttpRequest, server: int) -> HttpAnswer:
        match kind:
            case Statement.READ:
                answer = self._read(request, server)
            case Statement.SYNC:
                answer = self._sync(request, server)
            case Statement.INSERT:
                answer = self._write(request)
            case Statement.INSERT_SELECT:
                answer = self._insert_select(request, split_insert_select(request.sql), server)
            case Statement.CREATE:
                answer = self._create(request.rewritten(imitate(request.sql, self._facts(server))))
            case Statement.CHANGE:
                answer = self._write(request.rewritten(imitate(request.sql, self._facts(server))))
            case Statement.KILL:
                answer = self._ask(request, 0)
            case _:
                assert_never(kind)
        return answer

    def _read(self, request: HttpRequest, server: int) -> HttpAnswer:
        sequential = request.parameters.get("select_sequential_consistency") == "1"
        if sequential and self.has_quorum and server and self.delayed:
            return refuse(
                ErrorCode.REPLICA_IS_NOT_IN_QUORUM,
                "Replica doesn't have part which was successfully written to quorum",
            )
        if "session_id" in request.parameters:
            server = 0  # where the INSERT that needs the session goes
        if not request.sql.strip():
            return self._ask(request, server)
        return self._ask(request.rewritten(imitate(request.sql, self._facts(server))), server)

    def _insert_select(self, request: HttpRequest, parts: InsertSelect, server: int) -> HttpAnswer:
        """The rows are those of the server that was reached, and are then written as any others."""
        select = imitate(parts.select, self._facts(server))
        rows = self._ask(request.rewritten(f"{select}\nFORMAT TabSeparated").unnamed(), server)
        if not rows.is_success:
            return rows
        return self._write(request.with_rows(f"{parts.insert} FORMAT TabSeparated", rows.body))

    def _write(self, request: HttpRequest) -> HttpAnswer:
        with self._writing:
            answer = self._ask(request, 0)
            if answer.is_success:
                with self._changed:
                    self._written += 1
                    self._waiting.append((time.monotonic() + self.lag_seconds, request.unnamed()))
                    self._changed.notify_all()
        return answer

    def _create(self, request: HttpRequest) -> HttpAnswer:
        """Nothing that is under way has to be there before; a table is empty on both."""
        with self._writing:
            answer = self._ask(request, 0)
            return self._ask(request, 1) if answer.is_success else answer

    def _sync(self, request: HttpRequest, server: int) -> HttpAnswer:
        if server in self._without_keeper:
            return refuse(ErrorCode.TABLE_IS_READ_ONLY, "Table is in readonly mode")
        seconds = float(request.parameters.get("receive_timeout", "300"))
        with self._changed:
            upto = self._written
            if server and not self._changed.wait_for(lambda: self._applied >= upto, timeout=seconds):
                return refuse(
                    ErrorCode.TIMEOUT_EXCEEDED,
                    "SYNC REPLICA: command timed out. See the 'receive_timeout' setting",
                )
        return HttpAnswer(status=http.HTTPStatus.OK, headers=(), body=b"")

    def _apply(self) -> None:
        """Bring replica-2 what is due, in order."""
        while True:
            with self._changed:
                while not self._ended and not (self._waiting and self._waiting[0][0] <= time.monotonic()):
                    self._changed.wait(timeout=self._pause())
                if self._ended:
                    return
                request = self._waiting[0][1]
            answer = self._ask(request, 1)
            with self._changed:
                self._waiting.pop(0)
                self._applied += 1
                if not answer.is_success:
                    self.failures.append(answer.body.decode(errors="replace"))
                self._changed.notify_all()

    def _pause(self) -> float | None:
        if not self._waiting or math.isinf(self._waiting[0][0]):
            return None
        return max(0.001, self._waiting[0][0] - time.monotonic())

    def _ask(self, request: HttpRequest, server: int) -> HttpAnswer:
        return ask(request, self._ports[server])

    def _facts(self, server: int) -> dict[str, Any]:
        lags = server == 1 and self.delayed
        return {
            "name": self.name_of(server),
            "is_readonly": int(server in self._without_keeper),
            "delay_seconds": 60 if lags else 0,
            "queue": self.delayed if lags else 0,
            "written": self._written,
            "quorum": self.has_quorum,
        }

    def name_of(self, server: int) -> str:
        return f"replica-{server + 1}"
