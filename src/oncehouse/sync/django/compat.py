"""The names of django-clickhouse, for declarations that move over by changing imports.

    from oncehouse.sync.django.compat import ClickHouseModel, ClickHouseSyncModel, ReplacingMergeTree, fields

Columns are the fields that a class declares, and no others. Engines and fields take the same arguments; what engines
promise is that of `sync.model.engines`: a replacing table is sorted by the model's key. An option that a sync cannot
keep to is refused by its name, with what to do instead, and so are attributes of classes that would have no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NoReturn

from django.db import models

from oncehouse.clickhouse.identifiers import quote
from oncehouse.column_types.types import quote_text
from oncehouse.errors import ConfigurationError
from oncehouse.sync.django.columns import Column, read_columns
from oncehouse.sync.django.model_sync import ModelSync
from oncehouse.sync.django.serializers import ModelSerializer
from oncehouse.sync.model.engines import Append, Collapsing, Replacing, VersionedCollapsing
from oncehouse.sync.model.read_columns import ReadColumn

__all__ = [
    "ClickHouseModel",
    "ClickHouseSyncModel",
    "CollapsingMergeTree",
    "Django2ClickHouseModelSerializer",
    "MergeTree",
    "ReplacingMergeTree",
    "fields",
]

Django2ClickHouseModelSerializer = ModelSerializer


class ClickHouseSyncModel(models.Model):
    """Changes are noticed of every model that a sync names, so this base adds nothing."""

    class Meta:
        abstract = True


# Attributes of classes of the old tool, and what stands for them.
_ATTRIBUTES = {
    "read_db_aliases": "queries go through any client of ClickHouse",
    "write_db_aliases": "name the database of CLICKHOUSE_DATABASES: database = 'default'",
    "migrate_replicated_db_aliases": "`oncehouse sync apply` changes the table in the sync's database",
    "migrate_non_replicated_db_aliases": "`oncehouse sync apply` creates the table in the sync's database",
    "sync_database_alias": "name the database of CLICKHOUSE_DATABASES: database = 'default'",
    "sync_lock_timeout": "a process that was killed loses its lease after sync_lease seconds",
    "sync_formatted_tuples": "rows are sent as Arrow blocks",
    "sub_models": "declare a sync for each table; a model may have several",
    "table_name": "name the table: table = 'visits'",
    "get_database": "name the database of CLICKHOUSE_DATABASES: database = 'default'",
    "get_database_alias": "name the database of CLICKHOUSE_DATABASES: database = 'default'",
    "get_django_model_serializer": "set django_model_serializer",
    "get_import_key": "name the sync: sync_name = 'visits'",
    "get_lock_timeout": "set sync_lease",
    "get_sync_batch_size": "set sync_batch_size",
    "get_sync_delay": "set sync_delay",
    "get_sync_query_set": "override get_sync_queryset(cls, keys)",
    "get_tuple_class": "rows are tuples in the order of the columns",
}
_OLD_PACKAGES = ("infi.clickhouse_orm", "clickhouse_orm", "django_clickhouse")


class ClickHouseModel(ModelSync):
    """A sync whose columns are its own `fields`."""

    def __init_subclass__(cls, **options: Any) -> None:
        for name, value in vars(cls).items():
            where = f"{cls.__module__}.{cls.__qualname__}.{name}"
            if name in _ATTRIBUTES:
                raise ConfigurationError(
                    f"{where} has no effect on a sync; leave it out: {_ATTRIBUTES[name]}"
                )
            package = (value if isinstance(value, type) else type(value)).__module__
            if package.startswith(_OLD_PACKAGES):
                raise ConfigurationError(
                    f"{where} comes from {package}, which a sync does not read; import it from "
                    "oncehouse.sync.django.compat, or leave it out if it is not there"
                )
        super().__init_subclass__(**options)

    @classmethod
    def derive_columns(cls) -> tuple[ReadColumn, ...]:
        own = {name: value for name, value in _declared(cls).items() if name not in cls.engine.own_columns()}
        meta = cls.django_model._meta  # noqa: SLF001 - Django's public interface of a model
        unnamed = [field.attname for field in meta.concrete_fields]
        unnamed += [field.name for field in meta.many_to_many]
        return read_columns(cls.django_model, {**dict.fromkeys(unnamed), **own, **cls.columns})


def _declared(sync: type[ClickHouseModel]) -> dict[str, Column]:
    return {
        name: value
        for base in reversed(sync.__mro__)
        for name, value in vars(base).items()
        if isinstance(value, Column)
    }


# What a sync cannot keep to, and what to do instead.
_REFUSED = {
    "sampling_expr": "a sync's table has no sampling key; leave it out, or create the table yourself, with SAMPLE BY, "
    "before `oncehouse sync apply`",
    "index_granularity": "a sync's table has ClickHouse's own, 8192; leave it out, or create the table yourself before "
    "`oncehouse sync apply`",
    "primary_key": "the primary key of a sync's table is its sorting key; leave it out",
    "ver_col": "a replacing table takes its version from the sync, whose numbers grow with every reading; leave it "
    "out, and the field stays a column like others",
    "alias": "a sync fills every column that its class declares; leave the field out, and after `oncehouse sync apply` "
    "run ALTER TABLE … ADD COLUMN … ALIAS …",
    "materialized": "a sync fills every column that its class declares; leave the field out, and after `oncehouse sync "
    "apply` run ALTER TABLE … ADD COLUMN … MATERIALIZED …",
    "readonly": "a sync fills every column that its class declares; leave the field out",
    "codec": "a sync's columns are created with ClickHouse's own compression; leave it out, and after `oncehouse sync "
    "apply` run ALTER TABLE … MODIFY COLUMN … CODEC(…)",
    "extra_null_values": "a sync writes the values that the model has; leave it out, and let a django_model_serializer "
    "give None for them",
}


def _refuse(where: str, option: str, advice: str) -> NoReturn:
    raise ConfigurationError(f"{where}: {option} is not supported: {advice}")


def _refuse_options(where: str, **options: Any) -> None:
    for name, value in options.items():
        if value not in (None, False, [], ()):
            _refuse(where, name, _REFUSED[name])


def _options_of_engine(
    where: str,
    date_col: Any,
    order_by: Any,
    sampling_expr: Any = None,
    index_granularity: int = 8192,
    replica_table_path: str | None = None,
    replica_name: str | None = None,
    partition_key: Any = None,
    primary_key: Any = None,
) -> dict[str, Any]:
    """As keywords of `Engine`. Those from `sampling_expr` on stand in this order behind each engine's own arguments."""
    granularity = None if index_granularity == 8192 else index_granularity
    _refuse_options(
        where, sampling_expr=sampling_expr, index_granularity=granularity, primary_key=primary_key or None
    )
    if (replica_table_path is None) != (replica_name is None):
        _refuse(where, "replica_table_path without replica_name, or the other way", "give both, or neither")
    if not isinstance(date_col, str | None):
        _refuse(where, f"date_col={date_col!r}", "write the name of a column")
    by_month = () if date_col is None else (f"toYYYYMM({quote(date_col)})",)
    parts = _names(where, "partition_key", partition_key or ()) or by_month
    replicated = f"{quote_text(str(replica_table_path))}, {quote_text(str(replica_name))}"
    return {
        "order_by": _names(where, "order_by", order_by),
        "replicated": None if replica_name is None else replicated,
        "partition_by": None if not parts else parts[0] if len(parts) == 1 else f"({', '.join(parts)})",
    }


