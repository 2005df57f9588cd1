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

        engine = compat.ReplacingMergeTree(None, ("id",))

    assert types(ClickHouseCustomer) == {
        "id": "UUID",
        "name": "LowCardinality(String)",
        "born": "Nullable(Date)",
    }
    declared = ClickHouseCustomer.declaration()
    assert (declared.engine, declared.batch_size, declared.delay_seconds) == (
        Replacing(order_by=("id",)),
        1000,
        5,
    )


def test_the_sign_column_is_the_engines_and_defaults_stand_for_nulls():
    class Common(ClickHouseModel):
        id = fields.UInt32Field()

    class ClickHouseOrder(Common):
        django_model = Order
        note = fields.StringField(default="none")
        total = fields.DecimalField(12, 2)
        tags = fields.ArrayField(fields.UInt32Field())
        placed_at = fields.DateField()
        sign = fields.Int8Field()

        engine = compat.CollapsingMergeTree("placed_at", ("note",), "sign")

    assert types(ClickHouseOrder) == {
        "id": "UInt32",
        "total": "Decimal(12, 2)",
        "note": "String",
        "tags": "Array(UInt32)",
        "placed_at": "Date",
    }
    by_month = "toYYYYMM(`placed_at`)"
    assert ClickHouseOrder.declaration().engine == Collapsing(
        order_by=("note",), partition_by=by_month, sign="sign"
    )
    assert ClickHouseOrder.read_column("note").default == "none"


def test_engines_take_the_arguments_that_are_known():
    assert compat.MergeTree(order_by=("born",), partition_key=()) == Append(order_by=("born",))
    versioned = compat.CollapsingMergeTree(None, ("id",), version_col="v")
    assert versioned == VersionedCollapsing(order_by=("id",), sign="sign", version="v")
    assert fields.FixedStringField(4).type == "FixedString(4)"
    with pytest.raises(ConfigurationError, match="is given a field"):
        fields.ArrayField("String")


@pytest.mark.parametrize("name", ["MergeTree", "ReplacingMergeTree", "CollapsingMergeTree"])
def test_a_date_column_partitions_by_month_unless_there_is_a_partition_key(name):
    make = getattr(compat, name)
    assert (
        make("born", ("id",)).partition_by
        == make("born", partition_key=()).partition_by
        == "toYYYYMM(`born`)"
    )
    assert make("born", ("id",), partition_key=("id",)).partition_by == "id"
    assert make(None, ("id",)).partition_by is None


def test_a_replacing_table_is_sorted_by_the_key_of_the_model():
    class ClickHouseCustomer(ClickHouseModel):
        django_model = Customer
        id = fields.UUIDField()
        born = fields.DateField()
        engine = compat.ReplacingMergeTree("born", ("born", "id"))

    with pytest.raises(ConfigurationError, match=r"with order_by=\('born', 'id'\) .* Leave order_by out"):
        ClickHouseCustomer.declaration()


def test_a_synced_model_needs_no_base_and_may_have_the_old_one():
    assert compat.ClickHouseSyncModel._meta.abstract


def test_the_former_module_name_still_works_and_warns():
    with pytest.warns(DeprecationWarning, match="is now oncehouse.sync.django.compat"):
        moving = import_module("oncehouse.sync.django.moving")
    assert moving.ClickHouseModel is compat.ClickHouseModel


REPLICA = {"replica_table_path": "/tables/{shard}/it's", "replica_name": "{replica}"}


@pytest.mark.parametrize("name", ["MergeTree", "ReplacingMergeTree", "CollapsingMergeTree"])
def test_engines_keep_replication_and_partitions(name):
    engine = getattr(compat, name)(
        "born", ["id"], index_granularity=8192, partition_key=("toYYYYMM(born)", "id"), **REPLICA
    )
    assert engine.clause().startswith(f"Replicated{name}('/tables/{{shard}}/it\\'s', '{{replica}}'")
    assert engine.partition_by == "(toYYYYMM(born), id)"
    assert (
        getattr(compat, name)("born", ("id",), partition_key=["toYear(born)"]).partition_by == "toYear(born)"
    )


