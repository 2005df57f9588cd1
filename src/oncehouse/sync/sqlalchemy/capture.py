"""Where SQLAlchemy's changes are noticed: `Connection.execute`, through which every compiled statement goes.

Flushes, bulk calls, ORM statements, `secondary` tables, async sessions and Core all arrive there. What a statement does
not say of the rows that it changes it is made to return, and their keys are registered on the same connection, in the
same transaction. Statements on tables without a watch pay one look-up. Where the changed rows are not known exactly the
change is refused, never passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Delete, Engine, Insert, Update, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.orm import ORMExecuteState, Session

from oncehouse.errors import ConfigurationError
from oncehouse.sync.changes.change import OperationKind
from oncehouse.sync.changes.register import SqlAlchemyWriter
from oncehouse.sync.sqlalchemy import statements
from oncehouse.sync.sqlalchemy.changed_keys import (
    ChangedKeys,
    columns_of,
    keep_children,
    pick,
    read_columns,
    read_moved_keys,
    stay_among,
)
from oncehouse.sync.sqlalchemy.model_sync import ModelSync
from oncehouse.sync.sqlalchemy.single_statement import CombinedStatement, can_combine, find_combined
from oncehouse.sync.sqlalchemy.sources import format_source, is_same_database
from oncehouse.sync.sqlalchemy.watches import Watch, find_namesakes, find_watches
from oncehouse.sync.tables import ABSENT, ABSENT_STATES

OPTION = "oncehouse_sync"
"""An execution option: False where the program registers keys by itself."""

_PENDING = "oncehouse_sync_pending"
_RETURNED = "oncehouse_sync_returned"


@dataclass(kw_only=True)
class Capture:
    statement: Any
    """The user's, or one that also returns what has to be known."""
    collect: Callable[[Any], Iterable[ChangedKeys]]
    """After it ran: from its result to keys."""
    joint: CombinedStatement | None = None
    """How the operations become a part of the statement, where they can."""
    is_joined: bool = False
    """They did: nothing has to be collected."""


@dataclass(kw_only=True)
class _Returned:
    """An execution option: what a statement on this table returns for us is taken where the session ran it."""

    table: Any
    old: list[ChangedKeys] = field(default_factory=list)
    """Looked up when the statement runs, behind the session's flush and its own look at the statement's condition."""


def install() -> None:
    """Begin to notice changes. Once a process; done when the first sync is declared."""
    if not event.contains(Engine, "before_execute", _before):
        for target, name, listener, options in listeners():
            event.listen(target, name, listener, **options)


def listeners() -> list[tuple[Any, str, Callable[..., Any], dict[str, Any]]]:
    """What notices: whom it listens to, to which event, and how."""
    return [
        (Engine, "before_execute", _before, {"retval": True}),
        (Engine, "before_cursor_execute", _combine_statement, {"retval": True}),
        (Engine, "after_execute", _after, {}),
        (Engine, "handle_error", _explain_absent_tables, {}),
        (Engine, "commit", _forget_failed, {}),
        (Engine, "rollback", _forget_failed, {}),
        (Session, "do_orm_execute", _execute_returning, {}),
    ]


def register_keys(
    connection: Connection, sync: type[ModelSync], kind: OperationKind, keys: Iterable[Sequence[Any]]
) -> None:
    check_place(connection, sync, {})
    key_texts = sync.encode_keys(keys)
    if key_texts:
        sync.get_storage().register(SqlAlchemyWriter(connection), sync.declaration().name, kind, key_texts)


def check_place(connection: Connection, sync: type[ModelSync], options: Mapping[str, Any]) -> None:
    """Refuse a change whose operation would not commit with it, or would lie where the sync does not look."""
    name = sync.declaration().name
    if not is_same_database(connection.engine, sync.source_of_rows()):
        raise ConfigurationError(
            f"{name}: its rows changed in {format_source(connection.engine)}, and it reads "
            f"{format_source(sync.source_of_rows())}, where the change would not be found. Give it that engine as its "
            f"`source` (or the same URL); for changes that are not to be synced set the option {OPTION}=False"
        )
    given = {**connection.get_execution_options(), **options}
    level = given.get("isolation_level", connection.dialect._on_connect_isolation_level)  # noqa: SLF001
    if level == "AUTOCOMMIT":
        raise ConfigurationError(
            f"{name}: its rows were changed on a connection with AUTOCOMMIT, where change and operation cannot commit "
            "together. Change them in a transaction."
        )
    if given.get("schema_translate_map"):
        raise ConfigurationError(
            f"{name}: its rows were changed under a schema_translate_map. Rows of several schemas have the same keys "
            "and cannot be one ClickHouse table."
        )


