"""Whether a table shows what the database has: by ranges of keys, and by key where a range differs.

Rows are read as rounds read them and compared by ClickHouse (`table/compare.py`). Ranges follow ClickHouse's order, so
keys of every type are compared, whatever order the database has for them; a second way through the database's keys
finds those that the table has never had. A difference counts when it stands still: no operation of its key waits, and
neither side changes between two looks. So writers may go on. For a sync that CDC feeds, the keys that wait in
Kafka are unknown; there a difference counts when it stands still for as long as verify reads. Nothing is changed here.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from oncehouse.errors import ConfigurationError, PermanentError
from oncehouse.messaging.database import transact
from oncehouse.sync.backfill.progress import KeyProgress, ReportProgress, ignore_progress
from oncehouse.sync.changes.change import Operation, OperationKind, format_key
from oncehouse.sync.model.engines import Append, Row
from oncehouse.sync.model.model_sync import ModelSync
from oncehouse.sync.rounds.round import read_present
from oncehouse.sync.table.compare import DifferingKey, VisibleRows
from oncehouse.sync.table.ddl import check_sync_table
from oncehouse.sync.table.table_rows import find_existing_keys
from oncehouse.sync.tables import ABSENT

RANGE = 50_000
"""Keys that are compared at a time."""
MOST_DIFFERENCES = 100_000
"""With more than so many a backfill is quicker than repairs, and looking further adds nothing."""
MOST_WAITING = 1_000_000

PAUSE_SECONDS = 1.0
"""Between two looks at what differs."""

_KEYS_A_READ = 10_000
_READS = 10


class Difference(StrEnum):
    MISSING = "missing"
    """The database has the row, the table does not show it."""
    STALE = "stale"
    """The table shows other values."""
    EXTRA = "extra"
    """The table shows a row that the database does not have."""
    DOUBLED = "doubled"
    """The table has a row twice, which FINAL may hide and sums do not."""


@dataclass(frozen=True, kw_only=True)
class SyncVerifyReport:
    sync: str
    table: str
    rows: int
    """Rows of the database that were compared."""
    ranges: int
    differing_ranges: int
    differences: dict[Difference, tuple[str, ...]]
    """Keys in the spelling of operations."""
    waiting: int
    """Keys that differ and have operations waiting: the next rounds sync them."""
    changing: int
    """Keys that changed at every look, so nothing can be said of them."""
    complete: bool
    """False where looking stopped because so many differ."""
    pipeline_file: str | None = None
    """Of the pipeline that feeds the table, where CDC does."""

    @property
    def is_clean(self) -> bool:
        return self.complete and not any(self.differences.values())

    def keys_to_repair(self) -> list[str]:
        """A doubled row cannot be undone by syncing its key again."""
        return [
            key for kind, keys in self.differences.items() if kind is not Difference.DOUBLED for key in keys
        ]


def verify(
    sync: type[ModelSync],
    *,
    keys_a_range: int = RANGE,
    report: ReportProgress = ignore_progress,
) -> SyncVerifyReport:
    declared = sync.declaration()
    if isinstance(declared.engine, Append) and declared.engine.version is None:
        raise ConfigurationError(
            f"Sync {declared.name}: an Append table without a version does not show which row of a key is the newest, "
            "so it cannot be compared with the database. Give the engine a version: Append(version='_version')."
        )
    check_sync_table(sync)
    work = _TableVerification(sync, keys_a_range=keys_a_range, report=report)
    try:
        work.compare_ranges()
        work.find_missing_keys()
        work.settle()
    finally:
        sync.release_connections()
    return work.report_of()


class _TableVerification:
    def __init__(self, sync: type[ModelSync], *, keys_a_range: int, report: ReportProgress) -> None:
        self.sync = sync
        self.declared = sync.declaration()
        self.shown = VisibleRows(sync.open_clickhouse(), self.declared)
        self.keys_a_range = keys_a_range
        self.report = report
        self.progress = KeyProgress(
            sync=self.declared.name, doing="verify", estimate=2 * sync.estimate_rows()
        )
        self.rows = self.ranges = self.differing_ranges = self.keys = self.changing = 0
        self.suspects: dict[str, tuple[int, ...] | None] = {}
        """Keys that differed when they were last looked at, and how they stood then."""
        self.doubled: list[str] = []
        self.waiting: set[str] = set()
        self.same_reads: Counter[str] = Counter()
        self.is_cut = False
        self.found: dict[Difference, list[str]] = {kind: [] for kind in Difference}

    @property
    def is_full(self) -> bool:
        return len(self.suspects) > MOST_DIFFERENCES

    @property
    def reads_to_confirm(self) -> int:
        """After how many equal looks a difference counts."""
        return 1 if self.declared.pipeline is None else _READS - 1

    def compare_ranges(self) -> None:
        """All keys that the table has, as ClickHouse orders them."""
        for keys in self._table_ranges():
            present, absent = self._read(keys)
            self.ranges += 1
            self.rows += len(present)
            rows, gone = list(present.values()), list(absent.values())
            if not self.shown.is_same(rows, gone):
                self.differing_ranges += 1
                key_texts = [*present, *absent]
                found = self.shown.find_differing(rows, gone)
                self.suspects.update((key_texts[one.place], None) for one in found if self._counts(one))
            key_texts = [*present, *absent]
            self.doubled += [key_texts[place] for place in self.shown.find_doubled([*rows, *gone])]
            self._report(len(keys))
            if self.is_full:
                return

    def _table_ranges(self) -> Iterator[list[str]]:
        after: Row | None = None
        while True:
            listed = self.shown.list_keys(after, self.keys_a_range)
            # Brought into the form that the model gives its keys.
            keys = [format_key(self.sync.parse_key(format_key(values))) for values in listed]
            if keys:
                yield keys
            if len(listed) < self.keys_a_range:
                return
            after = self.declared.deleted_row(self.sync.parse_key(keys[-1]))

    def find_missing_keys(self) -> None:
        """Keys of the database that the table has never had."""
        after: str | None = None
        client = self.sync.open_clickhouse()
        while not self.is_full:
            keys = self.sync.list_keys(after, self.keys_a_range)
            rows = [self.declared.deleted_row(self.sync.parse_key(key)) for key in keys]
            existing = find_existing_keys(client, self.declared, rows)
            present, _absent = self._read([key for key in keys if key not in existing])
            self.rows += len(present)
            self.suspects.update((key, None) for key in present)
            self._report(len(keys))
            if len(keys) < self.keys_a_range:
                return
            after = keys[-1]

    def settle(self) -> None:
        """Look again at what differed, until it stands still or is well.

        The order of a look matters: the database, then what waits, then ClickHouse. Without a waiting operation
        ClickHouse has all that was committed before. If then neither side has changed until the next look, no change
        came between, and ClickHouse lacks what it should have.
        """
        self.found[Difference.DOUBLED] = self.doubled
        self.is_cut = self.is_full
        for attempt in range(_READS):
            if attempt and (self.suspects or self.found[Difference.DOUBLED]):
                time.sleep(PAUSE_SECONDS)
            self.waiting = set()
            for keys in _split(list(self.suspects), self.keys_a_range):
                self._recheck(keys)
            if attempt == 1:
                self.found[Difference.DOUBLED] = self._still_doubled()
            if attempt and not self.suspects:
                return
        self.changing = len(self.suspects) - len(self.waiting)

    def _recheck(self, keys: list[str]) -> None:
        present, absent = self._read(keys)
        waiting = find_waiting_keys(self.sync)
        key_texts = [*present, *absent]
        found = {
            key_texts[one.place]: one
            for one in self.shown.find_differing(list(present.values()), list(absent.values()))
            if self._counts(one)
        }
        for key in keys:
            one = found.get(key)
            if one is None:
                del self.suspects[key]
            elif key in waiting:
                self.waiting.add(key)
                self.suspects[key] = None
            elif self.suspects[key] == one.state:
                self.same_reads[key] += 1
                if self.same_reads[key] >= self.reads_to_confirm:
                    del self.suspects[key]
                    self.found[_kind_of(one)].append(key)
            else:
                self.suspects[key] = one.state
                del self.same_reads[key]

    def _still_doubled(self) -> list[str]:
        doubled = []
        for keys in _split(self.found[Difference.DOUBLED], self.keys_a_range):
            rows = [self.declared.deleted_row(self.sync.parse_key(key)) for key in keys]
            doubled += [keys[place] for place in self.shown.find_doubled(rows)]
        return doubled

    def _counts(self, one: DifferingKey) -> bool:
        """An Append table without a mark for deleted rows keeps what the database has no more."""
        engine = self.declared.engine
        return not (one.absent and isinstance(engine, Append) and engine.deleted is None)

    def _read(self, keys: Sequence[str]) -> tuple[dict[str, Row], dict[str, Row]]:
        """Rows of the database by key, and rows with the key alone of those that it does not have."""
        present: dict[str, Row] = {}
        for part in _split(list(keys), max(1, _KEYS_A_READ // len(self.declared.key))):
            present |= read_present(
                self.sync, [Operation(id="", key=key, kind=OperationKind.UPDATE) for key in part]
            )
        absent = {
            key: self.declared.deleted_row(self.sync.parse_key(key)) for key in keys if key not in present
        }
        return present, absent

    def _report(self, keys: int) -> None:
        self.keys += keys
        self.progress = KeyProgress(
            sync=self.declared.name,
            doing="verify",
            keys=self.keys,
            estimate=max(self.progress.estimate, self.keys),
        )
        self.report(self.progress)

    def report_of(self) -> SyncVerifyReport:
        return SyncVerifyReport(
            sync=self.declared.name,
            table=self.declared.table,
            rows=self.rows,
            ranges=self.ranges,
            differing_ranges=self.differing_ranges,
            differences={kind: tuple(keys) for kind, keys in self.found.items()},
            waiting=len(self.waiting),
            changing=self.changing,
            complete=not self.is_cut,
            pipeline_file=self.declared.pipeline_file,
        )


def find_waiting_keys(sync: type[ModelSync]) -> set[str]:
    """The keys that have operations waiting; of a sync that CDC feeds none has."""
    if sync.is_by_cdc():
        return set()
    name, storage = sync.declaration().name, sync.get_storage()
    with transact(sync.open_source(), f"Sync {name}: listing operations", absent=ABSENT) as connection:
        # Raises while a part of the storage is away, where listing would give what the other part has.
        storage.measure(connection, name)
        listed = storage.list_operations(connection, name, MOST_WAITING)
    if len(listed) >= MOST_WAITING:
        raise PermanentError(
            f"Sync {name}: more than {MOST_WAITING:,} operations wait, so what differs because of them cannot be "
            "distinguished from the rest. Let the syncs run (`oncehouse sync run`), then verify."
        )
    return {operation.key for operation in listed}


def _kind_of(one: DifferingKey) -> Difference:
    if one.absent:
        return Difference.EXTRA
    return Difference.STALE if one.shown else Difference.MISSING


def _split(keys: list[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(keys), size):
        yield keys[start : start + size]
