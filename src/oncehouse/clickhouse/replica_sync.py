"""Reads that decide something, of tables that have replicas: made where all is there that was written, or not at all.

A replica that lags shows fewer rows than were written, and behind one address a balancer may choose another replica for
each statement. `read_in_step`, `read_each_in_step` and `write_in_step` bring a replica in step first (`SYSTEM SYNC
REPLICA … LIGHTWEIGHT`) and take an answer only of a server on which that was done since the decision began. What cannot
be proven is a TransientError, never an answer. Tables without replicas cost nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NoReturn, TypeVar

from oncehouse.clickhouse.client import failure_of
from oncehouse.clickhouse.error_codes import ErrorCode
from oncehouse.clickhouse.identifiers import quote
from oncehouse.clickhouse.server_names import HEADER, NO_NAME, collect_server_names
from oncehouse.clickhouse.table_engines import KNOWN_SECONDS, TableEngine, forget_engines, read_engines
from oncehouse.column_types.types import quote_text
from oncehouse.errors import OncehouseError, TransientError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from oncehouse.clickhouse.client import Client

_Answer = TypeVar("_Answer")

_quorums: dict[object, tuple[float, bool]] = {}
_uuids: dict[tuple[object, str], str] = {}
"""Of servers by their names, as they were last seen."""

WAIT_SECONDS = 30.0
"""How long a replica may take to get in step before that is an error, which is tried again later."""
TRIES = 4
"""How often the servers may change between two statements. Each try syncs one time more, so that a balancer which
takes its servers in turns is followed, up to as many servers."""
_NO_TABLE = {ErrorCode.UNKNOWN_TABLE, ErrorCode.UNKNOWN_DATABASE}
_NOT_IN_STEP = "oncehouse: this server was not brought in step"


@dataclass(frozen=True, kw_only=True)
class ReplicaState:
    """What a server says of its own replica of a table."""

    server: str
    uuid: str
    is_readonly: bool
    is_session_expired: bool
    delay_seconds: int
    queue: int
    total: int


def read_in_step(client: Client, tables: Iterable[str], read: Callable[[Client], _Answer]) -> _Answer:
    """What `read` answers; every statement in it was answered by servers that had all rows of the tables.

    `read` is given the client to use, and may be called several times.
    """
    return next(read_each_in_step(client, tables, [read]))


def read_each_in_step(
    client: Client, tables: Iterable[str], reads: Iterable[Callable[[Client], _Answer]]
) -> Iterator[_Answer]:
    """The answers of all reads of one decision, one at a time.

    What was written before the first is there for the last: a server is synced once, and only a read that another
    server answered is repeated.
    """
    requirement = _find_requirement(client, tables)
    in_step: set[str] = set()
    for read in reads:
        yield _read_proven(requirement, in_step, read) if requirement.tables else read(requirement.client)


def _read_proven(requirement: _Requirement, in_step: set[str], read: Callable[[Client], _Answer]) -> _Answer:
    """`in_step` gets the servers that are synced for it."""
    # Servers that an earlier read of the decision needed come first: most often no more are.
    for synced in chain([in_step] if in_step else [], _sync_in_turns(requirement)):
        in_step |= synced
        with collect_server_names() as answered:
            answer = read(requirement.client)
        if answered <= in_step or requirement.is_shared:
            return answer
    raise _make_change_error(requirement)


def write_in_step(client: Client, tables: Iterable[str], write: Callable[[Client, str], _Answer]) -> _Answer:
    """For a statement that writes what it reads from the tables.

    `write` gets a condition that belongs into the statement's WHERE, empty where there is nothing to demand. With it
    the statement fails, before its first row, on a server that was not brought in step; then `write` is called again.
    """
    requirement = _find_requirement(client, tables)
    if not requirement.tables:
        return write(requirement.client, "")
    for in_step in _sync_in_turns(requirement):
        try:
            return write(requirement.client, "" if requirement.is_shared else _answered_by(in_step))
        except OncehouseError as error:
            if failure_of(
                error
            ).code != ErrorCode.FUNCTION_THROW_IF_VALUE_IS_NON_ZERO or _NOT_IN_STEP not in str(error):
                raise
    raise _make_change_error(requirement)


@dataclass(frozen=True, kw_only=True)
class _Requirement:
    client: Client
    """With the settings that a read needs."""
    tables: tuple[TableEngine, ...]
    """Those that have to be in step."""

    @property
    def is_shared(self) -> bool:
        """Each read is in step by its own setting, whichever server answers."""
        return all(table.is_shared for table in self.tables)


def _find_requirement(client: Client, tables: Iterable[str]) -> _Requirement:
    engines = read_engines(client, tables)
    replicated = [engine for engine in engines if engine.has_replicas]
    spread = [engine for engine in engines if engine.is_distributed and is_over_replicas(client, engine)]
    if not replicated and not spread:
        return _Requirement(client=client, tables=())
    sequential = _knows_sequential_quorum(client)
    if spread and not sequential:
        _refuse(
            spread[0].name,
            f"it is Distributed over the cluster {spread[0].cluster!r}, whose shards have several replicas, and which "
            "of them answers cannot be known",
            "Name the table behind it, or write with insert_quorum and insert_quorum_parallel = 0",
        )
    if sequential or any(engine.is_shared for engine in replicated):
        # Without a quorum, or with inserts side by side in one, a Replicated table would show too few rows by it.
        client = client.with_settings({"select_sequential_consistency": 1})
    return _Requirement(client=client, tables=tuple(one for one in replicated if _may_lag(client, one)))


def _sync_in_turns(requirement: _Requirement) -> Iterator[set[str]]:
    """After each try, which syncs one time more: the servers that have all that was written before the first."""
    deadline = time.monotonic() + WAIT_SECONDS
    synced: dict[str, set[str]] = {table.name: set() for table in requirement.tables}
    for tries in range(TRIES):
        for _ in range(tries + 1):
            for table in requirement.tables:
                synced[table.name] |= _sync(requirement.client, table, deadline)
        if in_step := set.intersection(*synced.values()):
            yield in_step


def _sync(client: Client, table: TableEngine, deadline: float) -> set[str]:
    """The server that did it. A request that the driver repeated may have reached two."""
    left = max(1, int(deadline - time.monotonic()))
    try:
        with collect_server_names() as names:
            client.command(
                f"SYSTEM SYNC REPLICA {table.quoted} LIGHTWEIGHT", settings={"receive_timeout": left}
            )
    except OncehouseError as error:
        _refuse_unsynced(client, table, error)
    if NO_NAME in names and not table.is_shared:
        _refuse(
            table.name,
            f"{client.address} answers without the header {HEADER}, so that its servers cannot be distinguished",
            "Let the proxy before ClickHouse pass that header, or name a server itself in the url",
        )
    return names if len(names) == 1 else set()


def _refuse_unsynced(client: Client, table: TableEngine, error: OncehouseError) -> NoReturn:
    code = failure_of(error).code
    why = str(error).partition("\n")[0]
    if code in _NO_TABLE:
        raise error
    if code in {ErrorCode.ACCESS_DENIED, ErrorCode.READONLY}:
        grant = f"GRANT SYSTEM SYNC REPLICA ON {table.quoted} TO {quote(client.config.user)}"
        profile = ", and give the user a profile with readonly = 0" if code == ErrorCode.READONLY else ""
        _refuse(table.name, "the user may not wait for the replica", f"Run: {grant}{profile}")
    state = read_state(client, table)
    if state is None:
        forget_engines()
        _refuse(table.name, why, "Look at the replica")
    if state.is_readonly or state.is_session_expired:
        lost = "is_readonly" if state.is_readonly else "is_session_expired"
        _refuse(
            table.name,
            f"the replica on {state.server} has lost its Keeper ({lost} = 1)",
            "Bring Keeper back, or name another replica in the url",
        )
    _refuse(
        table.name,
        f"the replica on {state.server} is {state.delay_seconds} s behind, with {state.queue} entries in its queue, "
        f"and did not get in step ({why})",
        "Look at system.replication_queue there, or name another replica in the url",
    )


def _make_change_error(requirement: _Requirement) -> TransientError:
    names = ", ".join(table.name for table in requirement.tables)
    return _unproven(
        names,
        f"{requirement.client.address} changed the server between the statements of one decision, {TRIES} times",
        "Name one replica in the url, or let the balancer keep a client at one server",
    )


def _refuse(table: str, why: str, advice: str) -> NoReturn:
    # Without its cause: that would make a missing right a failure that no retry mends.
    raise _unproven(table, why, advice) from None


def _unproven(table: str, why: str, advice: str) -> TransientError:
    return TransientError(
        f"{table}: it cannot be proven that the replica which answers has all rows, so nothing was decided: {why}. "
        f"{advice}; it is tried again."
    )


def _answered_by(names: set[str]) -> str:
    """True on these servers; fails on others, whatever rows there are."""
    among = ", ".join(quote_text(name) for name in sorted(names))
    return f"(SELECT throwIf(displayName() NOT IN ({among}), {quote_text(_NOT_IN_STEP)})) = 0"


def read_state(client: Client, table: TableEngine) -> ReplicaState | None:
    """None where the server has no such replica, or the user may not look."""
    try:
        rows = client.query(
            "SELECT displayName(), toString(serverUUID()), is_readonly, is_session_expired, absolute_delay, "
            "queue_size, total_replicas FROM system.replicas "
            "WHERE database = {database:String} AND table = {table:String}",
            {"database": table.database, "table": table.table},
        )
    except OncehouseError:
        return None
    if not rows:
        return None
    server, uuid, is_readonly, is_session_expired, delay, queue, total = rows[0]
    return ReplicaState(
        server=str(server),
        uuid=str(uuid),
        is_readonly=bool(is_readonly),
        is_session_expired=bool(is_session_expired),
        delay_seconds=int(delay),
        queue=int(queue),
        total=int(total),
    )


def has_sequential_quorum(client: Client) -> bool:
    """Inserts are confirmed by a quorum, one after another: what `select_sequential_consistency` goes by."""
    rows: Sequence[tuple[object, ...]] = client.query(
        "SELECT name, value FROM system.settings WHERE name IN ('insert_quorum', 'insert_quorum_parallel')"
    )
    values = {str(name): str(value) for name, value in rows}
    quorum = values.get("insert_quorum", "0")
    return quorum not in {"", "0", "1"} and values.get("insert_quorum_parallel", "1") == "0"


def _knows_sequential_quorum(client: Client) -> bool:
    """Kept as long as the engines of tables are."""
    until, known = _quorums.get(client.config, (0.0, False))
    if time.monotonic() >= until:
        known = has_sequential_quorum(client)
        _quorums[client.config] = (time.monotonic() + KNOWN_SECONDS, known)
    return known


def _may_lag(client: Client, table: TableEngine) -> bool:
    """A table with one replica has all rows there. Where that cannot be asked, it may have several."""
    state = None if table.is_shared else read_state(client, table)
    if state is None:
        return True
    if _uuids.setdefault((client.config, state.server), state.uuid) != state.uuid:
        _uuids[client.config, state.server] = state.uuid  # a server that was installed again is refused once
        _refuse(
            table.name,
            f"several servers answer under the name {state.server!r}, so that they cannot be distinguished",
            "Give each server a display_name of its own in its configuration",
        )
    return state.total != 1


def is_over_replicas(client: Client, table: TableEngine) -> bool:
    """Whether a shard of a Distributed table has several; so where the cluster is not known."""
    rows = client.query(
        "SELECT max(replica_num) FROM system.clusters WHERE cluster = {cluster:String}",
        {"cluster": table.cluster},
    )
    return not rows or int(rows[0][0]) != 1