def test_options_of_engines_may_stand_in_their_order():
    replicated = compat.MergeTree("born", ("id",), None, 8192, "/path", "replica", ("id",))
    assert (replicated.clause(), replicated.partition_by) == ("ReplicatedMergeTree('/path', 'replica')", "id")
    collapsing = compat.CollapsingMergeTree("born", ("id",), "sign", None, 8192, "/path", "replica")
    assert collapsing.clause() == "ReplicatedCollapsingMergeTree('/path', 'replica', `sign`)"
    replacing = compat.ReplacingMergeTree("born", ("id",), None, None, 8192, "/path", "replica")
    assert replacing.clause() == ("ReplicatedReplacingMergeTree('/path', 'replica', `_version`, `_deleted`)")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: compat.ReplacingMergeTree("born", ("id",), "version"),
            "ReplacingMergeTree: ver_col is not supported",
        ),
        (
            lambda: compat.ReplacingMergeTree(ver_col="version"),
            "leave it out, and the field stays a column like others",
        ),
        (
            lambda: compat.MergeTree("born", ("id",), "intHash32(id)"),
            "MergeTree: sampling_expr is not supported",
        ),
        (lambda: compat.MergeTree(index_granularity=1024), "MergeTree: index_granularity is not supported"),
        (lambda: compat.MergeTree(primary_key=("id",)), "primary_key is not supported: .* leave it out"),
        (lambda: compat.CollapsingMergeTree(replica_name="{replica}"), "give both, or neither"),
        (lambda: compat.CollapsingMergeTree(replica_table_path="/path"), "give both, or neither"),
        (lambda: compat.MergeTree("born", "id"), r"order_by='id' is not supported: write a tuple of texts"),
        (lambda: compat.ReplacingMergeTree("born", "id"), r"order_by='id' is not supported"),
        (lambda: compat.MergeTree(partition_key=(1,)), r"partition_key=\(1,\) is not supported"),
        (lambda: compat.MergeTree(1), "MergeTree: date_col=1 is not supported: write the name of a column"),
        (
            lambda: fields.ArrayField(fields.UInt8Field(default=0), default=[2]),
            "fields.ArrayField: default=0 of the inner field is not supported",
        ),
        (
            lambda: fields.ArrayField(fields.NullableField(fields.StringField("x"))),
            "fields.ArrayField: default='x' of the inner field is not supported",
        ),
        (lambda: compat.SummingMergeTree, "SummingMergeTree is not supported: a row that is synced again"),
        (
            lambda: compat.Distributed,
            "Distributed is not supported: a sync writes to tables of the MergeTree family",
        ),
        (lambda: compat.ClickHouseMultiModel, "declare a sync for each of sub_models"),
        (
            lambda: fields.StringField(alias="name"),
            r"fields.StringField: alias is not supported: .* ADD COLUMN … ALIAS",
        ),
        (lambda: fields.StringField(None, "name"), "fields.StringField: alias is not supported"),
        (lambda: fields.UInt8Field(materialized="1"), "fields.UInt8Field: materialized is not supported"),
        (lambda: fields.DateField(readonly=True), "fields.DateField: readonly is not supported"),
        (
            lambda: fields.DateTimeField(codec="ZSTD"),
            r"fields.DateTimeField: codec is not supported: .* CODEC\(",
        ),
        (lambda: fields.DateTime64Field(codec="ZSTD"), "fields.DateTime64Field: codec is not supported"),
        (lambda: fields.DecimalField(9, 2, None, "x"), "fields.DecimalField: alias is not supported"),
        (lambda: fields.Decimal64Field(2, alias="x"), "fields.DecimalField: alias is not supported"),
        (
            lambda: fields.FixedStringField(9, materialized="x"),
            "FixedStringField: materialized is not supported",
        ),
        (
            lambda: fields.ArrayField(fields.DateField(), codec="LZ4"),
            "fields.ArrayField: codec is not supported",
        ),
        (
            lambda: fields.LowCardinalityField(fields.StringField(), alias="x"),
            "fields.LowCardinalityField: alias is not",
        ),
        (
            lambda: fields.NullableField(fields.StringField(), alias="x"),
            "fields.NullableField: alias is not supported",
        ),
        (
            lambda: fields.NullableField(fields.StringField(), extra_null_values=[""]),
            "fields.NullableField: extra_null_values is not supported: .* django_model_serializer",
        ),
        (lambda: fields.DateTimeField(default=list), "an expression as default is not supported"),
        (
            lambda: fields.StringField(length=3),
            "fields.StringField takes default, alias, .* and nothing else",
        ),
        (lambda: fields.DateField(*[None] * 6), "fields.DateField takes default, alias, .* and nothing else"),
        (
            lambda: fields.DateTimeField(*[None] * 7),
            "fields.DateTimeField takes default, alias, .* and nothing else",
        ),
        (lambda: fields.Enum8Field(None), r"fields.Enum8Field is not supported: write a Column"),
        (lambda: fields.IPv4Field, r"fields.IPv4Field is not supported: write a Column"),
    ],
)
def test_what_a_sync_cannot_keep_to_is_refused_by_name(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_fields_take_the_arguments_that_are_known():
    string = fields.StringField()
    assert fields.NullableField(string, "none").default == "none"
    assert fields.ArrayField(fields.UInt8Field(), default=[2]).default == [2]
    assert fields.LowCardinalityField(fields.StringField("x")).default == "x"
    assert fields.DateTimeField(timezone="Europe/Berlin").type == "DateTime('Europe/Berlin')"
    assert fields.DateTime64Field().type == "DateTime64(6)"
    assert fields.DateTime64Field(timezone="UTC", precision=3).type == "DateTime64(3, 'UTC')"
    assert [fields.Decimal32Field(2).type, fields.Decimal64Field(2).type, fields.Decimal128Field(2).type] == [
        "Decimal(9, 2)",
        "Decimal(18, 2)",
        "Decimal(38, 2)",
    ]


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        (
            "write_db_aliases",
            ("secondary",),
            "name the database of CLICKHOUSE_DATABASES: database = 'default'",
        ),
        ("migrate_replicated_db_aliases", ("default",), "`oncehouse sync apply` changes the table"),
        ("sync_lock_timeout", 50, "loses its lease after sync_lease seconds"),
        ("table_name", classmethod(lambda _: "visits"), "name the table: table = 'visits'"),
        ("get_sync_query_set", classmethod(lambda *_: None), "override get_sync_queryset"),
    ],
)
def test_attributes_that_would_have_no_effect_are_refused(name, value, advice):
    with pytest.raises(
        ConfigurationError, match=f"Visit.{name} has no effect on a sync; leave it out: .*{advice}"
    ):
        type("Visit", (ClickHouseModel,), {name: value})
    assert "Visit" not in [sync.__name__ for sync in _registered]


def test_fields_and_engines_of_the_old_packages_are_refused():
    old = type("StringField", (), {"__module__": "infi.clickhouse_orm.fields"})
    with pytest.raises(
        ConfigurationError, match=r"Visit.name comes from infi.clickhouse_orm.fields.*import it from"
    ):
        type("Visit", (ClickHouseModel,), {"name": old()})