def _before(
    connection: Connection, statement: Any, many: Any, one: Any, options: Mapping[str, Any]
) -> tuple[Any, Any, Any]:
    table = statements.changed_table(statement)
    if table is None or options.get(OPTION) is False:
        return statement, many, one
    watches = find_watches(table)
    if not watches:
        _refuse_unknown_table(connection, table)
        return statement, many, one
    returned: _Returned | None = options.get(_RETURNED)
    if returned is not None and returned.table == table:
        returned.old = read_moved_keys(connection, statement, table, watches, many or [one])
        return stay_among(statement, returned.old, connection.dialect), many, one
    for watch in watches:
        check_place(connection, watch.sync, options)
    parameters = many or [one]
    capture = _plan_joint(connection, statement, table, watches, parameters)
    capture = capture or _plan(connection, statement, table, watches, parameters)
    # A stack: a default of a column may run statements of its own in between.
    connection.info.setdefault(_PENDING, []).append(capture)
    return capture.statement, many, one


def _combine_statement(
    connection: Connection, _cursor: Any, statement: str, parameters: Any, context: Any, _many: bool
) -> tuple[str, Any]:
    pending: list[Capture] | None = connection.info.get(_PENDING)
    capture = pending[-1] if pending else None
    # A default of a column may be asked for by a statement of its own in between.
    if capture is None or capture.joint is None or context.invoked_statement is not capture.statement:
        return statement, parameters
    prepared = capture.joint.join(statement, parameters)
    capture.is_joined = prepared is not None
    return prepared or (statement, parameters)


def _explain_absent_tables(context: ExceptionContext) -> None:
    error = context.original_exception
    state = getattr(error, "sqlstate", getattr(error, "pgcode", None))
    if state in ABSENT_STATES and "oncehouse_sync" in str(error):
        raise ConfigurationError(f"Model sync has no tables in this database. {ABSENT}") from error


def _after(
    connection: Connection, statement: Any, _many: Any, _one: Any, _options: Mapping[str, Any], result: Any
) -> None:
    pending: list[Capture] | None = connection.info.get(_PENDING)
    if not pending:
        return
    if pending[-1].is_joined and pending[-1].statement is statement:
        pending.pop()
        return
    if not any(capture.statement is statement for capture in pending):
        return
    # What stands above it failed.
    while (capture := pending.pop()).statement is not statement:
        pass
    if not capture.is_joined:
        _register(connection, capture.collect(result))


def _forget_failed(connection: Connection) -> None:
    """No statement is under way at the end of a transaction: what is left failed."""
    # One that the server has ended took what was kept along.
    if not connection.invalidated and not connection.closed:
        connection.info.pop(_PENDING, None)


def _plan_joint(
    connection: Connection,
    statement: Any,
    table: Any,
    watches: Sequence[Watch],
    parameters: statements.Parameters,
) -> Capture | None:
    """For the flush of one row: all that can be known of its statement is known from the last time."""
    if len(watches) != 1 or len(parameters) != 1 or not can_combine(connection, watches[0]):
        return None
    joint = find_combined(connection, statement, watches[0], parameters[0])
    if joint is None:
        return None

    def collect(result: Any) -> Iterable[ChangedKeys]:
        return _plan(connection, statement, table, watches, parameters).collect(result)

    return Capture(statement=statement, collect=collect, joint=joint)


def _plan(
    connection: Connection,
    statement: Any,
    table: Any,
    watches: Sequence[Watch],
    parameters: statements.Parameters,
) -> Capture:
    if isinstance(statement, Insert):
        return _plan_insert(statement, watches, parameters)
    planned = _plan_by_key(connection, statement, table, watches, parameters)
    return planned or _plan_returning(connection, statement, table, watches, parameters)


