"""`ModelSync` for Django: the model's fields as columns, its rows by key from the writing database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from django.conf import settings as django_settings
from django.db import connections, router, transaction

from oncehouse.errors import ConfigurationError, PermanentError
from oncehouse.sync.backfill.row_estimate import read_statistics
from oncehouse.sync.changes.change import Operation, OperationKind, distinct_keys, format_key, read_key
from oncehouse.sync.django.columns import read_columns
from oncehouse.sync.django.copy_columns import filter_keys, find_kinds, read_block, read_keys
from oncehouse.sync.django.key_fields import form_key, key_fields
from oncehouse.sync.django.serializers import ModelSerializer
from oncehouse.sync.django.source_engine import is_same_database, open_engine_of, wrapped_errors
from oncehouse.sync.django.wal_tables import describe_wal_table
from oncehouse.sync.model.copy_columns import CopiedRows
from oncehouse.sync.model.declaration import ModelSource, WalTable
from oncehouse.sync.model.engines import Row
from oncehouse.sync.model.model_sync import ModelSync as CoreModelSync
from oncehouse.sync.model.model_sync import SyncRunResult
from oncehouse.sync.model.read_columns import ReadColumn
from oncehouse.sync.rounds.round import run_sync
from oncehouse.sync.settings import SyncSettings, read_settings

if TYPE_CHECKING:
    from sqlalchemy import Engine


class ModelSync(CoreModelSync):
    django_model: ClassVar[Any] = None
    django_model_serializer: ClassVar[type[ModelSerializer] | None] = None
    """Makes rows of objects. Without one rows are read straight from the database, which is much quicker."""
    source_database: ClassVar[str | None] = None
    """Django's alias of the database that has the model; the routers are asked where it is not given."""
    watch: ClassVar[Mapping[Any, str]] = {}
    """Other models whose changes have a row synced again: model -> its foreign key to `django_model`."""

    @classmethod
    def is_declared(cls) -> bool:
        return cls.django_model is not None

    @classmethod
    def source_alias(cls) -> str:
        return cls.source_database or str(router.db_for_write(cls.django_model))

    @classmethod
    def derive_columns(cls) -> tuple[ReadColumn, ...]:
        return read_columns(cls.django_model, cls.columns)

    @classmethod
    def serializer_class(cls) -> type[ModelSerializer] | None:
        return cls.django_model_serializer

    @classmethod
    def describe_source(cls) -> ModelSource:
        meta = cls.django_model._meta  # noqa: SLF001 - Django's public interface of a model
        return ModelSource(
            label=meta.label,
            table=meta.db_table.replace(".", "_").strip('"'),
            columns={column.name: column.type for column in cls.model_columns()},
            key=tuple(field.attname for field in key_fields(cls.django_model)),
        )

    @classmethod
    def read_settings(cls) -> SyncSettings:
        prefix = getattr(django_settings, "CLICKHOUSE_SETTINGS_PREFIX", "CLICKHOUSE_")
        names = [name for name in dir(django_settings) if name.startswith(prefix)]
        return read_settings({name: getattr(django_settings, name) for name in names}, prefix=prefix)

    @classmethod
    def open_source(cls) -> Engine:
        return open_engine_of(cls.source_alias())

    @classmethod
    def describe_wal_table(cls) -> WalTable:
        return describe_wal_table(cls)

    @classmethod
    def parse_key(cls, key: str) -> tuple[Any, ...]:
        return form_key(cls.django_model, read_key(key), cls.source_alias())

    @classmethod
    def get_sync_queryset(cls, keys: Sequence[Any]) -> Any:
        """The rows of these keys. What a narrower queryset leaves out is deleted in ClickHouse."""
        return filter_keys(cls.django_model._base_manager.using(cls.source_alias()), keys)  # noqa: SLF001 - public

    @classmethod
    def get_sync_objects(cls, operations: Sequence[Operation]) -> Iterable[Any]:
        _refuse_transaction(cls)
        keys = _parse_keys(cls, distinct_keys(operations))
        with wrapped_errors(cls.source_alias(), f"Sync {cls.declaration().name}: reading rows"):
            queryset = cls.get_sync_queryset(keys)
            if cls.django_model_serializer is not None:
                many = [column.many.name for column in cls.model_columns() if column.many is not None]
                return list(queryset.prefetch_related(*many) if many else queryset)
            return _read_rows(cls.model_columns(), queryset, keys)

    @classmethod
    def list_keys(cls, after: str | None, limit: int) -> list[str]:
        names = [field.attname for field in key_fields(cls.django_model)]
        keys = cls.django_model._base_manager.using(cls.source_alias()).order_by(*names)  # noqa: SLF001
        if after is not None:
            parsed = cls.parse_key(after)
            keys = keys.filter(pk__gt=parsed[0] if len(parsed) == 1 else parsed)
        with wrapped_errors(cls.source_alias(), f"Sync {cls.declaration().name}: reading keys"):
            return [format_key(key) for key in keys.values_list(*names)[:limit]]

    @classmethod
    def estimate_rows(cls) -> int:
        alias, meta = cls.source_alias(), cls.django_model._meta  # noqa: SLF001 - Django's public interface
        known = read_statistics(cls.open_source(), connections[alias].ops.quote_name(meta.db_table))
        if known is not None:
            return known
        with wrapped_errors(alias, f"Sync {cls.declaration().name}: counting rows"):
            return int(cls.django_model._base_manager.using(alias).count())  # noqa: SLF001

    @classmethod
    def read_block(cls, keys: Sequence[str]) -> CopiedRows | None:
        if cls.django_model_serializer is not None or not cls.has_own(
            ModelSync, "get_sync_objects", "get_insert_batch"
        ):
            return None
        declared, columns = cls.declaration(), cls.model_columns()
        if connections[cls.source_alias()].vendor != "postgresql":
            return None
        kinds = find_kinds(cls.django_model, declared, columns)
        if kinds is None:
            return None
        _refuse_transaction(cls)
        return read_block(cls.get_sync_queryset(_parse_keys(cls, keys)), declared, columns, kinds)

    @classmethod
    def register(
        cls, keys: Iterable[Any], kind: OperationKind = OperationKind.UPDATE, *, using: str | None = None
    ) -> None:
        """Have the rows of these primary keys synced: for changes by raw SQL, which Django does not see.

        Call it in the transaction of the change, whose alias is `using` where it is not the model's own. Outside of one
        the keys are written at once. Of a sync that CDC feeds the log has them all.
        """
        if cls.is_by_cdc():
            return
        from oncehouse.sync.django.key_recorder import DjangoWriter

        alias = cls.source_alias() if using is None else using
        if not is_same_database(alias, cls.source_alias()):
            raise ConfigurationError(
                f"{cls.declaration().name}: its rows are in the database of {cls.source_alias()!r}, and {alias!r} "
                "leads to another one, where rounds would not find the keys"
            )
        given = [key if isinstance(key, tuple) else (key,) for key in keys]
        key_texts = [format_key(form_key(cls.django_model, key, alias)) for key in given]
        with transaction.atomic(using=alias, savepoint=False):
            cls.get_storage().register(
                DjangoWriter(connections[alias]), cls.declaration().name, kind, key_texts
            )

    @classmethod
    def sync_batch_from_storage(cls) -> SyncRunResult:
        return run_sync(cls)

    @classmethod
    def release_connections(cls) -> None:
        connections.close_all()


