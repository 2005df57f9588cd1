"""Django set up for a command that is not Django's own."""

from __future__ import annotations

import django
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

from oncehouse.errors import ConfigurationError


def set_up() -> None:
    try:
        django.setup()
    except (ImproperlyConfigured, ImportError) as error:
        raise ConfigurationError(
            f"the Django project of DJANGO_SETTINGS_MODULE cannot be set up: {error}"
        ) from error
    if not apps.is_installed("oncehouse.sync.django"):
        raise ConfigurationError(
            "the Django project of DJANGO_SETTINGS_MODULE does not have oncehouse.sync.django among its INSTALLED_APPS"
        )
