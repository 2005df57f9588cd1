"""What this process knows of the lease terms that it has held: the floor under which the catalog must never be.

A catalog whose last transactions are gone (a standby that was promoted without them, a file restored from a copy)
counts fewer writes than its process has seen confirmed, or has a lower token or another holder under the same one.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from oncehouse.ledger.models import Stage


@dataclass(kw_only=True)
class Term:
    """One holding of a lease; its writes change under the catalog's lock of the stage, its mark under its own."""

    token: int
    holder: str
    writes: int
    """The stage's confirmed writes, those of earlier terms included."""
    marked: int = -1
    """As many of them as stand in the mark outside of the catalog."""
    marking: threading.Lock = field(default_factory=threading.Lock)


class Terms:
    """The newest one of each stage; a writer under an older one is fenced by its token."""

    def __init__(self) -> None:
        self._newest: dict[Stage, Term] = {}

    def begin(self, stage: Stage, term: Term) -> None:
        self._newest[stage] = term

    def newest(self, stage: Stage) -> Term | None:
        return self._newest.get(stage)

    def find(self, stage: Stage, token: int) -> Term | None:
        term = self._newest.get(stage)
        return term if term is not None and term.token == token else None
