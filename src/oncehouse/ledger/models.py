"""What the catalog knows, as frozen values under the design's own words.

Nothing here does I/O. Times are seconds since 1970 on the catalog's clock. A file is named by its path below
the ledger's root, with its size and checksum; what no record names does not exist.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum


class Stage(StrEnum):
    """What a lease is for: one process at a time a stage of a pipeline."""

    INGEST = "ingest"
    LOAD = "load"
    RETENTION = "retention"


class EpochKind(StrEnum):
    KAFKA = "kafka"
    REPLAY = "replay"
    """Dead letters tried again."""
    REFILL = "refill"
    """Rows of the ledger written again for one table; no event is new."""
    WAITING = "waiting"
    """Records that had waited for their schema."""
    FRAME = "frame"
    """A batch of a query: rows of a user's DataFrame, or of imported files."""


class DeadLetterKind(StrEnum):
    DEAD = "dead"
    """It could not become a row."""
    WAITING = "waiting"
    """Its schema is not known yet."""
    EDIT = "edit"
    """No dead letters of their own: values that a person has put in the place of those of dead letters."""


class FileFormat(StrEnum):
    """How the files of an import are written."""

    PARQUET = "parquet"
    JSON = "json"
    CSV = "csv"


class BatchStatus(StrEnum):
    NEW = "NEW"
    IN_PROCESS = "IN_PROCESS"
    RETRY = "RETRY"
    IN_CLICKHOUSE = "IN_CLICKHOUSE"
    PARKED = "PARKED"
    REPLACED = "REPLACED"
    """Its rows had gone from the table and were sent again in other batches."""


NOT_ARRIVED = (BatchStatus.NEW, BatchStatus.IN_PROCESS, BatchStatus.RETRY, BatchStatus.PARKED)
"""Batches whose rows are not known to be in ClickHouse."""


class RequestKind(StrEnum):
    REPLAY_DEAD_LETTERS = "replay-dead-letters"
    EDIT_DEAD_LETTERS = "edit-dead-letters"
    REFILL_TABLE = "refill-table"
    REBUILD_INDEX = "rebuild-index"
    REKEY = "rekey"


@dataclass(frozen=True, kw_only=True)
class FileRef:
    """A file, or a range of its rows where it is a pack of several."""

    path: str
    size_bytes: int
    checksum: str
    row: int = 0
    rows: int | None = field(default=None, compare=False)
    """How many of the file's rows, from `row` on, are meant; None: all of them."""


@dataclass(frozen=True, kw_only=True, order=True)
class OffsetRange:
    """Offsets start (included) to end (left out) of one Kafka partition."""

    topic: str
    partition: int
    start: int
    end: int
    leader_epoch: int | None = field(default=None, compare=False)
    """Of what stands before the end, in the log that was read; None where it is unknown."""


@dataclass(frozen=True, kw_only=True, order=True)
class QueryBatch:
    """What Spark, or another caller, numbers; the ledger settles each number of a query once."""

    query: str
    batch: int
    origin: str = ""
    """Who counts these batches: another counter under the same name is refused."""


@dataclass(frozen=True, kw_only=True)
class KeyFile:
    """The ids of the events one read task put down, with their raw bytes; `ordinal` follows Kafka's order."""

    key_file: str
    ordinal: int
    events: int
    keys: FileRef
    raw: FileRef


@dataclass(frozen=True, kw_only=True)
class Part:
    part: str
    epoch: int
    table: str
    key_file: str
    ordinal: int
    rows: int
    live_rows: int
    size_bytes: int
    file: FileRef
    shape: str = ""
    """Names its columns and their types."""
    registered_at: float = 0.0
    batch_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class DuplicateFile:
    """Positions of duplicates, by key file ordinal and event, that one decide task found."""

    rows: int
    file: FileRef


@dataclass(frozen=True, kw_only=True)
class DeadLetterFile:
    dead_letter_file: str
    epoch: int
    rows: int
    reasons: dict[str, int]
    """How many for each reason; of waiting records, for each schema; of edits, for each file of dead letters."""
    file: FileRef
    registered_at: float = 0.0
    kind: DeadLetterKind = DeadLetterKind.DEAD


ROW_PREFIX = "row:"
"""Begins the names of schemas under which rows of frames are kept, and no others."""


@dataclass(frozen=True, kw_only=True)
class Schema:
    """How records of one version are written; once known, it never changes."""

    schema: str
    """Its name: a version, or a registry's id."""
    format: str
    definition: str
    """What the format's decoder needs, as text."""
    first_seen_at: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LearnedField:
    """A field that the ledger knows beyond the pipeline file."""

    field: str
    type: str | None
    """None: it was seen and is left out."""
    instead_of: str | None = None
    """The type that the pipeline file declared then; None: it declared none."""
    learned_at: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Sorted ids of the key index; covers the buckets `bucket_from` to `bucket_to`, both included."""

    segment: str
    bucket_from: int
    bucket_to: int
    keys: int
    first_seen_from: float
    first_seen_to: float
    file: FileRef


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Every record read is counted exactly once."""

    read: int = 0
    new: int = 0
    duplicate: int = 0
    dead_letter: int = 0
    skipped: int = 0
    waiting: int = 0
    conflicts: int = 0
    """Of the duplicates: those whose payload differs from their winner's."""

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{name: count + getattr(other, name) for name, count in asdict(self).items()})

    @property
    def balanced(self) -> bool:
        return self.read == self.new + self.duplicate + self.dead_letter + self.skipped + self.waiting


