"""Folders come in by the same pipeline: resumed after a kill, overlapping with Kafka, in all three formats."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from live_pipeline import LivePipeline, encode, make_event, note_of
from oncehouse.errors import ConfigurationError, LeaseHeldError
from oncehouse.ledger.catalog import epochs
from oncehouse.ledger.catalog.query_batches import list_settled
from oncehouse.ledger.models import EpochKind, FileFormat
from oncehouse.pipeline.external.file_import import import_files, make_job
from oncehouse.pipeline.requests.dead_letter_replay import read_dead_letters


def table_of(numbers: range) -> pa.Table:
    events = [make_event(number) for number in numbers]
    return pa.table(
        {
            "project": [event[0] for event in events],
            "event_type": pa.array([event[1] for event in events]).dictionary_encode(),
            "product_id": pa.array([event[2] for event in events], pa.int32()),
            "note": [note_of(event) for event in events],
        }
    )


def expect(live_pipeline: LivePipeline, numbers: range) -> None:
    for number in numbers:
        live_pipeline.expected.setdefault(make_event(number), note_of(make_event(number)))


def run_import(live_pipeline: LivePipeline, place, format_: str, **options):
    job = make_job(str(place), FileFormat(format_), batch_bytes=options.pop("batch_bytes", 1))
    told: list[str] = []
    import_files(live_pipeline.pipeline, job, spark=live_pipeline.spark, say=told.append, **options)
    return job, told


@pytest.mark.long
def test_an_import_killed_half_way_goes_on_and_finds_what_kafka_brought(make_pipeline, tmp_path):
    live_pipeline = make_pipeline()
    live_pipeline.send(make_event(number) for number in range(50))
    live_pipeline.run()
    folder = tmp_path / "old"
    folder.mkdir()
    for number in range(4):
        pq.write_table(table_of(range(number * 30, number * 30 + 30)), folder / f"{number}.parquet")
    lines = [encode(make_event(number)) for number in range(100, 160)]
    (folder / "more.jsonl").write_bytes(b"\n".join(lines))
    live_pipeline.crash_import(
        "after registering:2", str(folder), "--format", "parquet", "--batch-bytes", "1B"
    )
    job = make_job(str(folder), FileFormat.PARQUET)
    assert [first for first, _, _ in list_settled(live_pipeline.catalog)[job.name]] == [0, 1]
    _, told = run_import(live_pipeline, folder, "parquet")
    assert f"2 of 4 batches of {job.name} are settled already" in told
    expect(live_pipeline, range(120))
    live_pipeline.assert_table(live_pipeline.table, live_pipeline.expected)
    counts = live_pipeline.counts(EpochKind.FRAME)
    assert (counts.read, counts.new, counts.duplicate, counts.conflicts) == (120, 70, 50, 0)
    # Lines of JSON are the messages themselves, so a duplicate is compared byte by byte.
    run_import(live_pipeline, folder, "json", batch_bytes=1 << 20)
    expect(live_pipeline, range(160))
    live_pipeline.assert_exact()
    counts = live_pipeline.counts(EpochKind.FRAME)
    assert (counts.duplicate, counts.conflicts) == (70, 0)
    # New files are taken in, known ones are not read again, and a changed one is refused.
    pq.write_table(table_of(range(155, 165)), folder / "9.parquet")
    run_import(live_pipeline, folder, "parquet")
    expect(live_pipeline, range(165))
    live_pipeline.assert_exact()
    pq.write_table(table_of(range(7)), folder / "0.parquet")
    with pytest.raises(ConfigurationError, match=r"0\.parquet has changed"):
        run_import(live_pipeline, folder, "parquet")
    with (
        live_pipeline.leases(),
        pytest.raises(LeaseHeldError, match=r"run by this test ingest.*stop that process"),
    ):
        run_import(live_pipeline, folder, "json")


def test_csv_and_json_come_into_a_pipeline_of_frames_and_bad_lines_cost_only_themselves(
    make_pipeline, tmp_path
):
    live_pipeline = make_pipeline(tables=False)
    fields = live_pipeline.document["source"]["fields"]
    live_pipeline.document["source"] = {"format": "frame", "fields": fields}
    live_pipeline.create_tables()
    path = tmp_path / "rows.csv"
    pa_csv.write_csv(table_of(range(20)), path)
    with path.open("ab") as file:
        file.write(b"shop,view,30\nshop,view,many,note\n" + 'shop,buy,35,"two\nlines, é"\n'.encode())
    run_import(live_pipeline, path, "csv")
    expect(live_pipeline, range(20))
    live_pipeline.expected["shop", "buy", 35] = "two\nlines, é"
    (tmp_path / "rows.json").write_bytes(
        b"\n".join([*(encode(make_event(number)) for number in range(10, 25)), b"no json", b""])
    )
    run_import(live_pipeline, tmp_path / "rows.json", "json")
    expect(live_pipeline, range(25))
    live_pipeline.assert_table(live_pipeline.table, live_pipeline.expected)
    letters = read_dead_letters(
        live_pipeline.store, [found.file for found in epochs.list_dead_letter_files(live_pipeline.catalog)]
    )
    found = sorted((letter["reason"], letter["value"][:4]) for letter in letters.to_pylist())
    assert found == [("not_json", b"no j"), ("wrong_type", b"shop"), ("wrong_type", b'{"pr')]
    assert not live_pipeline.findings()
