"""For how many unknown schemas the records of a task may wait, and what becomes of the others."""

from __future__ import annotations

import pyarrow as pa
import pytest

from oncehouse.ledger.models import DeadLetterKind
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.formats.base import HEADERS
from oncehouse.pipeline.ingest import dead_letter_writer
from oncehouse.pipeline.ingest.dead_letter_writer import DeadLetterWriter, WaitingWriter
from oncehouse.pipeline.ingest.manifest import DeadLetterManifest
from oncehouse.pipeline.ingest.part_files import read_rows
from plan_examples import make_read_plan


def make_columns(schemas: list[str]) -> list[pa.Array]:
    rows = len(schemas)
    return [
        pa.array(["events"] * rows).dictionary_encode(),
        pa.array([0] * rows, pa.int32()),
        pa.array(range(rows), pa.int64()),
        pa.array([0] * rows, pa.int32()),
        pa.array([0] * rows, pa.timestamp("us", tz="UTC")),
        pa.nulls(rows, pa.binary()),
        pa.array([name.encode() for name in schemas], pa.binary()),
        pa.nulls(rows, HEADERS),
        pa.array(schemas, pa.string()),
        pa.array(["schema_unknown"] * rows),
        pa.array([f"schema {name} is not known" for name in schemas]),
    ]


@pytest.fixture
def store(tmp_path) -> FileStore:
    return FileStore(str(tmp_path))


def write(
    store: FileStore, *files: list[str]
) -> tuple[tuple[DeadLetterManifest, ...], tuple[DeadLetterManifest, ...]]:
    """Files of records that wait, and of dead letters."""
    plan = make_read_plan(store.root, part_rows=max(map(len, files)), part_bytes=1 << 30)
    dead = DeadLetterWriter(plan, store, "r", DeadLetterKind.DEAD)
    waiting = WaitingWriter(plan, store, "r", overflow=dead)
    for schemas in files:
        waiting.add(make_columns(schemas))
    return waiting.finish(), dead.finish()


def test_up_to_a_thousand_schemas_are_waited_for(store):
    (waiting,), dead = write(store, [str(number) for number in range(1000)])
    assert (len(waiting.reasons), waiting.rows, dead) == (1000, 1000, ())


def test_sixty_thousand_forged_schemas_leave_a_bounded_manifest_and_the_real_one_waits(store):
    forged = [str(number) for number in range(60_000)]
    (waiting,), (dead,) = write(store, [*forged[:30_000], "real", *forged[30_000:], "real"])
    assert (len(waiting.reasons), waiting.reasons["real"], waiting.rows) == (1000, 2, 1001)
    assert dead.reasons == {"schema_unknown": 59_001}
    letters = read_rows(store, dead.file)
    assert not set(letters.column("schema").to_pylist()) & set(waiting.reasons)
    assert letters.column("value").to_pylist() == [
        name.encode() for name in letters.column("schema").to_pylist()
    ]
    name, detail = letters.column("schema")[0].as_py(), letters.column("detail")[0].as_py()
    assert detail == f"schema {name} is not known, and neither are 1000 others that more records wait for"


def test_further_files_of_a_task_add_few_schemas_and_keep_those_that_wait_already(store, monkeypatch):
    monkeypatch.setattr(dead_letter_writer, "MOST_SCHEMAS", 100)
    files = [[f"{file}-{number}" for number in range(300)] for file in range(5)]
    files[3][:2] = ["0-0", "0-0"]
    waiting, dead = write(store, *files)
    assert [len(found.reasons) for found in waiting] == [100, 2, 2, 3, 2]
    assert waiting[3].reasons["0-0"] == 2
    assert sum(found.rows for found in (*waiting, *dead)) == 1500


def test_a_file_all_of_whose_schemas_are_too_many_is_not_written(store, monkeypatch):
    monkeypatch.setattr(dead_letter_writer, "MOST_SCHEMAS", 2)
    waiting, dead = write(store, ["1", "2", "3"], ["4", "5", "6"])
    assert [found.reasons for found in waiting] == [{"1": 1, "2": 1}]
    assert sum(found.rows for found in dead) == 4
