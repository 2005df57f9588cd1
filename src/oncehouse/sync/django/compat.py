"""The names of django-clickhouse, for declarations that move over by changing imports.

    from oncehouse.sync.django.compat import ClickHouseModel, ClickHouseSyncModel, ReplacingMergeTree, fields

Columns are the fields that a class declares, and no others. Engines take the same arguments; what they promise is that
of `sync.model.engines`: the date column partitions nothing, and a replacing table is sorted by the model's key.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from django.db import models

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


class ClickHouseModel(ModelSync):
    """A sync whose columns are its own `fields`."""

    @classmethod
    def derive_columns(cls) -> tuple[ReadColumn, ...]:
        own = {name: value for name, value in _declared(cls).items() if name not in cls.engine.own_columns()}
        meta = cls.django_model._meta  # noqa: SLF001 - Django's public door to a model
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


def MergeTree(_date_col: str | None = None, order_by: tuple[str, ...] = (), **_options: Any) -> Append:  # noqa: N802
    return Append(order_by=tuple(order_by))


def ReplacingMergeTree(  # noqa: N802 - the name that is known
    _date_col: str | None = None,
    _order_by: tuple[str, ...] = (),
    _ver_col: str | None = None,
    **_options: Any,
) -> Replacing:
    return Replacing()


def CollapsingMergeTree(  # noqa: N802 - the name that is known
    _date_col: str | None = None,
    order_by: tuple[str, ...] = (),
    sign_col: str = "sign",
    version_col: str | None = None,
    **_options: Any,
) -> Collapsing:
    if version_col is None:
        return Collapsing(order_by=tuple(order_by), sign=sign_col)
    return VersionedCollapsing(order_by=tuple(order_by), sign=sign_col, version=version_col)


def _simple(type_: str) -> Any:
    def field(default: Any = None, **_options: Any) -> Column:
        return Column(type_, default=default)

    return field


def _around(wrapper: str) -> Any:
    def field(inner: Column, **_options: Any) -> Column:
        if not isinstance(inner, Column):
            raise ConfigurationError(f"fields.{wrapper}Field is given a field, such as fields.StringField()")
        return Column(f"{wrapper}({inner.type})", default=inner.default)

    return field


def _decimal(precision: int, scale: int, default: Any = None) -> Column:
    return Column(f"Decimal({precision}, {scale})", default=default)


def _fixed_string(length: int, default: Any = None) -> Column:
    return Column(f"FixedString({length})", default=default)


_SIMPLE = (
    *("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64"),
    *("Float32", "Float64", "String", "Date", "DateTime", "UUID"),
)

fields = SimpleNamespace(
    **{f"{name}Field": _simple(name) for name in _SIMPLE},
    **{f"{name}Field": _around(name) for name in ("Nullable", "Array", "LowCardinality")},
    DecimalField=_decimal,
    FixedStringField=_fixed_string,
)
