"""Model sync for SQLAlchemy 2: say once where the database and ClickHouse are, then declare a sync for each class.

    from oncehouse.sync.sqlalchemy import ModelSync, configure

    configure("postgresql+psycopg://shop@localhost/shop", CLICKHOUSE_DATABASES={"default": {"db_name": "shop"}})

    class UserSync(ModelSync):
        model = User
        sync_enabled = True

The names below are imported when they are first asked for. Start in `model_sync.py` and `capture.py`.
"""

from typing import TYPE_CHECKING, Any

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
    "Append": "model.engines",
    "Collapsing": "model.engines",
    "Column": "sqlalchemy.columns",
    "OperationKind": "changes.change",
    "ModelSerializer": "sqlalchemy.serializers",
    "ModelSync": "sqlalchemy.model_sync",
    "Operation": "changes.change",
    "OperationStorage": "changes.storage",
    "Replacing": "model.engines",
    "VersionedCollapsing": "model.engines",
    "configure": "sqlalchemy.sources",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"oncehouse.sync.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
