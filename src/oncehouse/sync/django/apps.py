"""The app: finds the syncs of all apps when Django is ready, and begins to notice changes."""

from __future__ import annotations

from django.apps import AppConfig
from django.conf import settings
from django.utils.module_loading import autodiscover_modules


class SyncConfig(AppConfig):
    name = "oncehouse.sync.django"
    label = "oncehouse_sync"
    verbose_name = "Model sync"

    def ready(self) -> None:
        from oncehouse.sync.django.capture import install

        autodiscover_modules(getattr(settings, "CLICKHOUSE_MODELS_MODULE", "clickhouse_models"))
        install()
