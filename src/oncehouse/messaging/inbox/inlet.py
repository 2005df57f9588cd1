"""Deprecated path of version 0.1: import `InboxEndpoint` from `oncehouse.messaging`."""

import warnings

from oncehouse.messaging.inbox.http_endpoint import InboxEndpoint as Inlet

__all__ = ["Inlet"]

warnings.warn("import InboxEndpoint from oncehouse.messaging", DeprecationWarning, stacklevel=2)
