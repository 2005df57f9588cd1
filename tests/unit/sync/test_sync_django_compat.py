"""Declarations of django-clickhouse, with other imports."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import pytest

from django_site import set_up
from oncehouse.column_types.types import clickhouse_name
from oncehouse.errors import ConfigurationError
from oncehouse.sync.model.engines import Append, Collapsing, Replacing, VersionedCollapsing
from oncehouse.sync.model.model_sync import _registered

set_up()

from oncehouse.sync.django import compat  # noqa: E402 - Django wants its settings first
from oncehouse.sync.django.compat import ClickHouseModel, fields  # noqa: E402
from sync_shop.models import Customer, Order  # noqa: E402


@pytest.fixture(autouse=True)
def _undeclare() -> Iterator[None]:
    before = list(_registered)
    yield
    _registered[:] = before


def types(sync: type[ClickHouseModel]) -> dict[str, str]:
    return {name: clickhouse_name(type_) for name, type_ in sync.declaration().columns.items()}


def test_columns_are_the_fields_that_the_class_declares():
    class ClickHouseCustomer(ClickHouseModel):
        django_model = Customer
        sync_enabled = True
        sync_delay = 5
        sync_batch_size = 1000

        id = fields.UUIDField()
        name = fields.LowCardinalityField(fields.StringField())
        born = fields.NullableField(fields.DateField())

        engine = compat.ReplacingMergeTree("born", ("born",))

    assert types(ClickHouseCustomer) == {
        "id": "UUID",
        "name": "LowCardinality(String)",
        "born": "Nullable(Date)",
    }
    declared = ClickHouseCustomer.declaration()
    assert (declared.engine, declared.batch_size, declared.delay_seconds) == (Replacing(), 1000, 5)


def test_the_sign_column_is_the_engines_and_defaults_stand_for_nulls():
    class Common(ClickHouseModel):
        id = fields.UInt32Field()

    class ClickHouseOrder(Common):
        django_model = Order
        note = fields.StringField(default="none")
        total = fields.DecimalField(12, 2)
        tags = fields.ArrayField(fields.UInt32Field())
        sign = fields.Int8Field()

        engine = compat.CollapsingMergeTree("placed_at", ("note",), "sign")

    assert types(ClickHouseOrder) == {
        "id": "UInt32",
        "total": "Decimal(12, 2)",
        "note": "String",
        "tags": "Array(UInt32)",
    }
    assert ClickHouseOrder.declaration().engine == Collapsing(order_by=("note",), sign="sign")
    assert ClickHouseOrder.read_column("note").default == "none"


def test_engines_take_the_arguments_that_are_known():
    assert compat.MergeTree("born", ("born",), partition_key=()) == Append(order_by=("born",))
    versioned = compat.CollapsingMergeTree("born", ("id",), version_col="v")
    assert versioned == VersionedCollapsing(order_by=("id",), sign="sign", version="v")
    assert fields.FixedStringField(4).type == "FixedString(4)"
    with pytest.raises(ConfigurationError, match="is given a field"):
        fields.ArrayField("String")


def test_a_synced_model_needs_no_base_and_may_have_the_old_one():
    assert compat.ClickHouseSyncModel._meta.abstract


def test_the_former_module_name_still_works_and_warns():
    with pytest.warns(DeprecationWarning, match="is now oncehouse.sync.django.compat"):
        moving = import_module("oncehouse.sync.django.moving")
    assert moving.ClickHouseModel is compat.ClickHouseModel
