"""Steps that bring the catalog of an older oncehouse to today's tables: numbered, forward only, one transaction.

A step that a release has had is never changed again, so it spells its columns itself instead of taking those of
`schema.py`, which are today's. It only adds (tables, indexes, columns that may be null), so that a process of an older
oncehouse can go on next to it; a step that such a process cannot live with says `fences`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Float,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.types import TypeEngine

from oncehouse import __version__
from oncehouse.common import failpoints
from oncehouse.common.database import DatabaseClock
from oncehouse.errors import ConfigurationError, UpgradeNeededError
from oncehouse.ledger.catalog.schema import VERSION, leases, ledger_version, metadata, upgrades

# Waits for a table with a long reader are short, because every other statement on it waits behind ours.
_LOCK_SECONDS = 5


@dataclass(frozen=True, kw_only=True)
class Step:
    version: int
    """The one that it leads to."""
    what: str
    """As people read it."""
    change: Callable[[Connection], None]
    fences: bool = False
    """Whether processes of an older oncehouse, which may be at work, must not write any more."""


@dataclass(frozen=True, kw_only=True)
class Upgrade:
    """A catalog that was brought from one version to another."""

    before: int
    after: int


def _add_upgrades(connection: Connection) -> None:
    Table(
        "oncehouse_upgrades",
        MetaData(),
        Column("version", Integer, primary_key=True, autoincrement=False),
        Column("oncehouse", String(64), nullable=False),
        Column("upgraded_at", Float(53), nullable=False),
    ).create(connection, checkfirst=True)


def _prepare_rules(connection: Connection) -> None:
    add_column(connection, "oncehouse_pipelines", "rule", Text())
    Table(
        "oncehouse_rekeyed_files",
        MetaData(),
        Column("pipeline", String(64)),
        Column("key_file", String(64)),
        Column("request", BigInteger, nullable=False),
        Column("events", BigInteger, nullable=False),
        Column("keys_path", String(255)),
        Column("keys_bytes", BigInteger),
        Column("keys_checksum", String(80)),
        Column("keys_row", BigInteger),
        PrimaryKeyConstraint("pipeline", "key_file"),
    ).create(connection, checkfirst=True)
    Table(
        "oncehouse_rekeyed_segments",
        MetaData(),
        Column("pipeline", String(64)),
        Column("segment", String(64)),
        Column("request", BigInteger, nullable=False),
        Column("bucket_from", Integer, nullable=False),
        Column("bucket_to", Integer, nullable=False),
        Column("keys_total", BigInteger, nullable=False),
        Column("first_seen_from", Float(53), nullable=False),
        Column("first_seen_to", Float(53), nullable=False),
        Column("file_path", String(255), nullable=False),
        Column("file_bytes", BigInteger, nullable=False),
        Column("file_checksum", String(80), nullable=False),
        Column("file_row", BigInteger, nullable=False),
        PrimaryKeyConstraint("pipeline", "segment"),
    ).create(connection, checkfirst=True)


def add_column(connection: Connection, table: str, column: str, kind: TypeEngine[Any]) -> None:
    """A column that may be null: rows of older processes have none."""
    if column not in {found["name"] for found in inspect(connection).get_columns(table)}:
        type_name = kind.compile(dialect=connection.dialect)
        connection.execute(text(f"ALTER TABLE {table} ADD COLUMN {column} {type_name}"))


def _add_leader_epochs(connection: Connection) -> None:
    """Of ranges, not of positions: an older oncehouse that goes on adds ranges without one, which says so."""
    add_column(connection, "oncehouse_ranges", "leader_epoch", Integer())


def _index_open_dead_letters(connection: Connection) -> None:
    connection.execute(
        text(
            "CREATE INDEX IF NOT EXISTS oncehouse_dead_letter_files_open "
            "ON oncehouse_dead_letter_files (pipeline, kind, epoch) WHERE tried_in_epoch IS NULL"
        )
    )


def _count_writes(connection: Connection) -> None:
    add_column(connection, "oncehouse_leases", "writes", BigInteger())


def _count_blocks(connection: Connection) -> None:
    add_column(connection, "oncehouse_attempts", "block_count", String(64))


STEPS: tuple[Step, ...] = (
    Step(
        version=2,
        what="the catalog remembers which oncehouse brought it to which version",
        change=_add_upgrades,
        # From here on files of events are written in a form that 0.1.0 cannot read.
        fences=True,
    ),
    Step(
        version=3,
        what="another identity rule is prepared while the pipeline runs",
        change=_prepare_rules,
    ),
    Step(
        version=4,
        what="open dead letters are found by an index",
        change=_index_open_dead_letters,
    ),
    Step(
        version=5,
        what="ranges of offsets carry the leader epoch of Kafka's log",
        change=_add_leader_epochs,
    ),
    Step(
        version=6,
        what="the writes of each stage are counted, so that a catalog that has lost some is noticed",
        change=_count_writes,
    ),
    Step(
        version=7,
        what="an attempt remembers how many blocks its table had taken",
        change=_count_blocks,
    ),
)


def read_version(connection: Connection) -> int:
    """0: there is no catalog."""
    if not inspect(connection).has_table(ledger_version.name):
        return 0
    return int(connection.execute(select(ledger_version.c.version)).scalar() or 0)


def steps_after(version: int) -> tuple[Step, ...]:
    return tuple(step for step in STEPS if step.version > version)


def require_version(connection: Connection, version: int) -> None:
    """Raise unless a catalog of this version is today's."""
    if version > VERSION:
        raise ConfigurationError(
            f"The ledger's catalog has version {version}, this oncehouse ({__version__}) knows up to {VERSION}. "
            f"Use {_describe_writer(connection, version)}; nothing was changed."
        )
    if version < VERSION:
        raise UpgradeNeededError(
            f"The ledger's catalog has version {version}, made by an older oncehouse; this one ({__version__}) works "
            f"with version {VERSION}. The next `oncehouse run` upgrades it, and so does `oncehouse upgrade`; until "
            "then the older oncehouse can go on. Nothing was changed."
        )


