"""The status of change data capture: connectors, replication slots, and problems that need attention.

The database is read even if Kafka Connect is unavailable: that is when slots grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from oncehouse.errors import OncehouseError
from oncehouse.messaging.cdc.connect_client import ConnectClient, ConnectorState
from oncehouse.messaging.cdc.connector_config import slot_of
from oncehouse.messaging.cdc.replication_slots import (
    ServerState,
    SlotLimits,
    SlotReport,
    evaluate_slot,
    read_server,
    read_slots,
)
from oncehouse.messaging.cdc.settings import CdcSettings


@dataclass(frozen=True, kw_only=True)
class CdcStatus:
    connectors: tuple[ConnectorState, ...]
    slots: tuple[SlotReport, ...]
    server: ServerState
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def read_status(connection: Connection, client: ConnectClient, settings: CdcSettings) -> CdcStatus:
    limits = SlotLimits(
        lag_bytes=settings.lag_limit, full_share=settings.full_share, disk_bytes=settings.wal_disk
    )
    server = read_server(connection)
    slots = tuple(evaluate_slot(slot, server, limits) for slot in read_slots(connection))
    unavailable: tuple[str, ...] = ()
    connectors: tuple[ConnectorState, ...] = ()
    try:
        connectors = list_connectors(client)
    except OncehouseError as error:
        unavailable = (str(error),)
    return CdcStatus(
        connectors=connectors,
        slots=slots,
        server=server,
        problems=(*unavailable, *find_problems(connectors, slots)),
        notes=tuple(dict.fromkeys(note for report in slots for note in report.notes)),
    )


def list_connectors(client: ConnectClient) -> tuple[ConnectorState, ...]:
    """Debezium's connectors for PostgreSQL, with their slots."""
    found: list[ConnectorState] = []
    for name in client.list_names():
        slot = slot_of(client.read_config(name) or {})
        if slot is not None:
            state = client.read_state(name) or ConnectorState(name=name, state="UNASSIGNED", tasks=())
            found.append(replace(state, slot=slot))
    return tuple(found)


def find_problems(connectors: Sequence[ConnectorState], slots: Sequence[SlotReport]) -> tuple[str, ...]:
    """Problems that need attention, connectors first."""
    problems = []
    known = {report.slot.name for report in slots}
    for one in connectors:
        if one.failed:
            problems.append(f"connector {one.name} failed: {one.problem}")
        elif not one.running:
            problems.append(
                f"connector {one.name} is not running: it is {one.state} with {len(one.tasks)} tasks"
            )
        if one.slot is not None and one.slot not in known:
            problems.append(
                f"connector {one.name}: the database has no slot {one.slot}; it was never created, or was dropped and "
                "changes since then are lost"
            )
    problems += [f"slot {report.slot.name}: {problem}" for report in slots for problem in report.problems]
    return tuple(problems)
