"""What an INSERT, UPDATE or DELETE says of the rows that it changes. Pure: nothing is run here.

Attributes with an underscore are read of statements, whose parts have no other interface, never of results or
connections.
"""

# ruff: noqa: SLF001 - see above
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BindParameter, BooleanClauseList, ClauseElement, Delete, Insert, Update
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BinaryExpression, Grouping
from sqlalchemy.sql.visitors import iterate

Parameters = Sequence[Mapping[str, Any]]

MISSING = object()


def changed_table(statement: Any) -> Any:
    """The table that an ORM or Core statement writes to; None where it writes nothing."""
    if not isinstance(statement, Insert | Update | Delete):
        return None
    # A bulk insert or update of a class of several tables is one statement a table.
    noted = statement._annotations
    return noted.get("_emit_insert_table", noted.get("_emit_update_table", statement.table))


def has_returning(statement: Any) -> bool:
    return bool(statement._returning)


def ask_for(statement: Any, columns: Sequence[Any]) -> Any:
    """The statement, which also returns these columns of the rows that it changes."""
    if isinstance(statement, Insert) and not statement._return_defaults:
        return statement.returning(*columns)
    # Columns that are merely asked for as defaults are left out where the statement sets them.
    return statement.return_defaults(*columns, supplemental_cols=columns)


def read_values(
    statement: Insert, columns: Sequence[Any], parameters: Parameters
) -> list[tuple[Any, ...]] | None:
    """What an insert says itself of these columns, row by row; None where the database has to be asked."""
    if statement._multi_values or statement.select is not None or statement._post_values_clause is not None:
        return None
    rows = [tuple(_read_value(statement, column, one) for column in columns) for one in parameters]
    return None if any(value is MISSING for row in rows for value in row) else rows


def names_keys(statement: Insert, columns: Sequence[Any], parameters: Parameters) -> bool:
    """Whether the result will have these columns as the keys of the new rows without being asked."""
    key = set(statement.table.primary_key)
    if not set(columns) <= key or has_returning(statement):
        return False
    if statement._multi_values or statement.select is not None or statement._post_values_clause is not None:
        return False
    return statement._return_defaults or (len(parameters) == 1 and not statement._inline)


def moves_on_conflict(statement: Insert, columns: Sequence[Any]) -> bool:
    """Whether the update of a row that is there already may give one of these columns another value."""
    if statement._post_values_clause is None:
        return False
    clauses = [one for one in iterate(statement._post_values_clause) if hasattr(one, "update_values_to_set")]
    return any(_moves(statement, clause, column) for clause in clauses for column in columns)


def _moves(statement: Insert, clause: Any, column: Any) -> bool:
    for name, value in dict(clause.update_values_to_set).items():
        if getattr(name, "key", name) not in {column.key, column.name}:
            continue
        # Rows that are equal in a column, which is how they were found, stay so when the new one's value is set.
        is_new = getattr(value, "key", None) == column.key and _is_excluded(value)
        return not (is_new and column.key in _conflict_target(statement, clause))
    return False


def _is_excluded(value: Any) -> bool:
    return getattr(getattr(value, "table", None), "name", None) == "excluded"


def _conflict_target(statement: Insert, clause: Any) -> set[str]:
    """The columns in which rows that are in conflict are equal."""
    table: Any = statement.table
    elements = clause.inferred_target_elements
    if elements is None:
        wanted = getattr(clause, "constraint_target", None)
        named = [one for one in (*table.constraints, *table.indexes) if one.name and one.name == wanted]
        elements = list(named[0].columns) if named else []
    names = {getattr(one, "name", one) for one in elements}
    return {column.key for column in table.columns if column.name in names}


def leaves_key(statement: Insert, columns: Sequence[Any]) -> bool:
    """Whether an insert of one row leaves these columns, its whole key, to the database, and returns what it chose."""
    if any(column.key in _values(statement) or column.default is not None for column in columns):
        return False
    return set(columns) == set(statement.table.primary_key) and names_keys(statement, columns, [{}])


def key_binds(statement: Update | Delete, columns: Sequence[Any]) -> tuple[str, ...] | None:
    """The parameters that hold these columns of the only row that is changed; None where they are found otherwise.

    That the parameters themselves do not set these columns is left to the caller.
    """
    if isinstance(statement, Update) and sets_any(statement, columns, [{}]):
        return None
    bound = _bound(statement)
    found = [bound.get(column) for column in columns]
    if any(bind is None or bind.callable is not None or not bind.required for bind in found):
        return None
    return tuple(bind.key for bind in found if bind is not None)


