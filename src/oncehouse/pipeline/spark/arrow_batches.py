"""The blocks in which a worker gets records: bounded by their bytes, or by their number where that is enough.

Spark weighs a block again after every record that it adds. While records are small and their size is known, their
number alone is bounded; a record that is far larger than the others is then not handed over but marked, and the epoch
is read once more, by weight. So a block never holds more than a few times the bytes that were asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.common.backoff import Turns
from oncehouse.errors import OncehouseError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BLOCK_ROWS = 50_000
BLOCK_BYTES = 32 << 20

ROWS_SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"
BYTES_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
SETTINGS = {ROWS_SETTING: str(BLOCK_ROWS), BYTES_SETTING: str(BLOCK_BYTES)}

_NEVER_WEIGHED = str((1 << 31) - 1)
# For larger records the weighing costs next to nothing.
_SMALL_BYTES = 4096
_OUTSIZE = 4
_OUTSIZE_SOURCE = -1
_MOST_EPOCHS = 256


class OutsizeRecordError(OncehouseError):
    """A block holds the mark of a record that was not handed over."""


@dataclass(frozen=True, kw_only=True)
class CountedHandover:
    """Blocks that are not weighed."""

    rows: int
    record_bytes: int
    """The most that a record may have, key and value together."""


class HandoverChooser:
    """Whether blocks may be counted in place of weighed, from epoch to epoch."""

    def __init__(self, spark_settings: Mapping[str, str]) -> None:
        """`spark_settings`: the user's own, which are kept to."""
        self._allowed = SETTINGS.keys().isdisjoint(spark_settings)
        self._weighed = Turns(_MOST_EPOCHS)

    def choose(self, record_bytes: float) -> CountedHandover | None:
        """For records of this size on average, 0 where it is not known; None means by weight."""
        if self._weighed.passes() or not self._allowed or not 0 < record_bytes <= _SMALL_BYTES:
            return None
        rows = min(BLOCK_ROWS, int(BLOCK_BYTES / record_bytes))
        return CountedHandover(rows=rows, record_bytes=_OUTSIZE * BLOCK_BYTES // rows)

    def found_outsize(self) -> None:
        """Weigh for some epochs, and for longer each time: where sizes differ so much they may go on to."""
        self._weighed.fail()


def hand_to_workers(records: DataFrame, counted: CountedHandover | None) -> DataFrame:
    """The records as `require_usual_size` takes them in a worker, in a job inside of `cutting`."""
    from pyspark.sql import functions as f

    if counted is None:
        return records
    size = f.coalesce(f.length("value"), f.lit(0)) + f.coalesce(f.length("key"), f.lit(0))
    usual = size <= f.lit(counted.record_bytes)
    changed = {
        "source": f.when(usual, f.col("source")).otherwise(f.lit(_OUTSIZE_SOURCE)).alias("source"),
        "key": f.when(usual, f.col("key")).alias("key"),
        "value": f.when(usual, f.col("value")).alias("value"),
    }
    return records.select(*(changed.get(name, f.col(name)) for name in records.columns))


@contextmanager
def cutting(spark: SparkSession, counted: CountedHandover | None) -> Iterator[None]:
    """Around a job that hands records over; by weight it is as the session says, which may be the user's word."""
    if counted is None:
        yield
        return
    before = {name: value for name in SETTINGS if (value := spark.conf.get(name)) is not None}
    spark.conf.set(ROWS_SETTING, str(counted.rows))
    spark.conf.set(BYTES_SETTING, _NEVER_WEIGHED)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def require_usual_size(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Raise OutsizeRecordError where a record is missing."""
    for block in blocks:
        if block.num_rows and pc.min(block.column("source")).as_py() == _OUTSIZE_SOURCE:
            raise OutsizeRecordError("a record is larger than its block may hold")
        yield block
