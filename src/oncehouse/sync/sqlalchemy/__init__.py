"""Model sync for SQLAlchemy 2: say once where the database and ClickHouse are, then declare a sync for each class.

from oncehouse.sync.sqlalchemy import ModelSync, configure

configure("postgresql+psycopg://shop@localhost/shop", CLICKHOUSE_DATABASES={"default": {"db_name": "shop"}})

class UserSync(ModelSync):
    model = User
    sync_enabled = True
"""

from __future__ import annotations

from oncehouse.sync.model.engines import Append, Collapsing, Replacing, VersionedCollapsing
from oncehouse.sync.sqlalchemy.capture import install
from oncehouse.sync.sqlalchemy.columns import Column
from oncehouse.sync.sqlalchemy.model_sync import ModelSync
from oncehouse.sync.sqlalchemy.serializers import ModelSerializer
from oncehouse.sync.sqlalchemy.sources import configure

__all__ = [
    "Append",
    "Collapsing",
    "Column",
    "ModelSerializer",
    "ModelSync",
    "Replacing",
    "VersionedCollapsing",
    "configure",
]

install()
