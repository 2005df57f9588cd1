"""The oracle of a soak: what is in ClickHouse and in the ledger against what was produced.

Everything that must be there is made anew from serial numbers, a slice at a time; the pipeline has no say in it.
Every difference is a problem by itself, told in words; a soak has gone well when there is none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oncehouse.clickhouse.client import Client
from oncehouse.ledger.catalog import batches, epochs
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.models import BatchStatus, Counts
from soak_traffic import PRODUCERS, make_events

TABLE = "events"
SUMS = "sums"

_SLICE_SEQUENCES = 250_000
_HASH_NUMBER = "reinterpretAsUInt64(unhex(toString(payload_hash)))"
_TWO_64 = 1 << 64

_MAKE_SUMS = (
    f"CREATE TABLE {SUMS} (producer String, found UInt64, sequences UInt64, hashes UInt64) "
    "ENGINE = SummingMergeTree ORDER BY producer SETTINGS non_replicated_deduplication_window = 100000"
)
_MAKE_VIEW = (
    f"CREATE MATERIALIZED VIEW {SUMS}_view TO {SUMS} AS SELECT producer, count() AS found, "
    f"sum(sequence) AS sequences, sum({_HASH_NUMBER}) AS hashes FROM {TABLE} GROUP BY producer"
)
VIEW = (_MAKE_SUMS, _MAKE_VIEW)
"""A view that doubles or loses what a repeated insert doubles or loses, even where the table itself is right."""


@dataclass(frozen=True, kw_only=True)
class Produced:
    records: int
    """What Kafka holds by its own offsets."""
    unique: int
    broken: int

    @property
    def duplicates(self) -> int:
        return self.records - self.unique - self.broken


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """The table against what was produced."""

    rows: int
    lost: int
    doubled: int
    foreign: int
    """Rows that nobody produced."""
    altered: int
    """Rows whose hash is not that of their payload, and slices whose payloads are those of other events."""
    view_differs: int
    """Producers whose sums in the dependent view are not what they must be."""

    @property
    def problems(self) -> tuple[str, ...]:
        counts = {
            "lost": self.lost,
            "doubled": self.doubled,
            "rows nobody produced": self.foreign,
            "altered": self.altered,
            "producers with wrong sums in the view": self.view_differs,
        }
        return tuple(f"{name}: {count}" for name, count in counts.items() if count)


def compare(client: Client, unique: int) -> Delivered:
    """Count by content, a slice of sequence numbers at a time."""
    sums = np.zeros((PRODUCERS, 3), dtype=np.uint64)
    found = unique_found = altered = 0
    for start in range(0, -(-unique // PRODUCERS), _SLICE_SEQUENCES):
        end = start + _SLICE_SEQUENCES
        expected = _expect(start * PRODUCERS, min(end * PRODUCERS, unique))
        ((rows, different, ids, wrong, hashes),) = client.query(
            f"SELECT count(), uniqExact(producer, sequence), uniqExact(_unique_id), "
            f"countIf(substring(lower(hex(SHA256(payload))), 1, 16) != toString(payload_hash)), sum({_HASH_NUMBER}) "
            f"FROM {TABLE} WHERE sequence >= {start} AND sequence < {end} AND {_known(unique)}"
        )
        found += rows
        unique_found += min(different, ids)
        altered += wrong
        if rows == different == int(expected[:, 0].sum()):
            altered += int(hashes) % _TWO_64 != int(expected[:, 2].sum())
        sums += expected
    ((everything,),) = client.query(f"SELECT count() FROM {TABLE}")
    return Delivered(
        rows=everything,
        lost=unique - unique_found,
        doubled=found - unique_found,
        foreign=everything - found,
        altered=altered,
        view_differs=_compare_view(client, sums),
    )


def _known(unique: int) -> str:
    """Rows that somebody has produced: each producer has sent its sequence numbers from 0 on."""
    ends = [-(-(unique - producer) // PRODUCERS) for producer in range(PRODUCERS)]
    chosen = ", ".join(f"'producer-{producer}', {end}" for producer, end in enumerate(ends))
    return f"sequence < caseWithExpression(toString(producer), {chosen}, 0)"


def _expect(first: int, end: int) -> np.ndarray:
    """Rows, sum of sequence numbers and sum of hashes of each producer; sums wrap as ClickHouse's do."""
    serials = np.arange(first, end)
    hashes = np.frombuffer(
        bytes.fromhex("".join(make_events(serials)["payload_hash"].to_pylist())), dtype="<u8"
    )
    sums = np.zeros((PRODUCERS, 3), dtype=np.uint64)
    for producer in range(PRODUCERS):
        own = serials % PRODUCERS == producer
        sums[producer] = (own.sum(), (serials[own] // PRODUCERS).sum(), hashes[own].sum(dtype=np.uint64))
    return sums


def _compare_view(client: Client, sums: np.ndarray) -> int:
    found = {
        producer: (rows, sequences, hashes)
        for producer, rows, sequences, hashes in client.query(
            f"SELECT producer, sum(found), sum(sequences), sum(hashes) FROM {SUMS} GROUP BY producer"
        )
    }
    wanted = {
        f"producer-{number}": tuple(int(value) for value in row) for number, row in enumerate(sums) if row[0]
    }
    return sum(found.get(name) != wanted.get(name) for name in found.keys() | wanted.keys())


def evaluate_ledger(catalog: Catalog, produced: Produced) -> tuple[str, ...]:
    """Produced = delivered + duplicates + dead letters, and nothing is stuck on its way."""
    counts = epochs.total_counts(catalog)
    wanted = Counts(
        read=produced.records,
        new=produced.unique,
        duplicate=produced.duplicates,
        dead_letter=produced.broken,
    )
    problems = [
        f"the ledger counts {getattr(counts, name)} {name}, it should be {getattr(wanted, name)}"
        for name in ("read", "new", "duplicate", "dead_letter", "skipped", "waiting", "conflicts")
        if getattr(counts, name) != getattr(wanted, name)
    ]
    stuck = [
        batch
        for batch in batches.list_batches(catalog)
        if batch.status in (*batches.WAITING, BatchStatus.PARKED)
    ]
    problems += [f"batch {batch.batch_id} is {batch.status}: {batch.reason}" for batch in stuck]
    if parts := batches.open_parts(catalog):
        problems.append(f"{len(parts)} parts are in no batch")
    return tuple(problems)
