"""Whom the soak kills, and when: pure, from a seed, the state of the run and the time.

Kills of everything but the driver are drawn from a deck that is shuffled once, so that every kind gets its share.
The driver is only due when it has registered new epochs since its start, a random while after that. What has no
process to kill at the moment is left in the deck and drawn later. Kills hit a pipeline that works: after a few of them
without a new epoch they pause until there is one, however slow the machine is.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

DRIVER = "driver"
SHARES = {"executor": 0.30, "python worker": 0.35, "loader": 0.15, "broker": 0.10, "clickhouse": 0.10}
"""Kinds beside the driver, and how large a share of the kills each one gets."""

# Mostly the machine's way of dying; sometimes only one half goes and the other has to notice.
_PARTS = ("whole", "whole", "whole", "whole", "python", "java")
_HAS_PARTS = (DRIVER, "loader")
# Kills come a little faster than the time asks for: some have to wait for somebody to kill.
_HASTE = 0.8
_LONGEST_AFTER_EPOCH_SECONDS = 6.0
MOST_WITHOUT_EPOCH = 4


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What was asked for."""

    seconds: float
    kills: int
    driver_kills: int


@dataclass(frozen=True, kw_only=True)
class DriverState:
    epochs: int
    """Registered since its last start."""
    last_epoch: int = 0
    """The newest of the ledger, whoever registered it."""


@dataclass(frozen=True, kw_only=True)
class Kill:
    kind: str
    part: str = "whole"
    """Of a driver or loader: the whole, or only its Python or its Java process."""


def make_deck(kills: int, rng: random.Random) -> tuple[str, ...]:
    """`kills` kinds in random order, by their shares, each at least once where there is room."""
    counts = {kind: min(1, kills // len(SHARES)) for kind in SHARES}
    while sum(counts.values()) < kills:
        behind = max(SHARES, key=lambda kind: SHARES[kind] * kills - counts[kind])
        counts[behind] += 1
    deck = [kind for kind, count in counts.items() for _ in range(count)]
    rng.shuffle(deck)
    return tuple(deck)


class Schedule:
    """Draws kills; remembers what is left of the deck and when the next one is due."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan = plan
        self._rng = random.Random(seed)
        self._deck = list(make_deck(plan.kills, self._rng))
        self._driver_left = plan.driver_kills
        self._next_at = self._gap(plan.kills)
        self._next_driver_at = 0.0
        self._ripe_at: float | None = None
        self._last_epoch = -1
        self._without_epoch = 0

    @property
    def is_done(self) -> bool:
        return not self._deck and not self._driver_left

    @property
    def left(self) -> tuple[int, int]:
        """Kills of others, and of the driver."""
        return len(self._deck), self._driver_left

    def next_kill(self, now: float, present: Collection[str], driver: DriverState) -> Kill | None:
        """What to kill at this moment, if anything. `present`: kinds of which somebody is alive."""
        if self._driver_is_due(now, present, driver):
            self._driver_left -= 1
            self._ripe_at = None
            self._next_driver_at = now + 0.5 * self._gap(self.plan.driver_kills)
            return self._kill(DRIVER)
        if driver.last_epoch != self._last_epoch:
            self._last_epoch, self._without_epoch = driver.last_epoch, 0
        if now < self._next_at or self._without_epoch >= MOST_WITHOUT_EPOCH:
            return None
        if (kind := _first_present(self._deck, present)) is None:
            return None
        self._without_epoch += 1
        self._deck.remove(kind)
        self._next_at = now + self._gap(self.plan.kills)
        return self._kill(kind)

    def put_back(self, kill: Kill) -> None:
        """It could not be done: its process was gone already."""
        if kill.kind == DRIVER:
            self._driver_left += 1
        else:
            self._deck.insert(0, kill.kind)

    def _kill(self, kind: str) -> Kill:
        return Kill(kind=kind, part=self._rng.choice(_PARTS) if kind in _HAS_PARTS else "whole")

    def choose(self, candidates: Sequence[int]) -> int:
        """One of several processes of a kind."""
        return self._rng.choice(sorted(candidates))

    def down_seconds(self) -> float:
        """How long a server stays away after its kill."""
        return self._rng.uniform(0.0, 4.0)

    def _driver_is_due(self, now: float, present: Collection[str], driver: DriverState) -> bool:
        if not self._driver_left or DRIVER not in present or driver.epochs < 1:
            self._ripe_at = None
            return False
        if self._ripe_at is None:
            # At any point of the epochs that follow, not always just after a registration.
            self._ripe_at = now + self._rng.uniform(0.0, _LONGEST_AFTER_EPOCH_SECONDS)
        return now >= max(self._ripe_at, self._next_driver_at)

    def _gap(self, kills: int) -> float:
        mean = _HASTE * self.plan.seconds / max(1, kills)
        return self._rng.uniform(0.3, 1.7) * mean


def _first_present(deck: Sequence[str], present: Collection[str]) -> str | None:
    return next((kind for kind in deck if kind in present), None)
