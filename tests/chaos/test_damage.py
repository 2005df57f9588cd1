"""Bytes of the ledger that are not what they were: noticed, named, and made again from where they still exist.

Each scenario is played as it is, and with a repair that is wrong in one point, which the oracle must notice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from live_pipeline import LivePipeline, encode, make_event
from oncehouse.cli.app import run_command
from oncehouse.errors import CorruptFileError, LeaseHeldError, OncehouseError, PermanentError
from oncehouse.ledger.catalog import epochs
from oncehouse.ledger.catalog.batches import list_parts
from oncehouse.ledger.catalog.segments import list_segments
from oncehouse.ledger.models import BatchStatus, DeadLetterKind, FileRef, RequestKind, Stage
from oncehouse.pipeline.repair import catalog_restore, file_restorer
from oncehouse.pipeline.repair.repair import RepairResult, apply_repair, plan_repair
from oncehouse.pipeline.repair.repair_plan import FileKind, RepairSource

EVENTS = [make_event(number) for number in range(120)]

Harm = Callable[[Path], None]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for at in range(len(content) // 4, len(content), max(len(content) // 8, 1)):
        content[at] ^= 0x55
    path.write_bytes(content)


def flip_pages(path: Path) -> None:
    """The first byte of some pages of a SQLite file, which says what they are."""
    content = bytearray(path.read_bytes())
    for at in range(2 * 4096, len(content), 5 * 4096):
        content[at] ^= 0x55
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def delete(path: Path) -> None:
    path.unlink()


HARMS = pytest.mark.parametrize("harm", [flip, cut, delete])


def harm_file(live_pipeline: LivePipeline, file: FileRef, harm: Harm) -> str:
    harm(Path(live_pipeline.store.root) / file.path)
    return file.path


def repair(live_pipeline: LivePipeline) -> RepairResult:
    live_pipeline.age_marks()
    return apply_repair(live_pipeline.pipeline, live_pipeline.said.append)


def key_files(live_pipeline: LivePipeline):
    return [found for _, _, found in epochs.list_key_files(live_pipeline.catalog)]


# A part


def play_damaged_part(live_pipeline: LivePipeline, harm: Harm) -> None:
    live_pipeline.send([*EVENTS[:40], *EVENTS[:5]])
    live_pipeline.run(only=[Stage.INGEST])
    live_pipeline.send([*EVENTS[40:80], *EVENTS[:5]])
    live_pipeline.run(only=[Stage.INGEST])
    path = harm_file(live_pipeline, list_parts(live_pipeline.catalog)[0].file, harm)
    live_pipeline.run()
    (parked,) = live_pipeline.batches(statuses=[BatchStatus.PARKED])
    assert path in (parked.reason or ""), parked.reason
    (planned,) = plan_repair(live_pipeline.pipeline).files
    assert (planned.kind, planned.source, planned.file.path) == (FileKind.PART, RepairSource.RAW, path)
    assert "not in ClickHouse yet" in planned.lost
    (done,) = repair(live_pipeline).done
    assert done.released == (parked.batch_id,)
    live_pipeline.run()


@pytest.mark.scenario("damaged part")
@HARMS
def test_a_damaged_part_is_named_and_made_again(live_pipeline, harm):
    play_damaged_part(live_pipeline, harm)
    live_pipeline.assert_exact()


@pytest.mark.defect("damaged part")
def test_a_part_made_again_from_other_events_is_noticed(live_pipeline, monkeypatch):
    """Counts cannot tell: both epochs have as many events and duplicates, in the same places."""
    monkeypatch.setattr(file_restorer.Restorer, "_find", lambda self, _name: self._state.key_files[-1])
    play_damaged_part(live_pipeline, flip)
    with pytest.raises(AssertionError, match="40 events are lost"):
        live_pipeline.assert_exact()


# A key file


def play_damaged_key_file(live_pipeline: LivePipeline, harm: Harm) -> None:
    """The index cannot be made anew without it."""
    live_pipeline.send(EVENTS[:40])
    live_pipeline.run()
    path = harm_file(live_pipeline, key_files(live_pipeline)[0].keys, harm)
    assert any(path in finding.message for finding in live_pipeline.findings())
    (planned,) = plan_repair(live_pipeline.pipeline).files
    assert (planned.kind, planned.source, planned.file.path) == (FileKind.KEYS, RepairSource.RAW, path)
    assert not repair(live_pipeline).refused
    assert "40 keys" in live_pipeline.request(RequestKind.REBUILD_INDEX)
    live_pipeline.send(EVENTS[20:60], partition=1)
    live_pipeline.run()


@pytest.mark.scenario("damaged key file")
@HARMS
def test_a_damaged_key_file_is_named_and_made_again(live_pipeline, harm):
    play_damaged_key_file(live_pipeline, harm)
    live_pipeline.assert_exact()


@pytest.mark.defect("damaged key file")
def test_a_key_file_made_again_with_other_ids_is_noticed(live_pipeline, monkeypatch):
    right = file_restorer.sort_ids

    def sort_others(ids):
        return right(replace(ids, lo=ids.lo ^ np.uint64(1)))

    monkeypatch.setattr(file_restorer, "sort_ids", sort_others)
    play_damaged_key_file(live_pipeline, flip)
    with pytest.raises(AssertionError, match="20 rows are doubled"):
        live_pipeline.assert_exact()


# A segment


def play_damaged_segment(live_pipeline: LivePipeline, harm: Harm) -> None:
    live_pipeline.send(EVENTS[:40])
    live_pipeline.run()
    path = harm_file(live_pipeline, list_segments(live_pipeline.catalog)[0].file, harm)
    live_pipeline.send(EVENTS[20:60], partition=1)
    with pytest.raises(CorruptFileError) as raised:
        live_pipeline.run()
    assert path in str(raised.value)
    (planned,) = plan_repair(live_pipeline.pipeline).files
    assert (planned.kind, planned.source, planned.file.path) == (FileKind.SEGMENT, RepairSource.KEYS, path)
    assert not repair(live_pipeline).refused
    live_pipeline.run()


@pytest.mark.scenario("damaged segment")
@HARMS
def test_a_damaged_segment_stops_ingest_and_is_made_again(live_pipeline, harm):
    play_damaged_segment(live_pipeline, harm)
    live_pipeline.assert_exact()


@pytest.mark.defect("damaged segment")
def test_a_segment_that_is_left_out_is_noticed(live_pipeline, monkeypatch):
    monkeypatch.setattr(file_restorer, "plan_rebuild", lambda *_: [])
    play_damaged_segment(live_pipeline, flip)
    with pytest.raises(AssertionError, match="20 rows are doubled"):
        live_pipeline.assert_exact()


# The catalog


def play_damaged_catalog(live_pipeline: LivePipeline, harm: Harm) -> None:
    """After the last snapshot an open part is loaded, then an epoch comes that is loaded, and one that is not."""
    live_pipeline.send(EVENTS[:40])
    live_pipeline.run()
    live_pipeline.send(EVENTS[100:110])
    live_pipeline.run(only=[Stage.INGEST])
    live_pipeline.retain()
    live_pipeline.send(EVENTS[20:60], partition=1)
    live_pipeline.run(only=[Stage.INGEST])
    live_pipeline.run(only=[Stage.LOAD])
    live_pipeline.send(EVENTS[50:80])
    live_pipeline.run(only=[Stage.INGEST])
    live_pipeline.catalog.close()
    catalog = live_pipeline.folder / "catalog.db"
    for beside in ("catalog.db-wal", "catalog.db-shm"):
        (live_pipeline.folder / beside).unlink(missing_ok=True)
    if harm is flip:
        flip_pages(catalog)
    elif harm is cut:
        catalog.write_bytes(catalog.read_bytes()[: catalog.stat().st_size // 2])
    else:
        harm(catalog)
    live_pipeline.send(EVENTS[70:100], partition=1)
    with pytest.raises(OncehouseError, match="repair"):
        live_pipeline.run()
    planned = plan_repair(live_pipeline.pipeline).catalog
    assert planned is not None
    assert not planned.refused, planned
    assert planned.strange_rows == {live_pipeline.table: 30}
    result = repair(live_pipeline)
    assert (result.put_aside is not None) == (harm is not delete)
    assert not result.refused
    live_pipeline.run()


@pytest.mark.scenario("damaged catalog")
@HARMS
def test_a_damaged_catalog_comes_back_from_its_snapshot_and_from_clickhouse(live_pipeline, harm):
    play_damaged_catalog(live_pipeline, harm)
    live_pipeline.assert_exact()
    # What came back remembers what it has taken out of the table.
    live_pipeline.request(RequestKind.REBUILD_INDEX)
    live_pipeline.send(EVENTS, partition=1)
    live_pipeline.run()
    live_pipeline.assert_exact()


@pytest.mark.defect("damaged catalog")
def test_a_catalog_that_learns_nothing_from_the_table_is_noticed(live_pipeline, monkeypatch):
    monkeypatch.setattr(catalog_restore, "write_segments", lambda *_: ())
    play_damaged_catalog(live_pipeline, flip)
    with pytest.raises(AssertionError, match="rows are doubled"):
        live_pipeline.assert_exact()


def test_a_catalog_without_any_snapshot_begins_anew_while_kafka_has_everything(live_pipeline):
    live_pipeline.send(EVENTS[:40])
    live_pipeline.run()
    for snapshot in (live_pipeline.folder / "files" / "live").glob("catalog/*"):
        snapshot.unlink()
    live_pipeline.catalog.close()
    for file in live_pipeline.folder.glob("catalog.db*"):
        file.unlink()
    live_pipeline.send(EVENTS[20:60])
    with pytest.raises(PermanentError, match="does not know the pipeline"):
        live_pipeline.run()
    planned = plan_repair(live_pipeline.pipeline).catalog
    assert planned is not None
    assert (planned.begins_anew, planned.refused) == (True, ())
    repair(live_pipeline)
    live_pipeline.run()
    live_pipeline.assert_exact()


def test_a_catalog_cannot_come_back_when_kafka_has_deleted_what_it_would_read(live_pipeline, kafka_admin):
    from confluent_kafka import TopicPartition

    live_pipeline.send(EVENTS[:40])
    live_pipeline.run()
    live_pipeline.retain()
    live_pipeline.send(EVENTS[40:60])
    live_pipeline.run(only=[Stage.INGEST])
    live_pipeline.run(only=[Stage.LOAD])
    live_pipeline.catalog.close()
    (live_pipeline.folder / "catalog.db").unlink()
    place = TopicPartition(live_pipeline.topic, 0, 50)
    kafka_admin.delete_records([place])[place].result(30)
    planned = plan_repair(live_pipeline.pipeline).catalog
    assert planned is not None
    assert any("deleted the offsets" in reason for reason in planned.refused), planned.refused
    result = repair(live_pipeline)
    assert result.catalog is not None
    assert result.catalog.refused == planned.refused
    assert not (live_pipeline.folder / "catalog.db").exists()


def test_an_older_catalog_of_postgresql_learns_what_the_table_has(make_pipeline, postgres_url):
    """A dump that was restored: as if the rows of the last epochs had never been written."""
    from oncehouse.ledger.catalog import schema, snapshots, table_adoption

    live_pipeline = make_pipeline(partitions=2, ledger={"catalog": postgres_url})
    live_pipeline.send(EVENTS[:40])
    live_pipeline.run()
    dump = snapshots.write_snapshot(live_pipeline.catalog, live_pipeline.store)
    content = live_pipeline.store.read_bytes(dump.path)
    live_pipeline.send(EVENTS[20:80], partition=1)
    live_pipeline.run()
    live_pipeline.store.delete(dump.path)
    (Path(live_pipeline.store.root) / dump.path).write_bytes(content)
    with (
        snapshots.open_snapshot(live_pipeline.store, dump, "live") as old,
        old.read() as source,
        live_pipeline.catalog.engine.begin() as target,
    ):
        for table in reversed(schema.metadata.sorted_tables):
            if "pipeline" in table.c:
                target.execute(table.delete().where(table.c.pipeline == "live"))
        table_adoption.copy_rows(source, target, "live")
    with pytest.raises(PermanentError, match="older than the ledger's files"):
        live_pipeline.run()
    planned = plan_repair(live_pipeline.pipeline).catalog
    assert planned is not None
    assert planned.strange_rows == {live_pipeline.table: 40}
    repair(live_pipeline)
    assert plan_repair(live_pipeline.pipeline).is_clean
    live_pipeline.run()
    live_pipeline.assert_exact()


# What else a ledger holds


def test_a_whole_epoch_of_files_comes_back_from_kafka(live_pipeline):
    live_pipeline.send(EVENTS[:40])
    live_pipeline.run(only=[Stage.INGEST])
    live_pipeline.send(EVENTS[20:60], partition=1)
    live_pipeline.send_raw([b"not json", encode(EVENTS[70])])
    live_pipeline.expected[EVENTS[70]] = live_pipeline.expected.get(
        EVENTS[70], f"note of 70 {'x' * (70 % 17)}"
    )
    live_pipeline.run(only=[Stage.INGEST])
    files = [file for found in key_files(live_pipeline) for file in (found.keys, found.raw)]
    files += [part.file for part in list_parts(live_pipeline.catalog)]
    files += [file for found in epochs.list_duplicate_files(live_pipeline.catalog).values() for file in found]
    files += [
        found.file for found in epochs.list_dead_letter_files(live_pipeline.catalog, kind=DeadLetterKind.DEAD)
    ]
    files += [found.file for found in list_segments(live_pipeline.catalog)]
    for number, file in enumerate(files):
        harm_file(live_pipeline, file, (flip, cut, delete)[number % 3])
    planned = plan_repair(live_pipeline.pipeline).files
    assert {found.kind for found in planned} == set(FileKind)
    assert all(found.source is not None for found in planned), planned
    assert not repair(live_pipeline).refused
    assert plan_repair(live_pipeline.pipeline).is_clean
    live_pipeline.run()
    live_pipeline.assert_table(live_pipeline.table, live_pipeline.expected)
    assert not live_pipeline.findings()


def test_what_kafka_has_deleted_is_told_and_left_alone(live_pipeline, kafka_admin):
    from confluent_kafka import TopicPartition

    live_pipeline.send(EVENTS[:40])
    live_pipeline.run()
    harm_file(live_pipeline, key_files(live_pipeline)[0].raw, delete)
    harm_file(live_pipeline, list_parts(live_pipeline.catalog)[0].file, cut)
    place = TopicPartition(live_pipeline.topic, 0, 10)
    kafka_admin.delete_records([place])[place].result(30)
    planned = plan_repair(live_pipeline.pipeline).files
    assert [found.kind for found in planned] == [FileKind.RAW, FileKind.PART]
    assert all(found.source is None for found in planned)
    assert all(f"offsets 0 to 9 of topic {live_pipeline.topic}" in (found.why or "") for found in planned)
    assert "40 rows" in planned[1].lost
    assert "in ClickHouse already" in planned[1].lost
    assert len(repair(live_pipeline).refused) == 2


def test_nothing_is_made_again_while_the_pipeline_runs(live_pipeline):
    live_pipeline.send(EVENTS[:40])
    with live_pipeline.start() as running:
        running.wait_for_rows(40)
        with pytest.raises(LeaseHeldError):
            repair(live_pipeline)
    assert plan_repair(live_pipeline.pipeline).is_clean


def test_the_command_tells_what_is_damaged_and_mends_it(live_pipeline, capsys):
    file = live_pipeline.command_line("repair")[-1]
    live_pipeline.send(EVENTS[:40])
    live_pipeline.run(only=[Stage.INGEST])
    path = harm_file(live_pipeline, list_parts(live_pipeline.catalog)[0].file, cut)
    assert run_command(["repair", file]) == 3
    told = capsys.readouterr().out
    assert path in told
    assert f"from: raw bytes; cost: 40 events are read ({live_pipeline.topic}/0 0 to 39)" in told
    assert run_command(["repair", file, "--apply"]) == 0
    assert "1 files were made again, 0 could not be" in capsys.readouterr().out
    assert run_command(["repair", file, "--plan"]) == 0
    live_pipeline.run()
    live_pipeline.assert_exact()
