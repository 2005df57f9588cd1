"""Model sync for Django: put `oncehouse.sync.django` into INSTALLED_APPS, run `migrate`, declare syncs in
`clickhouse_models.py` of your apps.

    from oncehouse.sync.django import ModelSync, Replacing

    class UserSync(ModelSync):
        django_model = User
        sync_enabled = True

The names below are imported when they are first asked for. Besides them `operations` (of migrations), `tasks` (of
Celery) and `compat` (the names of django-clickhouse) are public modules. Start in `model_sync.py` and `capture.py`.
"""

from typing import TYPE_CHECKING

from oncehouse.common.extras import lazy_exports

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
    "Append": "oncehouse.sync.model.engines",
    "Collapsing": "oncehouse.sync.model.engines",
    "Column": "oncehouse.sync.django.columns",
    "OperationKind": "oncehouse.sync.changes.change",
    "ModelSerializer": "oncehouse.sync.django.serializers",
    "ModelSync": "oncehouse.sync.django.model_sync",
    "Operation": "oncehouse.sync.changes.change",
    "OperationStorage": "oncehouse.sync.changes.storage",
    "Replacing": "oncehouse.sync.model.engines",
    "VersionedCollapsing": "oncehouse.sync.model.engines",
}

__getattr__, __dir__ = lazy_exports(__name__, _HOMES, extra="sync")
