"""The app's name and label."""

from __future__ import annotations

from django.apps import AppConfig


class MessagingConfig(AppConfig):
    name = "oncehouse.messaging.django"
    label = "oncehouse_messaging"
    verbose_name = "Outbox and inbox"
