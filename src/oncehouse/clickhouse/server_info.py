"""What the server lets its user do, where inserting once depends on it: frozen facts, read and not judged."""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from oncehouse.clickhouse.client import failure_of
from oncehouse.clickhouse.complete_results import WHOLE_ANSWERS
from oncehouse.clickhouse.error_codes import ErrorCode
from oncehouse.clickhouse.identifiers import quote_table
from oncehouse.clickhouse.insert.repeatable_block import insert_settings
from oncehouse.clickhouse.preflight.grants import writer_grants
from oncehouse.errors import ConfigurationError, PermanentError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oncehouse.clickhouse.client import Client
    from oncehouse.clickhouse.preflight.requirements import Needs


@dataclass(frozen=True, kw_only=True)
class ForcedSetting:
    """A setting of the user's profile that inserts need otherwise and may not change."""

    name: str
    value: str
    wanted: str = ""


@dataclass(frozen=True, kw_only=True)
class ServerFacts:
    version: str
    user: str
    missing_grants: tuple[str, ...]
    """Grants that the user lacks, as they stand in a GRANT statement."""
    forced_settings: tuple[ForcedSetting, ...]
    reads_uuids_in_order: bool | None
    """UUIDs sent as 16 bytes arrive as the text they stand for; None when the user may not try it out."""
    excess_grants: tuple[str, ...] = ()
    """Grants that loading never needs, and that a stolen password would hand over."""
    readonly: str = "0"
    """The profile's `readonly`: with anything but 0 the user cannot insert."""


def read_server(client: Client, needs: Needs) -> ServerFacts:
    table = quote_table(needs.table)
    return ServerFacts(
        version=client.server_version(),
        user=client.config.user,
        missing_grants=tuple(
            grant.right
            for grant in writer_grants(needs, on=table)
            if not is_granted(client, grant.right, unknown=True)
        ),
        excess_grants=tuple(
            grant for grant in _grants_to_leave_out(table) if is_granted(client, grant, unknown=False)
        ),
        forced_settings=read_forced_settings(
            client,
            {name: str(value) for name, value in {**WHOLE_ANSWERS, **insert_settings("")}.items()},
        ),
        reads_uuids_in_order=_reads_uuids_in_order(client),
        readonly=read_readonly(client),
    )


def _grants_to_leave_out(table: str) -> tuple[str, ...]:
    return (
        f"DROP TABLE ON {table}",
        f"TRUNCATE ON {table}",
        f"ALTER DELETE ON {table}",
        f"ALTER UPDATE ON {table}",
        "CREATE USER ON *.*",
        "ROLE ADMIN ON *.*",
    )


def is_granted(client: Client, grant: str, *, unknown: bool) -> bool:
    """`unknown` is the answer for a server that does not know the statement yet: found out on the way."""
    try:
        return client.command(f"CHECK GRANT {grant}") == 1
    except PermanentError as error:
        if failure_of(error).code == ErrorCode.SYNTAX_ERROR:
            return unknown
        raise


def read_readonly(client: Client) -> str:
    rows = client.query("SELECT value FROM system.settings WHERE name = 'readonly'")
    return str(rows[0][0]) if rows else "0"


def read_forced_settings(client: Client, wanted: Mapping[str, str]) -> tuple[ForcedSetting, ...]:
    """Of the settings that are wanted: those that the server knows, has otherwise, and does not let the user set."""
    rows = client.query(
        "SELECT name, value, readonly, toString(min), toString(max), disallowed_values FROM system.settings "
        "WHERE name IN {names:Array(String)} ORDER BY name",
        {"names": list(wanted)},
    )
    return tuple(
        ForcedSetting(name=name, value=value, wanted=wanted[name])
        for name, value, readonly, least, most, disallowed in rows
        if value != wanted[name] and (readonly or _is_outside(wanted[name], least, most, disallowed))
    )


def _is_outside(value: str, least: str | None, most: str | None, disallowed: Sequence[str]) -> bool:
    if value in disallowed:
        return True
    if not value.isdigit():
        return False
    below = least is not None and least.isdigit() and int(value) < int(least)
    return below or (most is not None and most.isdigit() and int(value) > int(most))


def _reads_uuids_in_order(client: Client) -> bool | None:
    probe = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
    sink = pa.BufferOutputStream()
    table = pa.table({"u": pa.array([probe.bytes], pa.binary(16))})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    text = base64.b64encode(sink.getvalue()).decode()
    try:
        rows = client.query(
            "SELECT toString(u) FROM format(ArrowStream, 'u UUID', base64Decode({arrow:String}))",
            {"arrow": text},
        )
    except PermanentError:
        return False
    except ConfigurationError:  # the table function asks for CREATE TEMPORARY TABLE, which loading does not
        return None
    return rows == [(str(probe),)]