def _refuse_transaction(sync: type[ModelSync]) -> None:
    if connections[sync.source_alias()].in_atomic_block:
        raise PermanentError(
            f"Sync {sync.declaration().name}: a sync cannot run inside of a transaction.atomic block: it has "
            "to see what commits while it runs. Call it outside."
        )


def _parse_keys(sync: type[ModelSync], keys: Sequence[str]) -> list[Any]:
    """As a filter by `pk` takes them."""
    numbers = read_keys(sync.django_model, keys)
    if numbers is not None:
        return numbers
    parsed = [sync.parse_key(key) for key in keys]
    return [key[0] if len(key) == 1 else key for key in parsed]


def _read_rows(columns: tuple[ReadColumn, ...], queryset: Any, keys: Sequence[Any]) -> list[Row]:
    # Expressions are given by alias, so that `values_list` keeps the order of the columns.
    expressions = {
        f"oncehouse_{place}": column.source
        for place, column in enumerate(columns)
        if column.many is None and not isinstance(column.source, str)
    }
    names = [
        "pk" if column.many else column.source if isinstance(column.source, str) else f"oncehouse_{place}"
        for place, column in enumerate(columns)
    ]
    rows = (
        queryset.annotate(**expressions).values_list(*names) if expressions else queryset.values_list(*names)
    )
    changed = {
        place: _query_many(column.many, queryset.db, keys) if column.many else column.convert
        for place, column in enumerate(columns)
        if column.many or column.convert
    }
    defaults = {place: column.default for place, column in enumerate(columns) if column.default is not None}
    if not changed and not defaults:
        return list(rows)
    return [_convert_row(row, changed, defaults) for row in rows]


def _convert_row(row: Row, changed: Mapping[int, Any], defaults: Mapping[int, Any]) -> Row:
    values = list(row)
    for place, default in defaults.items():
        if values[place] is None:
            values[place] = default
    for place, convert in changed.items():
        if values[place] is not None:
            values[place] = convert(values[place])
    return tuple(values)


def _query_many(field: Any, alias: str, keys: Sequence[Any]) -> Any:
    """What gives the sorted keys of the other side for a key of ours: one query for all of them."""
    through = field.remote_field.through
    ours, theirs = field.m2m_field_name(), field.m2m_reverse_field_name()
    found: dict[Any, list[Any]] = {}
    pairs = through._base_manager.using(alias).filter(**{f"{ours}__in": keys})  # noqa: SLF001 - Django's public name
    for our, their in pairs.values_list(f"{ours}_id", f"{theirs}_id").order_by(f"{theirs}_id"):
        found.setdefault(our, []).append(their)
    return lambda key: found.get(key, [])
