"""Model sync for SQLAlchemy 2: say once where the database and ClickHouse are, then declare a sync for each class.

    from oncehouse.sync.sqlalchemy import ModelSync, configure

    configure("postgresql+psycopg://shop@localhost/shop", CLICKHOUSE_DATABASES={"default": {"db_name": "shop"}})

    class UserSync(ModelSync):
        model = User
        sync_enabled = True

The names below are imported when they are first asked for. Start in `model_sync.py` and `capture.py`.
"""

from typing import TYPE_CHECKING

from oncehouse.common.extras import lazy_exports

if TYPE_CHECKING:
    from oncehouse.sync.changes.change import Operation, OperationKind
    from oncehouse.sync.changes.storage import OperationStorage
    from oncehouse.sync.model.engines import Append, Collapsing, Replacing, VersionedCollapsing
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
    "Operation",
    "OperationKind",
    "OperationStorage",
    "Replacing",
    "VersionedCollapsing",
    "configure",
]

_HOMES = {
    "Append": "oncehouse.sync.model.engines",
    "Collapsing": "oncehouse.sync.model.engines",
    "Column": "oncehouse.sync.sqlalchemy.columns",
    "OperationKind": "oncehouse.sync.changes.change",
    "ModelSerializer": "oncehouse.sync.sqlalchemy.serializers",
    "ModelSync": "oncehouse.sync.sqlalchemy.model_sync",
    "Operation": "oncehouse.sync.changes.change",
    "OperationStorage": "oncehouse.sync.changes.storage",
    "Replacing": "oncehouse.sync.model.engines",
    "VersionedCollapsing": "oncehouse.sync.model.engines",
    "configure": "oncehouse.sync.sqlalchemy.sources",
}

__getattr__, __dir__ = lazy_exports(__name__, _HOMES, extra="sync")
