"""Deprecated path of version 0.1: import `MemoryBroker` from `oncehouse.messaging.consumer`."""

import warnings

from oncehouse.messaging.consumer.memory_broker import MemoryBroker

__all__ = ["MemoryBroker"]

warnings.warn("import MemoryBroker from oncehouse.messaging.consumer", DeprecationWarning, stacklevel=2)
