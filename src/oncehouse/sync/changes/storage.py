"""Where operations wait until a round has synced them: one small interface, and what all storages promise.

`register` runs in the transaction of the change. `list_operations` gives committed operations, oldest first as far as
the storage knows, and lists them again until they are removed. `remove` takes exactly the listed ones: an operation
that came since then stays, even of the same key. Who may list is the caller's business (a lease).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sqlalchemy import Connection, Engine

from oncehouse.sync.changes.change import Operation, OperationKind
from oncehouse.sync.changes.register import OperationWriter


@dataclass(frozen=True, kw_only=True)
class OperationBacklog:
    count: int
    oldest_seconds: float | None
    """How long the oldest operation has waited; None where nothing waits."""


class OperationStorage(Protocol):
    def register(self, writer: OperationWriter, sync: str, kind: OperationKind, keys: Sequence[str]) -> None:
        """Have these keys synced if the writer's transaction commits."""
        ...

    def list_operations(self, connection: Connection, sync: str, limit: int) -> Sequence[Operation]:
        """At most `limit`, in the transaction of `connection`. Raises TransientError while the storage is away."""
        ...

    def remove(self, engine: Engine, sync: str, ids: Sequence[str]) -> None:
        """Of these those that are still there; may be repeated."""
        ...

    def measure(self, connection: Connection, sync: str) -> OperationBacklog: ...
