"""One side of the comparison of model sync with django-clickhouse: makes the changes and syncs them, when told to.

    python benchmarks/sync_worker.py oncehouse|django-clickhouse SETTINGS

Started by benchmarks/sync.py, each side with the Python of its own environment. SETTINGS is JSON with the addresses of
PostgreSQL, Redis and ClickHouse. A line of JSON comes in for each task, a line of JSON goes out when it is done.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import sync_orders

Address = dict[str, Any]
Sync = Callable[[int], None]


def set_up_oncehouse(address: Address) -> tuple[Any, Sync]:
    sync_orders.set_up(
        address["postgres"],
        "oncehouse.sync.django",
        CLICKHOUSE_DATABASES={"default": {"db_url": address["clickhouse"], "db_name": address["database"]}},
    )
    from django.db import connection, models

    from oncehouse.sync.django import ModelSync
    from oncehouse.sync.django.operations import CreateSyncTables
    from oncehouse.sync.table.ddl import apply_plan, plan_table

    model = sync_orders.define_order(models.Model)

    class OrderSync(ModelSync):
        django_model = model
        sync_enabled = True
        table = "of_oncehouse"
        # What the other side can hold.
        columns = {"placed_at": "DateTime", "paid": "UInt8", "note": "String"}  # noqa: RUF012

    with connection.schema_editor() as editor:
        CreateSyncTables().database_forwards("oncehouse_sync", editor, None, None)
        editor.create_model(model)
    apply_plan(OrderSync.open_clickhouse(), plan_table(OrderSync.open_clickhouse(), OrderSync.declaration()))

    def sync(batch_size: int) -> None:
        OrderSync.sync_batch_size = batch_size
        OrderSync.forget()
        OrderSync.sync_batch_from_storage()

    return model, sync


def set_up_django_clickhouse(address: Address) -> tuple[Any, Sync]:
    redis = urlsplit(address["redis"])
    sync_orders.set_up(
        address["postgres"],
        "django_clickhouse",
        CLICKHOUSE_DATABASES={"default": {"db_url": address["clickhouse"], "db_name": address["database"]}},
        CLICKHOUSE_REDIS_CONFIG={"host": redis.hostname, "port": redis.port, "db": 8},
        CLICKHOUSE_SYNC_BATCH_SIZE=10_000,
    )
    from django_clickhouse.clickhouse_models import ClickHouseModel
    from django_clickhouse.database import connections
    from django_clickhouse.engines import ReplacingMergeTree
    from django_clickhouse.models import ClickHouseSyncModel
    from infi.clickhouse_orm import fields

    model = sync_orders.define_order(ClickHouseSyncModel)

    class ClickHouseOrder(ClickHouseModel):
        django_model = model
        sync_enabled = True

        id = fields.UInt64Field()
        customer = fields.Int32Field()
        status = fields.StringField()
        quantity = fields.Int32Field()
        total = fields.Decimal64Field(2)
        paid = fields.UInt8Field()
        note = fields.StringField()
        placed_at = fields.DateTimeField()

        engine = ReplacingMergeTree("placed_at", ("id",), partition_key=("tuple()",))

        @classmethod
        def table_name(cls) -> str:
            return "of_django_clickhouse"

    connections["default"].create_table(ClickHouseOrder)
    storage = ClickHouseOrder.get_storage()

    def sync(batch_size: int) -> None:
        ClickHouseOrder.sync_batch_size = batch_size
        # Its own tasks would take one batch every five seconds.
        while storage.operations_count(ClickHouseOrder.get_import_key()):
            ClickHouseOrder.sync_batch_from_storage()

    return model, sync


SET_UPS = {"oncehouse": set_up_oncehouse, "django-clickhouse": set_up_django_clickhouse}


def main() -> None:
    model, sync = SET_UPS[sys.argv[1]](json.loads(sys.argv[2]))
    from django.db import connection

    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        if task["do"] == "change":
            sync_orders.fill(connection, task["changes"] * 6 // 10)
            sync_orders.change(model, task["changes"])
            done = {}
        else:
            begun, processor = time.perf_counter(), time.process_time()
            sync(task["batch_size"])
            done = {
                "seconds": time.perf_counter() - begun,
                "processor_seconds": time.process_time() - processor,
            }
        print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()
