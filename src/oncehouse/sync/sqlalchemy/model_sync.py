"""`ModelSync` for SQLAlchemy: the attributes of a mapped class as columns, its rows by key from the writing side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import Connection, Select, Table, func, literal, select, tuple_
from sqlalchemy.orm import Session, scoped_session

from oncehouse.errors import ConfigurationError, PermanentError
from oncehouse.messaging.database import open_reader
from oncehouse.sync.backfill.row_estimate import read_statistics
from oncehouse.sync.changes.change import Operation, OperationKind, distinct_keys, format_key, read_key
from oncehouse.sync.model.declaration import ModelSource, WalTable
from oncehouse.sync.model.engines import Row
from oncehouse.sync.model.model_sync import ModelSync as CoreModelSync
from oncehouse.sync.model.model_sync import SyncRunResult
from oncehouse.sync.model.read_columns import ReadColumn
from oncehouse.sync.rounds.round import run_sync
from oncehouse.sync.settings import SyncSettings
from oncehouse.sync.sqlalchemy import sources
from oncehouse.sync.sqlalchemy.columns import (
    Many,
    find_mapper,
    key_forms,
    key_names,
    read_columns,
)
from oncehouse.sync.sqlalchemy.key_conditions import is_among
from oncehouse.sync.sqlalchemy.serializers import ModelSerializer
from oncehouse.sync.sqlalchemy.wal_tables import describe_wal_table
from oncehouse.sync.tables import ABSENT

if TYPE_CHECKING:
    from sqlalchemy import Engine

# Databases take some ten thousands of values in a statement.
_VALUES_A_STATEMENT = 10_000


class ModelSync(CoreModelSync):
    model: ClassVar[Any] = None
    """The mapped class."""
    model_serializer: ClassVar[type[ModelSerializer] | None] = None
    """Makes rows of objects. Without one rows are read straight from the database, which is much quicker."""
    source: ClassVar[sources.SourceAddress | None] = None
    """The database that has the rows, as a URL or an engine; that of `configure` where it is not given."""
    watch: ClassVar[Mapping[Any, Any]] = {}
    """Other classes whose changes have a row synced again: class -> its attribute (or attributes, or its many-to-one
    relationship) that holds our key."""

    _key_forms: ClassVar[tuple[Callable[[Any], Any], ...] | None] = None

    @classmethod
    def forget(cls) -> None:
        super().forget()
        cls._key_forms = None

    def __init_subclass__(cls, **options: Any) -> None:
        from oncehouse.sync.sqlalchemy.capture import install

        super().__init_subclass__(**options)
        install()

    @classmethod
    def is_declared(cls) -> bool:
        return cls.model is not None

    @classmethod
    def derive_columns(cls) -> tuple[ReadColumn, ...]:
        return read_columns(cls.model, cls.columns)

    @classmethod
    def serializer_class(cls) -> type[ModelSerializer] | None:
        return cls.model_serializer

    @classmethod
    def describe_source(cls) -> ModelSource:
        mapper = find_mapper(cls.model)
        return ModelSource(
            label=f"{cls.model.__module__}.{cls.model.__name__}",
            table=str(getattr(mapper.local_table, "name", "")),
            columns={column.name: column.type for column in cls.model_columns()},
            key=key_names(mapper),
        )

    @classmethod
    def read_settings(cls) -> SyncSettings:
        return sources.configured_settings()

    @classmethod
    def source_of_rows(cls) -> sources.SourceAddress:
        return sources.find_source(cls.source, cls.sync_name or cls.__name__)

    @classmethod
    def open_source(cls) -> Engine:
        return sources.open_source_engine(cls.source_of_rows())

    @classmethod
    def describe_wal_table(cls) -> WalTable:
        return describe_wal_table(cls)

    @classmethod
    def parse_key(cls, key: str) -> tuple[Any, ...]:
        try:
            return tuple(form(value) for form, value in zip(cls.key_forms(), read_key(key), strict=True))
        except (ValueError, ArithmeticError) as error:
            names = ", ".join(key_names(find_mapper(cls.model)))
            raise PermanentError(
                f"{key} is no key of {cls.model.__name__}, whose key is ({names})"
            ) from error

    @classmethod
    def key_forms(cls) -> tuple[Callable[[Any], Any], ...]:
        """What brings a value of each column of the key into its one form."""
        if cls._key_forms is None:
            cls._key_forms = key_forms(find_mapper(cls.model))
        return cls._key_forms

    @classmethod
    def encode_keys(cls, keys: Iterable[Sequence[Any]]) -> list[str]:
        """Each once; keys that are not whole belong to no row of ours."""
        forms = cls.key_forms()
        return list(
            dict.fromkeys(
                format_key([form(value) for form, value in zip(forms, key, strict=True)])
                for key in keys
                if not any(value is None for value in key)
            )
        )

    @classmethod
    def get_sync_select(cls, keys: Sequence[tuple[Any, ...]]) -> Select[Any]:
        """The objects of these keys. What a narrower statement leaves out is deleted in ClickHouse."""
        return select(cls.model).where(is_among(_key_attributes(cls), keys, cls.open_source().dialect))

    @classmethod
    def get_sync_objects(cls, operations: Sequence[Operation]) -> Iterable[Any]:
        keys = [cls.parse_key(key) for key in distinct_keys(operations)]
        if cls.model_serializer is not None:
            return _load_objects(cls, keys)
        with open_reader(cls.open_source(), _what(cls), absent=ABSENT) as connection:
            return [row for part in _split(keys) for row in _read_rows(connection, cls, part)]

    @classmethod
    def list_keys(cls, after: str | None, limit: int) -> list[str]:
        columns = _key_attributes(cls)
        query = select(*columns).order_by(*columns).limit(limit)
        if after is not None:
            values = [
                literal(value, column.type)
                for value, column in zip(cls.parse_key(after), columns, strict=True)
            ]
            query = query.where(
                columns[0] > values[0] if len(columns) == 1 else tuple_(*columns) > tuple_(*values)
            )
        what = f"Sync {cls.declaration().name}: reading keys"
        with open_reader(cls.open_source(), what, absent=ABSENT) as connection:
            return cls.encode_keys(tuple(row) for row in connection.execute(query))

    @classmethod
    def estimate_rows(cls) -> int:
        engine, mapper = cls.open_source(), find_mapper(cls.model)
        known = None
        if isinstance(mapper.local_table, Table) and not mapper.single:
            known = read_statistics(
                engine, engine.dialect.identifier_preparer.format_table(mapper.local_table)
            )
        if known is not None:
            return known
        query = select(func.count()).select_from(select(*_key_attributes(cls)).subquery())
        with open_reader(
            engine, f"Sync {cls.declaration().name}: counting rows", absent=ABSENT
        ) as connection:
            return int(connection.execute(query).scalar_one())

    @classmethod
    def register(
        cls, writer: Session | Connection, keys: Iterable[Any], kind: OperationKind = OperationKind.UPDATE
    ) -> None:
        """Have the rows of these keys synced: for changes by raw SQL, in whose session or connection it is called.

        With an AsyncSession: `await session.run_sync(UserSync.register, keys)`. Of a sync that CDC feeds the log has
        them all.
        """
        from oncehouse.sync.sqlalchemy.capture import register_keys

        if isinstance(writer, scoped_session):
            writer = writer()
        if isinstance(writer, Session):
            writer = writer.connection(bind_arguments={"mapper": find_mapper(cls.model)})
        if not isinstance(writer, Connection):
            raise ConfigurationError(
                f"register is given a Session or a Connection, not a {type(writer).__name__}; with an AsyncSession: "
                f"await session.run_sync({cls.__name__}.register, keys)"
            )
        if cls.is_by_cdc():
            return
        listed = [key if isinstance(key, tuple) else (key,) for key in keys]
        register_keys(writer, cls, kind, listed)

    @classmethod
    def sync_batch_from_storage(cls) -> SyncRunResult:
        return run_sync(cls)


def _key_attributes(sync: type[ModelSync]) -> list[Any]:
    return [getattr(sync.model, name) for name in key_names(find_mapper(sync.model))]


def _split(keys: Sequence[tuple[Any, ...]]) -> Iterator[Sequence[tuple[Any, ...]]]:
    if keys:
        size = _VALUES_A_STATEMENT // len(keys[0])
        for start in range(0, len(keys), size):
            yield keys[start : start + size]


def _what(sync: type[ModelSync]) -> str:
    return f"Sync {sync.declaration().name}: reading rows"


def _load_objects(sync: type[ModelSync], keys: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
    """In a session that is open while they are serialized, so that what they have not loaded can still be loaded."""
    with open_reader(sync.open_source(), _what(sync), absent=ABSENT) as connection:
        for part in _split(keys):
            with Session(connection) as session:
                yield from session.scalars(sync.get_sync_select(part)).unique()


def _read_rows(
    connection: Connection, sync: type[ModelSync], keys: Sequence[tuple[Any, ...]]
) -> Iterator[Row]:
    columns = sync.model_columns()
    # Labelled, so that two columns of the same name are two.
    labelled = [
        column.source.label(f"oncehouse_{place}")
        for place, column in enumerate(columns)
        if column.many is None
    ]
    statement = sync.get_sync_select(keys).with_only_columns(*labelled, maintain_column_froms=True)
    linked = {
        column.name: _query_many(connection, sync, column.many, keys) for column in columns if column.many
    }
    key_places = sync.declaration().key_places
    for found in connection.execute(statement):
        values = iter(found)
        row = [None if column.many else column.make_value(next(values)) for column in columns]
        if linked:
            key = tuple(row[place] for place in key_places)
            row = [
                linked[c.name].get(key, []) if c.many else value
                for c, value in zip(columns, row, strict=True)
            ]
        yield tuple(row)


def _query_many(
    connection: Connection, sync: type[ModelSync], many: Many, keys: Sequence[tuple[Any, ...]]
) -> dict[tuple[Any, ...], list[Any]]:
    """The sorted keys of the other side for each of ours: one query for all of them."""
    forms = sync.key_forms()
    found: dict[tuple[Any, ...], list[Any]] = {}
    pairs = (
        select(*many.ours, many.theirs)
        .where(is_among(many.ours, keys, connection.dialect))
        .order_by(many.theirs)
    )
    for *ours, theirs in connection.execute(pairs):
        key = tuple(form(value) for form, value in zip(forms, ours, strict=True))
        found.setdefault(key, []).append(theirs)
    return found
