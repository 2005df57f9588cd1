"""Model sync for Django: put `oncehouse.sync.django` into INSTALLED_APPS, run `migrate`, declare syncs in
`clickhouse_models.py` of your apps.

    from oncehouse.sync.django import ModelSync, Replacing

    class UserSync(ModelSync):
        django_model = User
        sync_enabled = True
"""

from __future__ import annotations

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
    "Replacing",
    "VersionedCollapsing",
]
