"""The tables in ClickHouse, made where the models' own tables are made."""

from __future__ import annotations

from django.db import migrations

from oncehouse.sync.django.operations import SyncTable


class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial"), ("oncehouse_sync", "0001_sync")]
    operations = [
        SyncTable("shop.clickhouse_models.CustomerSync"),
        SyncTable("shop.clickhouse_models.OrderSync"),
        SyncTable("shop.clickhouse_models.TagSync"),
    ]
