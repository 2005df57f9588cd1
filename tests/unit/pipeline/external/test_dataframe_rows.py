"""Rows of frames on their way through a read task: parts and raw bytes, dead letters as text, and their replay."""

from __future__ import annotations

import datetime as dt
import json

import pyarrow as pa
import pytest

from oncehouse.column_types.parser import parse_type
from oncehouse.ledger.models import DeadLetterKind
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.dead_letters.filter import Selection
from oncehouse.pipeline.dedup.deduplicate import DecidePlan, decide
from oncehouse.pipeline.external.dataframe_rows import FrameRows, plain
from oncehouse.pipeline.formats.dataframe import DataFrameFormat, schema_of
from oncehouse.pipeline.formats.json.format import JsonFormat
from oncehouse.pipeline.ingest.manifest import ReadPlan
from oncehouse.pipeline.ingest.part_files import read_rows
from oncehouse.pipeline.ingest.read_task import ReadTask
from oncehouse.pipeline.requests.dead_letter_replay import ReplayPlan, read_dead_letters, replay
from plan_examples import make_read_plan

TOPIC = "frame:fill"


def make_plan(folder, declared: str = "UInt8", **changes) -> ReadPlan:
    fields = {"id": parse_type(declared)}
    plan = {
        "topics": (TOPIC,),
        "format": DataFrameFormat(),
        "schemas": (schema_of(fields),),
        "fields": fields,
        "part_bytes": 100_000,
    }
    return make_read_plan(folder, **(plan | changes))


def read(plan: ReadPlan, values: list[object]):
    made = FrameRows(plan.fields)
    task = ReadTask(plan, "r0", decoder=made)
    found = pa.record_batch([pa.array(values, pa.int64())], names=["id"])
    task.add(made.make_block(found, source=3, offset=70, timestamp_us=0))
    return task.finish()


def test_a_misfit_is_a_letter_of_text_that_becomes_a_row_once_its_field_takes_it(tmp_path):
    store = FileStore(str(tmp_path))
    done = read(make_plan(tmp_path), [1, 300, 2, None])
    assert (done.read, done.chunks[0].events) == (4, 2)
    letters = read_dead_letters(store, [done.letters[0].file]).to_pylist()
    assert [(one["topic"], one["partition"], one["offset"]) for one in letters] == [
        (TOPIC, 3, 71),
        (TOPIC, 3, 73),
    ]
    assert [json.loads(one["value"]) for one in letters] == [{"id": 300}, {"id": None}]
    # Also in a pipeline whose own messages are something else.
    wide = make_plan(tmp_path, "UInt64", epoch=2, format=JsonFormat(), topics=("orders", TOPIC))
    files = (done.letters[0].file,)
    again = replay(
        ReplayPlan(read=wide, attempt="l0", files=files, selection=Selection(), kind=DeadLetterKind.DEAD)
    )
    assert (again.read, again.chunks[0].events, again.letters[0].reasons) == (2, 1, {"missing_field": 1})
    assert read_rows(store, again.chunks[0].parts[0].file).to_pydict()["id"] == [300]


def test_a_message_and_a_row_of_one_id_are_duplicates_without_a_conflict(tmp_path):
    rows = read(make_plan(tmp_path), [1, 2])
    message = ReadTask(make_plan(tmp_path, format=JsonFormat(), epoch=2), "m0")
    block = {
        "source": pa.array([0, 0], pa.int64()),
        "offset": pa.array([1, 2], pa.int64()),
        "timestamp": pa.array([0, 0], pa.timestamp("us", tz="UTC")),
        "key": pa.nulls(2, pa.binary()),
        "value": pa.array([b'{"id": 1}', b'{"id": 2, "other": true}'], pa.binary()),
    }
    message.add(pa.record_batch(block))
    decision = decide(
        DecidePlan(
            bucket_from=0,
            bucket_to=15,
            buckets=16,
            files_root=str(tmp_path),
            key_files=(rows.chunks[0].keys, message.finish().chunks[0].keys),
            segments=(),
            out="shop/d",
            tables=1,
        )
    )
    assert (decision.new, decision.duplicates, decision.conflicts) == (2, 2, 0)


@pytest.mark.parametrize(
    ("value", "kind", "spelled"),
    [
        (float("nan"), pa.float64(), "nan"),
        (b"\xff", pa.binary(), "/w=="),
        ([1, None], pa.list_(pa.int64()), [1, None]),
        ([("a", 1)], pa.map_(pa.string(), pa.int64()), {"a": 1}),
        ({"x": dt.date(2026, 1, 2)}, pa.struct([("x", pa.date32())]), {"x": "2026-01-02"}),
        (None, pa.int64(), None),
    ],
)
def test_values_without_a_word_in_json_are_spelled_as_text(value, kind, spelled):
    assert plain(pa.scalar(value, kind)) == spelled