def fixed_keys(
    statement: Update | Delete, columns: Sequence[Any], parameters: Parameters
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]] | None:
    """What these columns of the changed rows hold before and after, for each set of parameters.

    None where the condition does not fix them, or they are set to what only the database knows.
    """
    before = _keys_in_where(statement, columns, parameters)
    if before is None or not isinstance(statement, Update) or not sets_any(statement, columns, parameters):
        return None if before is None else (before, before)
    after = _values_after(statement, columns, before, parameters)
    return None if after is None else (before, after)


def _keys_in_where(
    statement: Update | Delete, columns: Sequence[Any], parameters: Parameters
) -> list[tuple[Any, ...]] | None:
    bound = _bound(statement)
    if any(column not in bound for column in columns):
        return None
    rows = [tuple(_value_of(bound[column], one) for column in columns) for one in parameters]
    return None if any(value is MISSING for row in rows for value in row) else rows


def _bound(statement: Update | Delete) -> dict[Any, BindParameter[Any]]:
    """What columns have to be equal to."""
    conditions = _conditions(statement.whereclause)
    return {column: value for condition in conditions for column, value in _fixed(condition)}


def sets_any(statement: Update | Delete, columns: Sequence[Any], parameters: Parameters) -> bool:
    """Whether an update may give one of these columns another value."""
    if not isinstance(statement, Update):
        return False
    written = _written(statement, parameters)
    return any(column.key in written or column.onupdate is not None for column in columns)


def _values_after(
    statement: Update, columns: Sequence[Any], before: Sequence[tuple[Any, ...]], parameters: Parameters
) -> list[tuple[Any, ...]] | None:
    written = _written(statement, parameters)
    rows = [
        tuple(
            _new(statement, column, one) if column.key in written else old
            for column, old in zip(columns, olds, strict=True)
        )
        for olds, one in zip(before, parameters, strict=True)
    ]
    return None if any(value is MISSING for row in rows for value in row) else rows


def _values(statement: Any) -> dict[str, Any]:
    """By the key of the column; of classes by that of the column too where an attribute has another name."""
    # SQLAlchemy 2.0 keeps those of ordered_values() apart.
    listed = statement._values or dict(getattr(statement, "_ordered_values", None) or ())
    mapper = statement.table._annotations.get("parententity")
    found: dict[str, Any] = {}
    for name, value in listed.items():
        key = getattr(name, "key", name)
        if isinstance(name, str) and mapper is not None and name in mapper.mapper.columns:
            key = mapper.mapper.columns[name].key
        found[key] = value
    return found


def _written(statement: Update, parameters: Parameters) -> set[str]:
    return {*_values(statement), *(name for one in parameters[:1] for name in one)}


def _read_value(statement: Insert, column: Any, one: Mapping[str, Any]) -> Any:
    if column.key in one:
        return _plain(one[column.key])
    values = _values(statement)
    if column.key in values:
        return _plain(values[column.key])
    is_of_class = statement._propagate_attrs.get("compile_state_plugin") == "orm"
    if is_of_class or column.primary_key or column.default is not None or column.server_default is not None:
        return MISSING
    return None


def _new(statement: Update, column: Any, one: Mapping[str, Any]) -> Any:
    return (
        _plain(one[column.key]) if column.key in one else _plain(_values(statement).get(column.key, MISSING))
    )


def _plain(value: Any) -> Any:
    if isinstance(value, BindParameter):
        return MISSING if value.callable is not None or value.required else value.value
    return MISSING if isinstance(value, ClauseElement) or hasattr(value, "__clause_element__") else value


def _value_of(bind: BindParameter[Any], one: Mapping[str, Any]) -> Any:
    return one[bind.key] if bind.key in one else _plain(bind)


def _conditions(clause: Any) -> list[Any]:
    """Those that all have to hold."""
    if isinstance(clause, Grouping):
        return _conditions(clause.element)
    if isinstance(clause, BooleanClauseList) and clause.operator is operators.and_:
        return [condition for part in clause.clauses for condition in _conditions(part)]
    return [] if clause is None else [clause]


def _fixed(condition: Any) -> list[tuple[Any, BindParameter[Any]]]:
    if not isinstance(condition, BinaryExpression) or condition.operator is not operators.eq:
        return []
    for column, value in ((condition.left, condition.right), (condition.right, condition.left)):
        if isinstance(value, BindParameter) and not value.expanding and hasattr(column, "table"):
            return [(column, value)]
    return []
