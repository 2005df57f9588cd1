"""Records read as the pipeline reads them, before any server is started: whether events fit, and what is poison."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from oncehouse.devstack.chaos.generators.factory import SAMPLE_ADVICE, GeneratedRecord
from oncehouse.devstack.chaos.load_plan import POISON
from oncehouse.errors import ConfigurationError
from oncehouse.pipeline.checks.record_sample import RecordSample, read_block
from oncehouse.pipeline.formats.base import HEADERS
from oncehouse.pipeline.schema.discovery import declared_schemas

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline


def read_records(pipeline: Pipeline, records: Sequence[GeneratedRecord]) -> RecordSample:
    """What the pipeline would make of these records."""
    block = pa.record_batch(
        {
            "source": pa.array([0] * len(records), pa.int32()),
            "offset": pa.array(range(len(records)), pa.int64()),
            "timestamp": pa.array([0] * len(records), pa.timestamp("us", tz="UTC")),
            "key": pa.array([record.key for record in records], pa.binary()),
            "value": pa.array([record.value for record in records], pa.binary()),
            "headers": pa.array(
                [[{"key": name, "value": text} for name, text in record.headers] for record in records],
                HEADERS,
            ),
        }
    )
    with tempfile.TemporaryDirectory(prefix="oncehouse-chaos-") as folder:
        return read_block(pipeline, declared_schemas(pipeline), block, folder)


def require_valid(pipeline: Pipeline, records: Sequence[GeneratedRecord], *, made: bool) -> None:
    """Refuse to begin with records of which some would be dead letters."""
    sample = read_records(pipeline, records)
    if not sample.dead:
        return
    place, _, why = sample.first_dead.partition(": ")
    number = int(place.split("/")[2]) + 1
    summary = f"{sample.dead} of {sample.records} events would be dead letters; the first is in record {number}: {why}"
    if made:
        raise ConfigurationError(
            f"The events made up for this pipeline do not fit it: {summary}. Please {SAMPLE_ADVICE}"
        )
    raise ConfigurationError(
        f"The sample does not fit the pipeline: {summary}. Correct the sample, or the pipeline file"
    )


def empty_tables(pipeline: Pipeline, records: Sequence[GeneratedRecord]) -> list[str]:
    """Places of tables that none of the records go to."""
    sample = read_records(pipeline, records)
    return [table.name for table in pipeline.tables if table.name not in sample.rows]


def find_poison(pipeline: Pipeline, headers: tuple[tuple[str, bytes], ...]) -> tuple[bytes, ...]:
    """Those of the known poisons that become exactly one dead letter of this pipeline."""
    found = []
    for value in POISON:
        sample = read_records(pipeline, [GeneratedRecord(value=value, headers=headers)])
        if (sample.records, sample.dead) == (1, 1):
            found.append(value)
    return tuple(found)
