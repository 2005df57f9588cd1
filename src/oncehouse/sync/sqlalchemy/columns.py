"""The columns of a sync of a mapped class: derived from the mapping, overridden by the class, and how each is read.

A column is read as an attribute of the class, as an SQL expression of the user's, or, for a relationship over a
`secondary` table, by a query of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, String, Table, inspect, type_coerce, types
from sqlalchemy.orm import Mapper, RelationshipProperty

from oncehouse.errors import ConfigurationError
from oncehouse.sync.model.read_columns import ReadColumn
from oncehouse.sync.sqlalchemy.column_types import choose_conversion, choose_type
from oncehouse.sync.sqlalchemy.keys import choose_form


@dataclass(frozen=True)
class Column:
    """A column of the user's own: its ClickHouse type, and where its values come from."""

    type: str | None = None
    """Derived from the mapping where it is not given."""
    source: Any = None
    """The name of an attribute, or an SQL expression; the column's own name where it is not given."""
    default: Any = None
    """In place of a null."""


@dataclass(frozen=True, kw_only=True)
class Many:
    """A relationship over a secondary table: what a row of ours is linked to."""

    name: str
    table: Table
    ours: tuple[Any, ...]
    """Columns of the table that hold our key, in its order."""
    theirs: Any
    their_attribute: str

    def keys_of(self, obj: Any) -> list[Any]:
        return sorted(getattr(one, self.their_attribute) for one in getattr(obj, self.name))


def find_mapper(model: Any) -> Mapper[Any]:
    mapper = inspect(model, raiseerr=False)
    if not isinstance(mapper, Mapper):
        raise ConfigurationError(
            f"{model!r} is not a mapped class; `model` names a class that SQLAlchemy maps"
        )
    if not isinstance(mapper.local_table, Table):
        raise ConfigurationError(
            f"{mapper.class_.__name__} is mapped to a {type(mapper.local_table).__name__} and not to a table: whose "
            "rows changed is unknown. Sync the classes of its tables."
        )
    return mapper


def key_names(mapper: Mapper[Any]) -> tuple[str, ...]:
    """The attributes of the key, in its order."""
    return tuple(mapper.get_property_by_column(column).key for column in mapper.primary_key)


def key_forms(mapper: Mapper[Any]) -> tuple[Callable[[Any], Any], ...]:
    return tuple(
        choose_form(f"{mapper.class_.__name__}.{name}", column.type)
        for name, column in zip(key_names(mapper), mapper.primary_key, strict=True)
    )


def read_columns(model: Any, overrides: Mapping[str, Any]) -> tuple[ReadColumn, ...]:
    """Derived columns in the order of the mapping, changed by the overrides; new ones behind them."""
    mapper = find_mapper(model)
    forms = dict(zip(key_names(mapper), key_forms(mapper), strict=True))
    derived = [prop.key for prop in mapper.column_attrs if _is_plain(prop)]
    columns: list[ReadColumn] = []
    for name in derived:
        given = overrides.get(name, Column())
        if given is not None:
            made = _read_column(mapper, name, given)
            columns.append(replace(made, convert=forms.get(name, made.convert)))
    columns += [
        _read_column(mapper, name, given)
        for name, given in overrides.items()
        if name not in derived and given is not None
    ]
    return tuple(columns)


def _is_plain(prop: Any) -> bool:
    """A column of a table; an expression that is mapped is read where the class asks for it."""
    return isinstance(getattr(prop.columns[0], "table", None), Table)


def _read_column(mapper: Mapper[Any], name: str, given: Any) -> ReadColumn:
    column = Column(given) if isinstance(given, str) else given
    label = f"{mapper.class_.__name__}.{name}"
    if not isinstance(column, Column):
        raise ConfigurationError(
            f"columns[{name!r}] of the sync of {mapper.class_.__name__} is {given!r}; write a ClickHouse type, a "
            "Column or None"
        )
    source = name if column.source is None else column.source
    if isinstance(source, str):
        relationship = mapper.relationships.get(source)
        if relationship is not None:
            return _read_many(mapper, name, relationship, column)
        source = _find_attribute(mapper, source, name)
    type_ = column.type or choose_type(label, source.type, nullable=getattr(source, "nullable", True))
    default = column.default
    if isinstance(source.type, types.JSON) and default is None and not type_.startswith("Nullable("):
        default = "null"  # what JSON's own null is read as
    return ReadColumn(
        name=name,
        type=type_,
        source=_readable(source),
        convert=choose_conversion(source.type),
        default=default,
    )


def _find_attribute(mapper: Mapper[Any], source: str, name: str) -> Any:
    found: Any = getattr(mapper.class_, source, None)
    found = found.__clause_element__() if hasattr(found, "__clause_element__") else found
    if not isinstance(found, ColumnElement):
        raise ConfigurationError(
            f"columns[{name!r}] of the sync of {mapper.class_.__name__}: the class has no attribute {source!r} that "
            "can be selected; give an SQL expression: Column('String', select(…).scalar_subquery())"
        )
    return found


def _readable(source: Any) -> Any:
    """Enums as the database has them, not as Python's objects."""
    return type_coerce(source, String()) if isinstance(source.type, types.Enum) else source


def _read_many(
    mapper: Mapper[Any], name: str, relationship: RelationshipProperty[Any], column: Column
) -> ReadColumn:
    label = f"{mapper.class_.__name__}.{relationship.key}"
    secondary = relationship.secondary
    ours = dict(relationship.synchronize_pairs)
    theirs = list(relationship.secondary_synchronize_pairs or ())
    if not isinstance(secondary, Table) or set(ours) != set(mapper.primary_key) or len(theirs) != 1:
        raise ConfigurationError(
            f"{label} cannot be a column: that is for relationships over a `secondary` table which has our key and one "
            "column of the other side. Give an SQL expression: Column('…', select(…).scalar_subquery())"
        )
    source, target = theirs[0]
    return ReadColumn(
        name=name,
        type=column.type or f"Array({choose_type(label, source.type, nullable=False)})",
        source=None,
        many=Many(
            name=relationship.key,
            table=secondary,
            ours=tuple(ours[key] for key in mapper.primary_key),
            theirs=target,
            their_attribute=relationship.mapper.get_property_by_column(source).key,
        ),
    )