def _plan_insert(statement: Insert, watches: Sequence[Watch], parameters: statements.Parameters) -> Capture:
    _refuse_moves_on_conflict(statement, watches)
    changed_keys: list[ChangedKeys] = []
    by_key: list[Watch] = []
    returned: list[Watch] = []
    for watch in watches:
        given = statements.read_values(statement, watch.columns, parameters)
        if given is not None:
            changed_keys.append(ChangedKeys(watch=watch, kind=OperationKind.INSERT, keys=given))
        elif statements.names_keys(statement, watch.columns, parameters):
            by_key.append(watch)
        else:
            returned.append(watch)
    if returned:
        _refuse_returning(statement, returned)
        statement = statements.ask_for(statement, columns_of(returned))

    def collect(result: Any) -> Iterable[ChangedKeys]:
        yield from changed_keys
        for watch in by_key:
            rows = [row._mapping for row in result.inserted_primary_key_rows]  # noqa: SLF001 - public in spite of it
            yield ChangedKeys(watch=watch, kind=OperationKind.INSERT, keys=pick(rows, watch, by_name=True))
        rows = _take_returned(result) if returned else []
        for watch in returned:
            yield ChangedKeys(watch=watch, kind=OperationKind.INSERT, keys=pick(rows, watch))

    return Capture(statement=statement, collect=collect)


def _plan_by_key(
    connection: Connection,
    statement: Update | Delete,
    table: Any,
    watches: Sequence[Watch],
    parameters: statements.Parameters,
) -> Capture | None:
    """Where the statement's condition says which rows it changes, as in every flush. None where it does not."""
    kind = _kind_of(statement)
    changed_keys: list[ChangedKeys] = []
    found_by_query: list[Watch] = []
    for watch in watches:
        change = statements.fixed_keys(statement, watch.columns, parameters)
        if change is None:
            found_by_query.append(watch)
            continue
        before, after = change
        if before != after:
            changed_keys.append(ChangedKeys(watch=watch, kind=OperationKind.DELETE, keys=before))
        changed_keys.append(ChangedKeys(watch=watch, kind=kind, keys=after))
    key = tuple(table.primary_key)
    rows = statements.fixed_keys(statement, key, parameters) if found_by_query and key else ([], [])
    if rows is None or (found_by_query and not key):
        return None
    old = [
        ChangedKeys(
            watch=watch,
            kind=kind,
            keys=read_columns(connection, key, rows[0], columns=watch.columns, lock=True),
        )
        for watch in found_by_query
        if kind is OperationKind.DELETE or statements.sets_any(statement, watch.columns, parameters)
    ]
    if any(len(one.keys) < len(rows[0]) for one in old):
        # A row that is not there was not locked and may come until the statement runs.
        statement = stay_among(statement, old, connection.dialect)

    def collect(_result: Any) -> Iterable[ChangedKeys]:
        yield from (*changed_keys, *old)
        for watch in found_by_query if kind is OperationKind.UPDATE else ():
            yield ChangedKeys(
                watch=watch, kind=kind, keys=read_columns(connection, key, rows[1], columns=watch.columns)
            )

    return Capture(statement=statement, collect=collect)


def _plan_returning(
    connection: Connection,
    statement: Update | Delete,
    table: Any,
    watches: Sequence[Watch],
    parameters: statements.Parameters,
) -> Capture:
    if len(parameters) > 1:
        raise ConfigurationError(
            f"{watches[0].sync.declaration().name}: {table.name} was changed by a statement with several sets of "
            "parameters whose condition does not name the whole key, so which rows it changed is unknown. Run "
            f"it once for each set, or register the keys yourself under the option {OPTION}=False"
        )
    _refuse_returning(statement, watches)
    old = read_moved_keys(connection, statement, table, watches, parameters)
    held = stay_among(statement, old, connection.dialect)
    asking = statements.ask_for(held, columns_of(watches))

    def collect(result: Any) -> Iterable[ChangedKeys]:
        rows = _take_returned(result)
        if result.rowcount > len(rows):
            raise ConfigurationError(
                f"{watches[0].sync.declaration().name}: {table.name} does not return the rows that an UPDATE or DELETE "
                "changes (implicit_returning is off), so they are unknown"
            )
        return _register_returned(statement, watches, old, rows)

    return Capture(statement=asking, collect=collect)


