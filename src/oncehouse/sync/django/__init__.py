"""Model sync for Django: put `oncehouse.sync.django` into INSTALLED_APPS, run `migrate`, declare syncs in
`clickhouse_models.py` of your apps.

    from oncehouse.sync.django import ModelSync, Replacing

    class UserSync(ModelSync):
        django_model = User
        sync_enabled = True

The names below are imported when they are first asked for. Beside them `operations` (of migrations), `tasks` (of
Celery) and `compat` (the names of django-clickhouse) are public modules. Start in `model_sync.py` and `capture.py`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncehouse.sync.changes.change import Operation, OperationKind
    from oncehouse.sync.changes.storage import OperationStorage
    from oncehouse.sync.django.columns import Column
    from oncehouse.sync.django.model_sync import ModelSync
    from oncehouse.sync.django.serializers import ModelSerializer
    from oncehouse.sync.model.engines import Append, Collapsing, Replacing, VersionedCollapsing

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
]

_HOMES = {
    "Append": "model.engines",
    "Collapsing": "model.engines",
    "Column": "django.columns",
    "OperationKind": "changes.change",
    "ModelSerializer": "django.serializers",
    "ModelSync": "django.model_sync",
    "Operation": "changes.change",
    "OperationStorage": "changes.storage",
    "Replacing": "model.engines",
    "VersionedCollapsing": "model.engines",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"oncehouse.sync.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
