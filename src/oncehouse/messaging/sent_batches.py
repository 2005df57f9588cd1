"""Batches that a handler has sent and whose outcome is not known, by a key of the handler's own.

A handler in the consumer's process keeps them itself. A worker process may be killed, and the repeat may go to another
one: so each change is reported to the consumer's process, which hands all that it knows to a worker with each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class SentBatches:
    def __init__(
        self,
        known: Mapping[str, Any] | None = None,
        report: Callable[[str, Any], None] = lambda _key, _sent: None,
    ) -> None:
        """`report` is given each key with its new value, None for one that was dropped."""
        self._sent = dict(known or {})
        self._report = report

    def find(self, key: str) -> Any | None:
        return self._sent.get(key)

    def keep(self, key: str, sent: Any) -> None:
        self._report(key, sent)
        self._sent[key] = sent

    def drop(self, key: str) -> None:
        if self._sent.pop(key, None) is not None:
            self._report(key, None)
