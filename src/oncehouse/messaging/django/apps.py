"""The app's name and label, and which Django it needs."""

from __future__ import annotations

import django
from django.apps import AppConfig

from oncehouse.errors import ConfigurationError

_OLDEST = (5, 2)


class MessagingConfig(AppConfig):
    name = "oncehouse.messaging.django"
    label = "oncehouse_messaging"
    verbose_name = "Outbox and inbox"

    def import_models(self) -> None:
        if django.VERSION[:2] < _OLDEST:
            oldest = ".".join(map(str, _OLDEST))
            raise ConfigurationError(
                f"oncehouse.messaging.django needs Django {oldest} or newer, because the inbox has a key of two "
                f"columns; this is {django.get_version()}. Model sync (oncehouse.sync.django) works with it."
            )
        super().import_models()
