"""The former name of `oncehouse.sync.django.compat`, kept until 0.4."""

from warnings import warn

from oncehouse.sync.django.compat import *  # noqa: F403

warn(
    "oncehouse.sync.django.moving is now oncehouse.sync.django.compat; the old name goes with version 0.4.",
    DeprecationWarning,
    stacklevel=2,
)
