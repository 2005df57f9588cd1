"""Which tables are watched, and what a change of a row there means: the row of which sync, by which columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Table, inspect
from sqlalchemy.orm import Mapper

from oncehouse.errors import ConfigurationError
from oncehouse.sync.model.watch_map import WatchMap
from oncehouse.sync.sqlalchemy.columns import find_mapper
from oncehouse.sync.sqlalchemy.model_sync import ModelSync


@dataclass(frozen=True, kw_only=True)
class Watch:
    """A change of a row of some table means that a row of the sync's class changed."""

    sync: type[ModelSync]
    columns: tuple[Any, ...]
    """Of the changed table: their values are the key."""
    is_own: bool
    """The class's own table, so that an insert is an insert and a delete a delete."""
    child_key: tuple[Any, ...] = ()
    """Of a table of a parent class, most of whose rows may be no rows of the child: the key in the child's table."""


def find_watches(table: Any) -> tuple[Watch, ...]:
    return _map.find(table)


def find_namesakes(table: Any) -> tuple[Watch, ...]:
    """The watches of the table of this name, whichever object stands for it."""
    return _map.find(getattr(table, "fullname", None))


def _name_tables(sync: type[ModelSync]) -> Iterable[tuple[Any, Watch]]:
    for table, watch in _watches_of(sync):
        yield table, watch
        yield table.fullname, watch


def _watches_of(sync: type[ModelSync]) -> Iterable[tuple[Any, Watch]]:
    mapper = find_mapper(sync.model)
    own = _key_in(mapper, mapper.local_table)
    yield mapper.local_table, Watch(sync=sync, columns=own, is_own=True)
    for table in mapper.tables:
        if table is not mapper.local_table:
            # A row of a child class is spread over the tables of its parents, under the same key.
            yield table, Watch(sync=sync, columns=_key_in(mapper, table), is_own=False, child_key=own)
    for column in sync.model_columns():
        if column.many is not None:
            yield column.many.table, Watch(sync=sync, columns=column.many.ours, is_own=False)
    for other, names in sync.watch.items():
        yield _watch_other(sync, mapper, other, names)


def _key_in(mapper: Mapper[Any], table: Any) -> tuple[Any, ...]:
    """The columns of this table of the class that hold the key."""
    found = []
    for key in mapper.primary_key:
        columns = mapper.get_property_by_column(key).columns
        found.append(next((column for column in columns if column.table is table), None))
    if any(column is None for column in found):
        raise ConfigurationError(
            f"{mapper.class_.__name__} is spread over tables, and {table.name} does not have its whole key: whose rows "
            "changed there is unknown. Sync the classes of its tables."
        )
    return tuple(found)


def _watch_other(sync: type[ModelSync], mapper: Mapper[Any], other: Any, names: Any) -> tuple[Any, Watch]:
    where = f"{sync.__name__}.watch"
    theirs = inspect(other, raiseerr=False)
    if not isinstance(theirs, Mapper) or not isinstance(theirs.local_table, Table):
        raise ConfigurationError(f"{where}: {other!r} is not a class that is mapped to a table")
    relationship = theirs.relationships.get(names) if isinstance(names, str) else None
    if relationship is not None:
        held = {remote: local for local, remote in relationship.local_remote_pairs or ()}
        columns = tuple(held.get(column) for column in mapper.primary_key)
    else:
        listed = (names,) if isinstance(names, str) else tuple(names)
        columns = tuple(theirs.columns.get(name) for name in listed)
    if (
        len(columns) != len(mapper.primary_key)
        or any(column is None for column in columns)
        or any(column.table is not theirs.local_table for column in columns if column is not None)
    ):
        raise ConfigurationError(
            f"{where}: {names!r} of {other.__name__} does not hold the key of {mapper.class_.__name__}; name the "
            "attributes of its foreign key, or its many-to-one relationship"
        )
    return theirs.local_table, Watch(sync=sync, columns=columns, is_own=False)


_map = WatchMap(ModelSync, _name_tables)
