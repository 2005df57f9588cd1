"""Django set up for a command that is not Django's own, and the syncs of its project that a command works with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import django
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

from oncehouse.errors import ConfigurationError
from oncehouse.sync.discovery import select_captured, select_syncs
from oncehouse.sync.django.model_sync import ModelSync
from oncehouse.sync.model.model_sync import ModelSync as CoreModelSync
from oncehouse.sync.model.model_sync import registered_syncs


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


def find_project_syncs(names: Sequence[str]) -> list[type[CoreModelSync]]:
    """The named ones; without names all."""
    return select_syncs([sync for sync in registered_syncs() if issubclass(sync, ModelSync)], names)


def choose_project_syncs(names: Sequence[str], report: Callable[[str], object]) -> list[type[CoreModelSync]]:
    """Without names those whose changes are written down."""
    chosen = select_captured(find_project_syncs(names), names)
    for line in chosen.notes:
        report(line)
    return chosen.syncs
