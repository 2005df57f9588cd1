"""The app's name and label."""

from __future__ import annotations

from django.apps import AppConfig


class OutboxConfig(AppConfig):
    name = "oncehouse.messaging.django"
    label = "oncehouse_outbox"
    verbose_name = "Outbox and inbox"
