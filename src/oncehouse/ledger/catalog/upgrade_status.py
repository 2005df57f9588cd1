"""How a catalog stands to this oncehouse: its version, the steps it lacks, who works with it and who upgraded it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select

from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.migrations import read_version, steps_after
from oncehouse.ledger.catalog.schema import VERSION, leases, upgrades
from oncehouse.ledger.models import format_holder

_FIRST_REMEMBERED = 2


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process that works with the catalog, for whichever pipeline."""

    pipeline: str
    stage: str
    holder: str


@dataclass(frozen=True, kw_only=True)
class Upgraded:
    version: int
    oncehouse: str
    upgraded_at: float


@dataclass(frozen=True, kw_only=True)
class MissingStep:
    version: int
    what: str
    fences: bool


@dataclass(frozen=True, kw_only=True)
class Standing:
    version: int
    """0: there is no catalog."""
    wanted: int
    """The version of this oncehouse."""
    steps: tuple[MissingStep, ...]
    holders: tuple[Holder, ...]
    history: tuple[Upgraded, ...]


def read_standing(catalog: Catalog) -> Standing:
    """A catalog of any version that this oncehouse knows, as it is."""
    with catalog.read() as connection:
        version = read_version(connection)
        held = (
            select(leases.c.pipeline, leases.c.stage, leases.c.holder)
            .where(leases.c.expires_at > catalog.clock)
            .order_by(leases.c.pipeline, leases.c.stage)
        )
        steps_done = select(upgrades).order_by(upgrades.c.version)
        holders = connection.execute(held).all() if version else ()
        history = connection.execute(steps_done).all() if version >= _FIRST_REMEMBERED else ()
    return Standing(
        version=version,
        wanted=VERSION,
        steps=tuple(
            MissingStep(version=step.version, what=step.what, fences=step.fences)
            for step in steps_after(version)
            if version
        ),
        holders=tuple(
            Holder(pipeline=row.pipeline, stage=row.stage, holder=format_holder(row.holder))
            for row in holders
        ),
        history=tuple(
            Upgraded(version=row.version, oncehouse=row.oncehouse, upgraded_at=row.upgraded_at)
            for row in history
        ),
    )
