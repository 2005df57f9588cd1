"""When blocks of records are counted in place of weighed, and that no record goes missing for it."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from oncehouse.pipeline.spark.arrow_batches import (
    BLOCK_BYTES,
    BLOCK_ROWS,
    BYTES_SETTING,
    ROWS_SETTING,
    HandoverChooser,
    OutsizeRecordError,
    require_usual_size,
)


def choices(counting: HandoverChooser, epochs: int, record_bytes: float = 200.0) -> list[bool]:
    return [counting.choose(record_bytes) is not None for _ in range(epochs)]


@pytest.mark.parametrize("record_bytes", [0.5, 1, 200, 671, 672, 1000, 4095.9, 4096])
def test_small_records_are_counted_and_a_block_holds_four_times_the_bytes_at_most(record_bytes):
    counted = HandoverChooser({}).choose(record_bytes)
    assert counted is not None
    assert 8192 <= counted.rows <= BLOCK_ROWS
    assert counted.rows * record_bytes <= BLOCK_BYTES
    assert counted.record_bytes >= 4 * record_bytes
    assert counted.rows * counted.record_bytes <= 4 * BLOCK_BYTES


@pytest.mark.parametrize("record_bytes", [0.0, 4097, 1e6, 1e12])
def test_records_that_are_large_or_not_known_are_weighed(record_bytes):
    assert HandoverChooser({}).choose(record_bytes) is None


@pytest.mark.parametrize("name", [ROWS_SETTING, BYTES_SETTING])
def test_settings_of_the_users_own_are_kept_to(name):
    assert choices(HandoverChooser({name: "1000"}), 5) == [False] * 5
    assert choices(HandoverChooser({"spark.executor.memory": "4g"}), 5) == [True] * 5


def test_after_an_outsize_record_some_epochs_are_weighed_and_ever_more_of_them():
    counting = HandoverChooser({})
    for weighed in (1, 3, 7, 15, 31, 63, 127, 255, 256, 256):
        assert choices(counting, 2) == [True, True]
        counting.found_outsize()
        assert choices(counting, weighed + 1) == [False] * weighed + [True]


def test_epochs_of_large_records_count_among_those_that_are_weighed():
    counting = HandoverChooser({})
    counting.found_outsize()
    assert counting.choose(1e6) is None
    assert counting.choose(200.0) is not None


def block(*sources: int) -> pa.RecordBatch:
    return pa.record_batch({"source": pa.array(sources, pa.int32())})


def test_blocks_without_a_mark_pass_as_they_are():
    given = [block(0, 0), block(), block(5, 3), block(65536)]
    passed = list(require_usual_size(iter(given)))
    assert len(passed) == 4
    assert all(one is other for one, other in zip(passed, given, strict=True))


@pytest.mark.parametrize("sources", [(-1,), (-1, 0), (0, -1, 7), (7, 7, -1)])
def test_a_mark_ends_the_reading_before_anything_of_its_block_is_seen(sources):
    passing = require_usual_size(iter([block(1), block(*sources), block(2)]))
    assert next(passing).column("source").to_pylist() == [1]
    with pytest.raises(OutsizeRecordError, match="larger than its block may hold"):
        next(passing)


def test_the_error_survives_the_way_from_a_worker():
    error = pickle.loads(pickle.dumps(OutsizeRecordError("a record")))
    assert (type(error), str(error)) == (OutsizeRecordError, "a record")
