"""How far the clocks of this machine, the catalog and ClickHouse are apart.

Leases, windows and back-off are counted on the catalog's clock alone, so a difference loses nothing; it makes
times that people compare (of events, batches and queries) lie, and a TTL on event times drop rows too early.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from oncehouse.clickhouse.client import Client
from oncehouse.clickhouse.preflight.finding import Finding, Level
from oncehouse.ledger.catalog.database import Catalog

_KEY = "max_clock_difference"


@dataclass(frozen=True, kw_only=True)
class ClockReading:
    ahead_seconds: float
    """How far the other clock is ahead of this machine's; negative when it is behind."""
    within_seconds: float
    """The reading may be wrong by this much: half of what asking took."""


def read_host_clock() -> float:
    return time.time()


def read_clocks(client: Client, catalog: Catalog) -> dict[str, ClockReading]:
    clocks: dict[str, Callable[[], float]] = {"ClickHouse": client.now, "the catalog": catalog.now}
    for ask in clocks.values():
        ask()  # the first call may open a connection, which is no part of the reading
    return {name: _read(ask) for name, ask in clocks.items()}


def _read(ask: Callable[[], float]) -> ClockReading:
    before = read_host_clock()
    answer = ask()
    after = read_host_clock()
    return ClockReading(ahead_seconds=answer - (before + after) / 2, within_seconds=(after - before) / 2)


def check_clocks(readings: Mapping[str, ClockReading], *, most_seconds: float) -> Iterator[Finding]:
    for name, reading in readings.items():
        way = "ahead of" if reading.ahead_seconds >= 0 else "behind"
        figures = (
            f"the clock of {name} is {abs(reading.ahead_seconds):.3f} s {way} this machine's (measured within "
            f"{reading.within_seconds:.3f} s), {_KEY} is {most_seconds:g} s"
        )
        if abs(reading.ahead_seconds) - reading.within_seconds > most_seconds:
            yield Finding(
                level=Level.ERROR,
                where=f"clock of {name}",
                what=figures,
                advice=f"let both machines follow one time server (NTP), or raise {_KEY}",
            )
        else:
            yield Finding(level=Level.OK, where=f"clock of {name}", what=figures)