def _register_returned(
    statement: Any, watches: Sequence[Watch], old: Sequence[ChangedKeys], rows: Sequence[Mapping[Any, Any]]
) -> Iterable[ChangedKeys]:
    yield from old
    for watch in watches:
        yield ChangedKeys(watch=watch, kind=_kind_of(statement), keys=pick(rows, watch))


def _execute_returning(state: ORMExecuteState) -> Any:
    """An ORM statement with a RETURNING of its own returns our columns behind those, and they are taken off again."""
    statement: Any = state.statement
    table = statements.changed_table(statement)
    if table is None or not statements.has_returning(statement) or not (watches := find_watches(table)):
        return None
    if state.execution_options.get(OPTION) is False:
        return None
    parameters = [dict(one) for one in _listed(state.parameters)]
    if isinstance(statement, Insert):
        _refuse_moves_on_conflict(statement, watches)
    elif all(statements.fixed_keys(statement, watch.columns, parameters) is not None for watch in watches):
        return None  # nothing has to be returned for us
    connection = state.session.connection(bind_arguments=dict(state.bind_arguments))
    for watch in watches:
        check_place(connection, watch.sync, state.execution_options)
    columns, returned = columns_of(watches), _Returned(table=table)
    result = state.invoke_statement(
        statement=statement.returning(*columns), execution_options={_RETURNED: returned}
    ).freeze()
    rows = result().all()
    own = len(rows[0]) - len(columns) if rows else 0
    found = [dict(zip(columns, row[own:], strict=True)) for row in rows]
    _register(connection, _register_returned(statement, watches, returned.old, found))
    return result().columns(*range(own)) if rows else result()


def _listed(parameters: Any) -> Sequence[Mapping[str, Any]]:
    if parameters is None:
        return [{}]
    return [parameters] if isinstance(parameters, Mapping) else parameters


def _refuse_returning(statement: Any, watches: Sequence[Watch]) -> None:
    if statements.has_returning(statement):
        raise ConfigurationError(
            f"{watches[0].sync.declaration().name}: a statement with RETURNING was run on a Connection. Run it by "
            f"Session.execute, or register the keys yourself under the option {OPTION}=False"
        )


def _refuse_unknown_table(connection: Connection, table: Any) -> None:
    """Another object for a table that is watched: reflected once more, or made for a migration."""
    for watch in find_namesakes(table):
        if is_same_database(connection.engine, watch.sync.source_of_rows()):
            raise ConfigurationError(
                f"{watch.sync.declaration().name}: rows of {table.fullname} were changed through another Table than "
                "that of the mapped class, so the changed rows are unknown. Use the class or its `__table__`, or "
                f"register the keys yourself under the option {OPTION}=False"
            )


def _refuse_moves_on_conflict(statement: Insert, watches: Sequence[Watch]) -> None:
    for watch in watches:
        if statements.moves_on_conflict(statement, watch.columns):
            names = ", ".join(column.name for column in watch.columns)
            raise ConfigurationError(
                f"{watch.sync.declaration().name}: an INSERT … ON CONFLICT DO UPDATE sets {names} of a row that may be "
                "there already, and which key it had before is unknown. Leave it out of `set_` and change it by "
                f"an UPDATE, or register both keys yourself under the option {OPTION}=False"
            )


def _register(connection: Connection, changed_keys: Iterable[ChangedKeys]) -> None:
    for one in changed_keys:
        sync, keys, kind = one.watch.sync, one.keys, one.kind
        if one.watch.child_key:
            keys, kind = keep_children(connection, one), OperationKind.UPDATE
        elif not one.watch.is_own:
            kind = OperationKind.UPDATE
        key_texts = sync.encode_keys(keys)
        if key_texts:
            writer = SqlAlchemyWriter(connection)
            sync.get_storage().register(writer, sync.declaration().name, kind, key_texts)


def _take_returned(result: Any) -> list[Mapping[Any, Any]]:
    """The rows that capture asked for, and the program did not: to the program it is a statement without rows."""
    given = result.returned_defaults_rows
    rows = (result.all() if result.returns_rows else []) if given is None else given
    result.close()
    return [row._mapping for row in rows]  # noqa: SLF001 - public in spite of its name


def _kind_of(statement: Any) -> OperationKind:
    if isinstance(statement, Insert):
        return OperationKind.INSERT
    return OperationKind.DELETE if isinstance(statement, Delete) else OperationKind.UPDATE