def _describe_writer(connection: Connection, version: int) -> str:
    """Read with care: whatever a newer oncehouse has made of its tables, the refusal must be reported."""
    inspector = inspect(connection)
    if inspector.has_table(upgrades.name):
        known = {column["name"] for column in inspector.get_columns(upgrades.name)}
        if {"version", "oncehouse"} <= known:
            query = select(upgrades.c.oncehouse).where(upgrades.c.version == version)
            if (name := connection.execute(query).scalar()) is not None:
                return f"oncehouse {name}, which upgraded it, or a newer one"
    return "the newer oncehouse that wrote it"


def migrate(connection: Connection) -> Upgrade | None:
    """Make the tables, or bring those of an older oncehouse to today's; None where there was nothing to upgrade.

    The caller has taken the turn (`databases.take_turn`) in a transaction that may write, so that another process
    finds either version, and never both at work.
    """
    found = read_version(connection)
    if found > VERSION:
        require_version(connection, found)
    if found == 0:
        metadata.create_all(connection)
        connection.execute(insert(ledger_version).values(name="ledger", version=VERSION))
        _remember(connection, VERSION)
        return None
    steps = steps_after(found)
    if not steps:
        return None
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'"))
    for step in steps:
        step.change(connection)
        failpoints.reach("catalog half upgraded")
        connection.execute(update(ledger_version).values(version=step.version))
    for step in steps:
        _remember(connection, step.version)
    if any(step.fences for step in steps):
        # A process that holds a lease is refused at its next write.
        connection.execute(update(leases).values(token=leases.c.token + 1))
    failpoints.reach("before the upgrade is settled")
    return Upgrade(before=found, after=steps[-1].version)


def _remember(connection: Connection, version: int) -> None:
    connection.execute(
        insert(upgrades).values(version=version, oncehouse=__version__, upgraded_at=DatabaseClock())
    )