def _names(where: str, option: str, given: Sequence[Any]) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or not all(isinstance(one, str) for one in given):
        _refuse(where, f"{option}={given!r}", "write a tuple of texts, such as ('id',)")
    return tuple(given)


def MergeTree(  # noqa: N802 - the name that is known
    date_col: str | None = None, order_by: Sequence[str] = (), *options: Any, **named: Any
) -> Append:
    return Append(**_options_of_engine("MergeTree", date_col, order_by, *options, **named))


def ReplacingMergeTree(  # noqa: N802 - the name that is known
    date_col: str | None = None,
    order_by: Sequence[str] = (),
    ver_col: str | None = None,
    *options: Any,
    **named: Any,
) -> Replacing:
    _refuse_options("ReplacingMergeTree", ver_col=ver_col)
    return Replacing(**_options_of_engine("ReplacingMergeTree", date_col, order_by, *options, **named))


def CollapsingMergeTree(  # noqa: N802 - the name that is known
    date_col: str | None = None,
    order_by: Sequence[str] = (),
    sign_col: str = "sign",
    *options: Any,
    version_col: str | None = None,
    **named: Any,
) -> Collapsing:
    kept = _options_of_engine("CollapsingMergeTree", date_col, order_by, *options, **named)
    if version_col is None:
        return Collapsing(sign=sign_col, **kept)
    return VersionedCollapsing(sign=sign_col, version=version_col, **kept)


_FIELD_OPTIONS = ("default", "alias", "materialized", "readonly", "codec")
_NULLABLE_OPTIONS = ("default", "alias", "materialized", "extra_null_values", "codec")


