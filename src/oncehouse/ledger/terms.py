"""What this process knows of the lease terms that it has held: the floor under which the catalog must never be.

A catalog whose last transactions are gone (a standby that was promoted without them, a file restored from a copy)
counts fewer writes than its process has seen confirmed, or has a lower token or another holder under the same one.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from oncehouse.ledger.records import Stage


@dataclass(kw_only=True)
class Term:
    """One holding of a lease; its writes change under the catalog's lock of the stage, its mark under its own."""

    holder: str
    writes: int
    """The stage's confirmed writes, those of earlier terms included."""
    marked: int = -1
    """As many of them as stand in the mark outside of the catalog."""
    marking: threading.Lock = field(default_factory=threading.Lock)


class Terms:
    def __init__(self) -> None:
        self._known: dict[tuple[Stage, int], Term] = {}

    def begin(self, stage: Stage, token: int, *, holder: str, writes: int) -> None:
        self._known[stage, token] = Term(holder=holder, writes=writes)

    def find(self, stage: Stage, token: int) -> Term | None:
        return self._known.get((stage, token))

    def newest(self, stage: Stage) -> tuple[int, int]:
        """The highest token that this process has held, and the writes that it knows of; nothing held: zeros."""
        mine = [(token, term.writes) for (of, token), term in list(self._known.items()) if of is stage]
        return max(mine, default=(0, 0))
