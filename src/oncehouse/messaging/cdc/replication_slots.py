"""How much of its log a database keeps for its replication slots, how much space is left, and when that is a problem.

A slot that is not read, or not fast enough, keeps the log until the disk is full or, with max_slot_wal_keep_size, until
the slot is invalidated and changes are lost. Reading is SQL; the evaluation is pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, text

from oncehouse.common.formatting import format_bytes, format_elapsed

_NOW = "CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END"
_LIST_SLOTS = text(
    f"SELECT slot_name, active, wal_status, pg_wal_lsn_diff({_NOW}, confirmed_flush_lsn)::bigint AS lag, "  # noqa: S608
    f"pg_wal_lsn_diff({_NOW}, restart_lsn)::bigint AS kept, safe_wal_size "
    "FROM pg_replication_slots WHERE slot_type = 'logical' AND NOT temporary ORDER BY slot_name"
)
_READ_SERVER = text(
    "SELECT (SELECT setting::bigint << 20 FROM pg_settings WHERE name = 'max_slot_wal_keep_size') AS keep_limit, "
    "has_function_privilege('pg_ls_waldir()', 'execute') AS may_list, "
    "(SELECT wal_bytes / greatest(extract(epoch FROM now() - stats_reset), 1) FROM pg_stat_wal) AS pace"
)
_SUM_LOG = text("SELECT coalesce(sum(size), 0)::bigint FROM pg_ls_waldir()")

_UNBOUNDED = (
    "nothing limits the log that is kept: set max_slot_wal_keep_size in the database, or cdc.wal_disk so that this "
    "command can say how much space is left"
)


@dataclass(frozen=True, kw_only=True)
class SlotState:
    name: str
    active: bool
    wal_status: str
    """`reserved`, `extended`, `unreserved` or `lost`."""
    lag_bytes: int | None
    """Log that its reader has not confirmed."""
    kept_bytes: int | None
    """Log that the server keeps because of it."""
    safe_bytes: int | None
    """Log that may still be written before the slot can be invalidated; None without a limit."""


@dataclass(frozen=True, kw_only=True)
class ServerState:
    keep_limit_bytes: int | None
    """max_slot_wal_keep_size; None if unlimited."""
    log_bytes: int | None
    """The size of the log on disk; None without permission to read it (pg_monitor has it)."""
    bytes_per_second: float
    """How fast the log has grown since the server's statistics began."""


@dataclass(frozen=True, kw_only=True)
class SlotLimits:
    lag_bytes: int
    full_share: float
    disk_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class SlotReport:
    slot: SlotState
    room_bytes: int | None
    """Log that may still be written; None if no limit is known."""
    used_share: float | None
    full_in_seconds: float | None
    """When the space is used up if the slot does not advance, at the log's average rate so far."""
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()


def read_slots(connection: Connection) -> tuple[SlotState, ...]:
    return tuple(
        SlotState(
            name=row.slot_name,
            active=row.active,
            wal_status=row.wal_status or "lost",
            lag_bytes=row.lag,
            kept_bytes=row.kept,
            safe_bytes=row.safe_wal_size,
        )
        for row in connection.execute(_LIST_SLOTS)
    )


def read_server(connection: Connection) -> ServerState:
    row = connection.execute(_READ_SERVER).one()
    return ServerState(
        keep_limit_bytes=row.keep_limit if row.keep_limit >= 0 else None,
        log_bytes=connection.execute(_SUM_LOG).scalar_one() if row.may_list else None,
        bytes_per_second=float(row.pace or 0),
    )


def evaluate_slot(slot: SlotState, server: ServerState, limits: SlotLimits) -> SlotReport:
    headroom, share = _measure_headroom(slot, server, limits)
    seconds = (
        headroom / server.bytes_per_second if headroom is not None and server.bytes_per_second > 0 else None
    )
    problems = []
    if slot.wal_status == "lost":
        problems.append(
            "the database has discarded log that this slot had not read: changes are lost. Drop the slot, "
            "and take a new snapshot with a new prefix"
        )
    elif slot.wal_status == "unreserved":
        problems.append(
            "the next checkpoint may discard log that this slot has not read; make sure that its reader runs"
        )
    if not slot.active:
        problems.append(
            "it has no reader: start its connector, or drop the slot if it is not needed any more"
        )
    if slot.kept_bytes is not None and slot.kept_bytes > limits.lag_bytes:
        problems.append(
            f"the database keeps {format_bytes(slot.kept_bytes)} of log for it, more than cdc.lag_limit "
            f"({format_bytes(limits.lag_bytes)})"
        )
    if share is not None and headroom is not None and share >= limits.full_share:
        problems.append(
            f"{share:.0%} of the space for the log is used; {_describe_end(headroom, seconds, server)}"
        )
    return SlotReport(
        slot=slot,
        room_bytes=headroom,
        used_share=share,
        full_in_seconds=seconds,
        problems=tuple(problems),
        notes=_notes(headroom),
    )


def _measure_headroom(
    slot: SlotState, server: ServerState, limits: SlotLimits
) -> tuple[int | None, float | None]:
    """The space left and the used share, by the smaller of the server's limit and the disk."""
    headrooms: list[tuple[int, float]] = []
    if server.keep_limit_bytes is not None and slot.safe_bytes is not None:
        headrooms.append((max(slot.safe_bytes, 0), _share(slot.kept_bytes or 0, server.keep_limit_bytes)))
    used = server.log_bytes if server.log_bytes is not None else slot.kept_bytes
    if limits.disk_bytes is not None and used is not None:
        headrooms.append((max(limits.disk_bytes - used, 0), _share(used, limits.disk_bytes)))
    return min(headrooms) if headrooms else (None, None)


def _share(used: int, whole: int) -> float:
    return used / whole if whole > 0 else 1.0


def _describe_end(headroom: int, seconds: float | None, server: ServerState) -> str:
    what = (
        "the disk is full"
        if server.keep_limit_bytes is None
        else "the slot is invalidated and changes are lost"
    )
    when = f", in about {format_elapsed(seconds)} at the current rate" if seconds is not None else ""
    return f"after {format_bytes(headroom)} more {what}{when}"


def _notes(headroom: int | None) -> tuple[str, ...]:
    return (_UNBOUNDED,) if headroom is None else ()
