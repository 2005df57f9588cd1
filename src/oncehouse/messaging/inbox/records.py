"""Deprecated path of version 0.1: import `WorkerSettings` from `oncehouse.messaging`."""

import warnings

from oncehouse.messaging.inbox.types import WorkerSettings

__all__ = ["WorkerSettings"]

warnings.warn("import WorkerSettings from oncehouse.messaging", DeprecationWarning, stacklevel=2)