@dataclass(frozen=True, kw_only=True)
class LedgerIdentity:
    """What a ledger was made for; a pipeline with another rule may not write to it."""

    fingerprint: str
    buckets: int


def format_rule(identity: LedgerIdentity) -> str:
    """A rule as people read it."""
    try:
        _, *pieces = json.loads(identity.fingerprint)
    except (ValueError, TypeError):
        return identity.fingerprint
    return ", ".join(map(_format_piece, pieces))


def _format_piece(piece: object) -> str:
    match piece:
        case [str(name), str(kind)]:
            return f"{name} ({kind})"
        case [[*steps], str(kind)]:
            return f"{'.'.join(map(str, steps))} ({kind})"
        case {"header": name}:
            return f"header {name}"
        case {"normalize": form}:
            return f"normalized as {form}"
        case _:
            return str(piece)


@dataclass(frozen=True, kw_only=True)
class Registration:
    """All that one epoch settles; written in one transaction or not at all."""

    epoch: int
    kind: EpochKind
    started_at: float
    counts: Counts
    ranges: tuple[OffsetRange, ...] = ()
    topic_ids: dict[str, str]
    key_files: tuple[KeyFile, ...] = ()
    parts: tuple[Part, ...] = ()
    duplicate_files: tuple[DuplicateFile, ...] = ()
    dead_letter_files: tuple[DeadLetterFile, ...] = ()
    segments: tuple[Segment, ...] = ()
    tried_dead_letter_files: tuple[str, ...] = ()
    replaced_batches: tuple[LedgerBatch, ...] = ()
    """As they were when their rows were found to be absent; they must not have changed since."""
    request: int | None = None
    """The one that ends with this epoch."""
    request_counts: Counts = Counts()
    """What epochs before made of the same request."""
    identity: LedgerIdentity | None = None
    """The rule by which its ids were made; the ledger must have the same."""
    query: QueryBatch | None = None


@dataclass(frozen=True, kw_only=True)
class EpochRow:
    epoch: int
    kind: EpochKind
    token: int
    started_at: float
    registered_at: float
    counts: Counts


@dataclass(frozen=True, kw_only=True)
class LedgerBatch:
    batch_id: str
    table: str
    status: BatchStatus
    rows: int
    size_bytes: int
    created_at: float
    attempts: int
    next_attempt_at: float
    reason: str | None = None
    """Why it waits or is parked; of a loaded batch, that nothing proves its views."""
    loaded_at: float | None = None


class AttemptOutcome(StrEnum):
    """How an attempt to insert a batch ended, as the catalog stores it; no outcome while it runs."""

    INSERTED = "inserted"
    ALREADY_THERE = "already there"
    VIEWS_UNPROVEN = "views unproven"
    """The rows are there, but nothing proves that the table's materialized views got them."""
    FAILED = "failed"
    """No rows of it are in the table."""
    UNKNOWN = "unknown"
    """Its answer was lost: the table may have its rows, or may still get them."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    batch_id: str
    attempt: int
    query_id: str
    started_at: float
    finished_at: float | None
    outcome: AttemptOutcome | None
    """None while it runs, or when its driver died."""
    detail: str | None
    block_count: str | None = None
    """What the destination had taken when the attempt began; none where it was unknown."""

    @property
    def may_have_sent(self) -> bool:
        """Whether the table may have rows of it, or may still get them."""
        return self.outcome in {None, AttemptOutcome.UNKNOWN}


@dataclass(frozen=True, kw_only=True)
class LoadPart:
    """What a load task needs to send one part: its rows, and where its epoch's duplicates are written down."""

    part: Part
    events: int
    duplicate_files: tuple[FileRef, ...]


@dataclass(frozen=True, kw_only=True)
class Lease:
    pipeline: str
    stage: Stage
    token: int
    holder: str
    expires_at: float
    pause: str | None = None
    """What the holder waits for before it goes on; none while it works."""


def format_holder(holder: str) -> str:
    """Machine and pid; what follows in brackets only shows another process whether this one lives."""
    return holder.partition(" (")[0]


REFUSED = "refused: "
"""How the result of a request begins that could not be met."""


@dataclass(frozen=True, kw_only=True)
class Request:
    request: int
    kind: RequestKind
    arguments: dict[str, object]
    created_at: float
    done_at: float | None = None
    result: str | None = None

    @property
    def is_refused(self) -> bool:
        return (self.result or "").startswith(REFUSED)