def _bind(where: str, known: Sequence[str], given: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    if len(given) > len(known) or not set(named) <= set(known[len(given) :]):
        raise ConfigurationError(f"{where} takes {', '.join(known)}, each once, and nothing else")
    return {**dict(zip(known, given, strict=False)), **named}


def _field(where: str, type_: str, options: dict[str, Any]) -> Column:
    default = options.pop("default", None)
    _refuse_options(where, **options)
    if callable(default) or hasattr(default, "to_sql"):
        _refuse(where, "an expression as default", "write the value that stands in place of a null")
    return Column(type_, default=default)


def _simple(type_: str) -> Callable[..., Column]:
    where = f"fields.{type_}Field"
    return lambda *given, **named: _field(where, type_, _bind(where, _FIELD_OPTIONS, given, named))


def _around(wrapper: str, known: Sequence[str] = _FIELD_OPTIONS) -> Callable[..., Column]:
    where = f"fields.{wrapper}Field"

    def field(inner_field: Column, *given: Any, **named: Any) -> Column:
        if not isinstance(inner_field, Column):
            raise ConfigurationError(f"{where} is given a field, such as fields.StringField()")
        if wrapper == "Array" and inner_field.default is not None:
            _refuse(
                where,
                f"default={inner_field.default!r} of the inner field",
                "a sync writes the elements that the model has; leave it out, and write a default of the ArrayField "
                "for an array that is null",
            )
        column = _field(where, f"{wrapper}({inner_field.type})", _bind(where, known, given, named))
        if column.default is None:
            return replace(column, default=inner_field.default)
        return column

    return field


def _date_time(*given: Any, **named: Any) -> Column:
    where = "fields.DateTimeField"
    options = _bind(where, (*_FIELD_OPTIONS, "timezone"), given, named)
    zone = options.pop("timezone", None)
    return _field(where, "DateTime" if zone is None else f"DateTime({quote_text(str(zone))})", options)


def _date_time_64(*given: Any, **named: Any) -> Column:
    where = "fields.DateTime64Field"
    options = _bind(where, (*_FIELD_OPTIONS, "timezone", "precision"), given, named)
    zone, precision = options.pop("timezone", None), options.pop("precision", 6)
    zoned = "" if zone is None else f", {quote_text(str(zone))}"
    return _field(where, f"DateTime64({precision}{zoned})", options)


def _decimal(precision: int, scale: int, *given: Any, **named: Any) -> Column:
    where = "fields.DecimalField"
    return _field(where, f"Decimal({precision}, {scale})", _bind(where, _FIELD_OPTIONS, given, named))


def _decimal_of(precision: int) -> Callable[..., Column]:
    return lambda scale, *given, **named: _decimal(precision, scale, *given, **named)


def _fixed_string(length: int, *given: Any, **named: Any) -> Column:
    where = "fields.FixedStringField"
    return _field(where, f"FixedString({length})", _bind(where, _FIELD_OPTIONS, given, named))


_SIMPLE = (
    *("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64"),
    *("Float32", "Float64", "String", "Date", "UUID"),
)


class _Fields(SimpleNamespace):
    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ConfigurationError(
            f"fields.{name} is not supported: write a Column of oncehouse.sync.django with a ClickHouse type, such as "
            "Column(\"Enum8('new' = 1)\") or Column('String'), and let a django_model_serializer give its values where "
            "the model has others"
        )


fields = _Fields(
    **{f"{name}Field": _simple(name) for name in _SIMPLE},
    **{f"{name}Field": _around(name) for name in ("Array", "LowCardinality")},
    NullableField=_around("Nullable", _NULLABLE_OPTIONS),
    DateTimeField=_date_time,
    DateTime64Field=_date_time_64,
    DecimalField=_decimal,
    Decimal32Field=_decimal_of(9),
    Decimal64Field=_decimal_of(18),
    Decimal128Field=_decimal_of(38),
    FixedStringField=_fixed_string,
)

_NO_NAMES = {
    "SummingMergeTree": "a row that is synced again would be added again; use CollapsingMergeTree, and sum in a "
    "materialized view",
    "ClickHouseMultiModel": "declare a sync for each of sub_models; a model may have several",
    **dict.fromkeys(
        ("Buffer", "Distributed", "Log", "Memory", "Merge", "TinyLog"),
        "a sync writes to tables of the MergeTree family; create tables of other engines yourself",
    ),
}


def __getattr__(name: str) -> NoReturn:
    if name in _NO_NAMES:
        _refuse(__name__, name, _NO_NAMES[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
