"""`ModelSync`: what a user declares of a sync, and the steps of a round that a user may override.

The names are those that users of django-clickhouse know. All steps are class methods, called by `rounds/round.py` in
this order: `pre_sync`, `get_sync_objects`, `get_insert_batch`, `insert_batch`, then `post_sync`, or `post_sync_failed`.
Reading the model is a framework's part (`sync/django/`, `sync/sqlalchemy/`): the methods that raise here.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from oncehouse.common.backoff import Backoff
from oncehouse.errors import ConfigurationError
from oncehouse.sync.changes.change import Operation, read_key
from oncehouse.sync.changes.storage_factory import choose_storage
from oncehouse.sync.model.declaration import Declaration, ModelSource, declare
from oncehouse.sync.model.engines import Engine as TableEngine
from oncehouse.sync.model.engines import Replacing, Row
from oncehouse.sync.model.read_columns import ReadColumn
from oncehouse.sync.model.serializer import Serializer, row_of
from oncehouse.sync.settings import BY_CDC, SyncSettings, clickhouse_config

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlalchemy import Engine

    from oncehouse.clickhouse.client import Client
    from oncehouse.clickhouse.table_info import TableFacts
    from oncehouse.sync.changes.storage import OperationStorage
    from oncehouse.sync.model.copy_columns import CopiedRows
    from oncehouse.sync.model.declaration import WalTable

LONGEST_BACKOFF_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class SyncRunResult:
    """What a run did."""

    sync: str
    held_elsewhere: bool = False
    """Another process is at it; nothing was done here."""
    rounds: int = 0
    operations: int = 0
    rows: int = 0


_registered: list[type[ModelSync]] = []


class ModelSync:
    """Declare a subclass for each ClickHouse table; None means what the program's settings say."""

    sync_enabled: ClassVar[bool] = False
    sync_name: ClassVar[str | None] = None
    """What operations are kept under; the class's own name. Change it and waiting operations are orphans."""
    table: ClassVar[str | None] = None
    """`table` or `database.table` in ClickHouse."""
    columns: ClassVar[Mapping[str, Any]] = {}
    """Over those that are derived from the model: another type, a further column, or None to leave one out."""
    engine: ClassVar[TableEngine] = Replacing()
    sync_batch_size: ClassVar[int | None] = None
    sync_delay: ClassVar[float | None] = None
    sync_lease: ClassVar[float | None] = None
    sync_storage: ClassVar[Any] = None
    queue: ClassVar[str | None] = None
    database: ClassVar[str | None] = None

    _read_columns: ClassVar[tuple[ReadColumn, ...] | None] = None
    _declaration: ClassVar[Declaration | None] = None
    _storage: ClassVar[OperationStorage | None] = None
    is_table_checked: ClassVar[bool] = False
    """Whether this process has found that the ClickHouse table takes the rows."""
    _table_facts: ClassVar[TableFacts | None] = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.forget()
        _registered.append(cls)

    # What a framework gives.

    @classmethod
    def is_declared(cls) -> bool:
        """Whether the class names a model; others are bases of such."""
        return False

    @classmethod
    def describe_source(cls) -> ModelSource:
        raise NotImplementedError

    @classmethod
    def derive_columns(cls) -> tuple[ReadColumn, ...]:
        """The model's columns, changed by those of the class."""
        raise NotImplementedError

    @classmethod
    def serializer_class(cls) -> type[Serializer] | None:
        """What makes rows of objects, where the user has one."""
        raise NotImplementedError

    @classmethod
    def read_settings(cls) -> SyncSettings:
        raise NotImplementedError

    @classmethod
    def open_source(cls) -> Engine:
        """The database that has the model's rows and the tables of model sync; its writing side."""
        raise NotImplementedError

    @classmethod
    def get_sync_objects(cls, operations: Sequence[Operation]) -> Iterable[Any]:
        """What the database has now for the keys of these operations; keys that have nothing are deleted.

        Objects where there is a serializer, else rows.
        """
        raise NotImplementedError

    @classmethod
    def describe_wal_table(cls) -> WalTable:
        """What of the model's rows the database's log has, for a sync that the pipeline feeds."""
        raise NotImplementedError

    @classmethod
    def list_keys(cls, after: str | None, limit: int) -> list[str]:
        """The model's keys behind this one, in the database's own order; fewer than `limit` are the last."""
        raise NotImplementedError

    @classmethod
    def estimate_rows(cls) -> int:
        """About how many rows the model has; of large tables what the database's statistics say."""
        raise NotImplementedError

    @classmethod
    def parse_key(cls, key: str) -> tuple[Any, ...]:
        """The values of a key as the model has them."""
        return read_key(key)

    @classmethod
    def release_connections(cls) -> None:
        """Called after each run, in the thread that made it."""

    # What rounds ask and users override.

    @classmethod
    def model_columns(cls) -> tuple[ReadColumn, ...]:
        if cls._read_columns is None:
            cls._read_columns = cls.derive_columns()
        return cls._read_columns

    @classmethod
    def read_column(cls, name: str) -> ReadColumn | None:
        return next((column for column in cls.model_columns() if column.name == name), None)

    @classmethod
    def declaration(cls) -> Declaration:
        if cls._declaration is None:
            own = {
                "table": cls.table,
                "batch_size": cls.sync_batch_size,
                "delay_seconds": cls.sync_delay,
                "lease_seconds": cls.sync_lease,
                "storage": cls.sync_storage,
                "queue": cls.queue,
                "database": cls.database,
            }
            cls._declaration = declare(
                name=cls.sync_name or cls.__name__,
                source=cls.describe_source(),
                engine=cls.engine,
                own=own,
                settings=cls.read_settings(),
            )
        return cls._declaration

    @classmethod
    def forget(cls) -> None:
        """What was read of the class and the settings, to be read again."""
        cls._declaration = cls._storage = cls._read_columns = None
        cls.is_table_checked, cls._table_facts = False, None

    @classmethod
    def is_by_cdc(cls) -> bool:
        """Whether the pipeline feeds the table from the database's log; then nothing is captured and no round runs."""
        return isinstance(cls.sync_storage, str) and cls.sync_storage == BY_CDC

    @classmethod
    def is_captured(cls) -> bool:
        """Whether changes of the model are written down as operations."""
        return cls.sync_enabled and not cls.is_by_cdc()

    @classmethod
    def get_storage(cls) -> OperationStorage:
        if cls._storage is None:
            cls._storage = choose_storage(cls.declaration().storage, cls.read_settings())
        return cls._storage

    @classmethod
    def open_clickhouse(cls) -> Client:
        from oncehouse.clickhouse.client import connect

        return connect(clickhouse_config(cls.read_settings(), cls.declaration().database), None)

    @classmethod
    def describe_table(cls) -> TableFacts | None:
        """What the table was when this process first asked."""
        from oncehouse.clickhouse.table_info import describe_table

        if cls._table_facts is None:
            cls._table_facts = describe_table(cls.open_clickhouse(), cls.declaration().table)
        return cls._table_facts

    @classmethod
    def need_sync(cls) -> bool:
        """Whether a run is due: captured, and `sync_delay` since the last began, longer after failures."""
        from oncehouse.sync.state import read_sync_state

        if not cls.is_captured():
            return False
        declared = cls.declaration()
        state = read_sync_state(cls.open_source(), declared.name)
        if state.started_seconds_ago is None:
            return True
        wait = declared.delay_seconds
        if state.failures:
            backoff = Backoff(base_seconds=max(1.0, wait), longest_seconds=max(LONGEST_BACKOFF_SECONDS, wait))
            wait = backoff.wait_seconds(state.failures, jitter=1.0)
        return state.started_seconds_ago >= wait

    @classmethod
    def has_own(cls, base: type[ModelSync], *names: str) -> bool:
        """Whether these class methods are those of the base: no step of the user's own stands in their place."""
        return all(
            getattr(getattr(cls, name), "__func__", None) is getattr(base, name).__func__ for name in names
        )

    @classmethod
    def read_block(cls, keys: Sequence[str]) -> CopiedRows | None:  # noqa: ARG003 - a framework's part
        """The rows of these keys as columns, where that is the same as what the steps would give; else None."""
        return None

    @classmethod
    def get_insert_batch(cls, objects: Iterable[Any]) -> Iterable[Row]:
        """A row for each object, with the values of the declared columns in their order."""
        chosen = cls.serializer_class()
        if chosen is None:
            return objects
        serializer = chosen(cls)
        try:
            return [row_of(serializer.serialize(one), serializer.names) for one in objects]
        finally:
            if isinstance(objects, Generator):
                # A serializer that raised must not keep the connection.
                objects.close()

    @classmethod
    def insert_batch(cls, batch: pa.RecordBatch, *, token: str) -> None:
        """One INSERT of one block; repeated under the same token it adds nothing."""
        from oncehouse.messaging.clickhouse_handler import send_rows

        send_rows(cls.open_clickhouse(), cls.declaration().table, batch, token=token)

    @classmethod
    def pre_sync(cls) -> None:
        """Before each round."""

    @classmethod
    def post_sync(cls, rows: int) -> None:
        """After a round whose rows are in ClickHouse and whose operations are removed."""

    @classmethod
    def post_sync_failed(cls, error: Exception) -> None:
        """After a round that failed; not after a process that was killed. The error is raised again afterwards."""

    @classmethod
    def sync_batch_from_storage(cls) -> SyncRunResult:
        """Rounds until nothing waits. Several processes may call it: one works, the others come back at once."""
        raise NotImplementedError


def list_captured() -> list[type[ModelSync]]:
    """Every class whose changes are written down: another list means that other changes have to be noticed."""
    return [sync for sync in _registered if sync.sync_enabled and sync.sync_storage != BY_CDC]


def registered_syncs() -> list[type[ModelSync]]:
    """Every declared sync that has been imported, in that order."""
    found: dict[str, type[ModelSync]] = {}
    for sync in _registered:
        if not sync.is_declared():
            continue
        name = sync.sync_name or sync.__name__
        if name in found:
            raise ConfigurationError(
                f"{_place(found[name])} and {_place(sync)} both call themselves {name}: their operations could not be "
                "distinguished. Give one of them a sync_name of its own."
            )
        found[name] = sync
    return list(found.values())


def _place(sync: type[ModelSync]) -> str:
    return f"{sync.__module__}.{sync.__qualname__}"
