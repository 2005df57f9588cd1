"""Keys registered again by hand, so that rounds read and send their rows again: some, or all read since a time.

Operations are written in transactions of the source database, as those of changes are. What rounds then send is the
state of now, so this can be done at any time and as often as needed; only an Append table gets rows once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from oncehouse.errors import ConfigurationError
from oncehouse.messaging.database import transact
from oncehouse.sync.changes.change import OperationKind, format_key
from oncehouse.sync.changes.register import SqlAlchemyWriter
from oncehouse.sync.model.engines import Row
from oncehouse.sync.model.model_sync import ModelSync
from oncehouse.sync.rounds.round import check_captured
from oncehouse.sync.table.compare import VisibleRows
from oncehouse.sync.tables import ABSENT

_KEYS_A_TRANSACTION = 10_000


def parse_typed_key(sync: type[ModelSync], given: str) -> str:
    """A key as a person writes it: the value alone, or a JSON list of the values of a key of several columns."""
    columns = sync.declaration().key
    if given.startswith("["):
        return format_key(sync.parse_key(given))
    if len(columns) > 1:
        raise ConfigurationError(
            f"{given!r} is no key of {sync.declaration().label}: write its columns ({', '.join(columns)}) as a JSON "
            "list, such as '[\"a\", 7]'"
        )
    return format_key(sync.parse_key(format_key([given])))


def reregister_keys(sync: type[ModelSync], keys: Sequence[str]) -> int:
    """How many operations were written."""
    check_captured(sync.declaration())
    name, storage, engine = sync.declaration().name, sync.get_storage(), sync.open_source()
    for start in range(0, len(keys), _KEYS_A_TRANSACTION):
        with transact(engine, f"Sync {name}: registering keys again", absent=ABSENT) as connection:
            storage.register(
                SqlAlchemyWriter(connection),
                name,
                OperationKind.UPDATE,
                keys[start : start + _KEYS_A_TRANSACTION],
            )
    return len(keys)


def register_since(sync: type[ModelSync], since: datetime) -> int:
    """All keys that the table has a row of which was read since then, by the numbers of their readings."""
    declared = sync.declaration()
    if declared.engine.number_column() is None:
        raise ConfigurationError(
            f"Sync {declared.name}: its engine keeps no version, so which rows were read since then is unknown. Name "
            "keys, or replay all."
        )
    moment = since if since.tzinfo else since.replace(tzinfo=UTC)
    number = int(moment.timestamp() * 1_000_000)
    shown = VisibleRows(sync.open_clickhouse(), declared)
    registered, after = 0, None
    while keys := _list_since(sync, shown, after, number):
        registered += reregister_keys(sync, keys)
        after = declared.deleted_row(sync.parse_key(keys[-1]))
    return registered


def _list_since(sync: type[ModelSync], shown: VisibleRows, after: Row | None, number: int) -> list[str]:
    found = shown.list_keys(after, _KEYS_A_TRANSACTION, since=max(0, number))
    return [format_key(sync.parse_key(format_key(values))) for values in found]
