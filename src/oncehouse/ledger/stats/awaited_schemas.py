"""What open records wait for, in bounded memory: each file's counts are read once, and the most frequent names kept.

Records can name any number of schemas that do not exist, and there may be a hundred thousand files of them.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection, func, select

from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.dead_letters import are_open
from oncehouse.ledger.catalog.row_mappers import dead_letter_file_of
from oncehouse.ledger.catalog.schema import dead_letter_files
from oncehouse.ledger.models import DeadLetterFile, DeadLetterKind

_MOST_NAMES = 1000
# Older ledgers may hold a name for each record of a file.
_ROWS_AT_ONCE = 16


@dataclass(frozen=True, kw_only=True)
class Awaited:
    """What records wait for at one moment."""

    schemas: dict[str, int] = field(default_factory=dict)
    """Records by the schema that they wait for: the most frequent ones, those first."""
    others: int = 0
    """Records that wait for any other schema."""
    oldest: float | None = None
    """When the oldest file of them was registered; None: no record waits."""
    is_readable: bool = False
    """Whether some wait for a schema that is known."""

    def top(self, number: int) -> Awaited:
        """With so many schemas at most."""
        first = dict(list(self.schemas.items())[:number])
        return replace(
            self, schemas=first, others=self.others + sum(self.schemas.values()) - sum(first.values())
        )


class AwaitedSchemas:
    """Remembers what was read of one catalog, and reads only files that were registered since."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: frozenset[str] = frozenset()
        self._forget()

    def _forget(self) -> None:
        self._counts: Counter[str] = Counter()
        self._rows = 0
        self._files = 0
        self._newest_epoch = 0
        self._oldest: float | None = None
        self._is_readable = False

    def read(self, catalog: Catalog, *, known: frozenset[str] = frozenset()) -> Awaited:
        """`known`: schemas whose records need not wait any longer."""
        with self._lock:
            if known != self._known:
                self._known = known
                self._forget()
            with catalog.read() as connection:
                # Of epochs that were read no file is added, so that the same number means the same files.
                if self._files and self._count_files(connection, catalog) != self._files:
                    self._forget()
                self._add_new_files(connection, catalog)
            first = dict(self._counts.most_common(_MOST_NAMES))
            return Awaited(
                schemas=first,
                others=self._rows - sum(first.values()),
                oldest=self._oldest,
                is_readable=self._is_readable,
            )

    def _count_files(self, connection: Connection, catalog: Catalog) -> int:
        query = select(func.count()).where(
            *are_open(catalog, DeadLetterKind.WAITING), dead_letter_files.c.epoch <= self._newest_epoch
        )
        return int(connection.execute(query).scalar_one())

    def _add_new_files(self, connection: Connection, catalog: Catalog) -> None:
        table = dead_letter_files.c
        query = (
            select(table.epoch, table.rows_total, table.reasons, table.registered_at)
            .where(*are_open(catalog, DeadLetterKind.WAITING), table.epoch > self._newest_epoch)
            .order_by(table.epoch)
        )
        with connection.execute(query, execution_options={"yield_per": _ROWS_AT_ONCE}) as rows:
            for row in rows:
                self._add(row.epoch, row.rows_total, json.loads(row.reasons), row.registered_at)

    def _add(self, epoch: int, rows: int, schemas: dict[str, int], registered_at: float) -> None:
        self._files += 1
        self._rows += rows
        self._newest_epoch = max(self._newest_epoch, epoch)
        self._oldest = registered_at if self._oldest is None else min(self._oldest, registered_at)
        self._is_readable = self._is_readable or not self._known.isdisjoint(schemas)
        self._counts.update(schemas)
        if len(self._counts) > 2 * _MOST_NAMES:
            self._counts = Counter(dict(self._counts.most_common(_MOST_NAMES)))


def list_waiting_files(
    catalog: Catalog, *, known: Collection[str], before: float | None
) -> tuple[DeadLetterFile, ...]:
    """Those with records of known schemas, and those registered up to `before`; without the names that they count."""
    query = (
        select(dead_letter_files)
        .where(*are_open(catalog, DeadLetterKind.WAITING))
        .order_by(dead_letter_files.c.epoch, dead_letter_files.c.dead_letter_file)
    )
    names = frozenset(known)
    found = []
    with (
        catalog.read() as connection,
        connection.execute(query, execution_options={"yield_per": _ROWS_AT_ONCE}) as rows,
    ):
        for row in rows:
            file = dead_letter_file_of(row)
            if (before is not None and file.registered_at <= before) or not names.isdisjoint(file.reasons):
                found.append(replace(file, reasons={}))
    return tuple(found)
