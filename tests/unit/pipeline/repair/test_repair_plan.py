"""From what each damaged file can be made again, and what is told where it cannot: pure planning."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ledger_examples import TABLE, make_file, make_part, make_segment
from oncehouse.ledger.models import (
    BatchStatus,
    Counts,
    DeadLetterFile,
    DeadLetterKind,
    DuplicateFile,
    EpochKind,
    EpochRow,
    KeyFile,
    LedgerBatch,
    OffsetRange,
)
from oncehouse.ledger.stats.ledger_state import LedgerState, RegisteredKeyFile
from oncehouse.pipeline.checks.stale_catalog import find_newer
from oncehouse.pipeline.repair.kafka_availability import KafkaFacts
from oncehouse.pipeline.repair.repair_plan import FileKind, RepairSource, plan_repairs

KAFKA = KafkaFacts(earliest={("orders", 0): 0})


def make_state(**changes) -> LedgerState:
    key_file = KeyFile(
        key_file="keys-1", ordinal=0, events=10, keys=make_file("keys/1"), raw=make_file("raw/1")
    )
    state = LedgerState(
        now=100.0,
        epochs=(
            EpochRow(
                epoch=1,
                kind=EpochKind.KAFKA,
                token=1,
                started_at=1.0,
                registered_at=2.0,
                counts=Counts(read=11, new=7, duplicate=3, dead_letter=1),
            ),
        ),
        ranges=((1, OffsetRange(topic="orders", partition=0, start=5, end=16)),),
        positions={("orders", 0): 16},
        queries={},
        key_files=(RegisteredKeyFile(epoch=1, registered_at=2.0, key_file=key_file),),
        parts=(replace(make_part("part-1", live_rows=7), batch_id="batch-1"),),
        duplicates={1: (DuplicateFile(rows=3, file=make_file("duplicates/1")),)},
        dead_letter_files=(
            DeadLetterFile(
                dead_letter_file="letters-1",
                epoch=1,
                rows=1,
                reasons={"not_json": 1},
                file=make_file("letters/1"),
            ),
        ),
        segments=(make_segment("segment-1"),),
        batches=(
            LedgerBatch(
                batch_id="batch-1",
                table=TABLE,
                status=BatchStatus.NEW,
                rows=7,
                size_bytes=700,
                created_at=3.0,
                attempts=0,
                next_attempt_at=0.0,
            ),
        ),
    )
    return replace(state, **changes)


ALL = {"raw/1", "keys/1", "duplicates/1", "parts/part-1", "letters/1", "segments/segment-1"}


def plan(state: LedgerState, *paths: str, kafka: KafkaFacts = KAFKA, **more):
    return {found.kind: found for found in plan_repairs(state, dict.fromkeys(paths, "cut"), kafka, **more)}


def test_a_sound_ledger_needs_nothing():
    assert plan_repairs(make_state(), {}, KAFKA) == ()


def test_each_file_comes_from_the_next_better_source_also_when_all_are_damaged():
    found = plan(make_state(), *ALL)
    assert list(found) == list(FileKind)
    assert {kind: repair.source for kind, repair in found.items()} == {
        FileKind.RAW: RepairSource.KAFKA,
        FileKind.KEYS: RepairSource.RAW,
        FileKind.DUPLICATES: RepairSource.KEYS,
        FileKind.PART: RepairSource.RAW,
        FileKind.DEAD_LETTERS: RepairSource.KAFKA,
        FileKind.SEGMENT: RepairSource.KEYS,
    }
    assert found[FileKind.RAW].records == 11


def test_offsets_that_kafka_has_deleted_are_named_exactly():
    found = plan(make_state(), *ALL, kafka=KafkaFacts(earliest={("orders", 0): 9}))
    assert all(repair.source is None for repair in found.values())
    assert "Kafka has deleted the offsets 5 to 8 of topic orders partition 0" in (
        found[FileKind.PART].why or ""
    )
    assert found[FileKind.PART].lost == f"7 rows of {TABLE} are not in ClickHouse yet and cannot be sent"


@pytest.mark.parametrize(
    ("kafka", "why"),
    [
        (KafkaFacts(), "has no partition 0"),
        (KafkaFacts(unfit={"orders": "topic orders was deleted and created again"}), "created again"),
    ],
)
def test_another_topic_of_the_same_name_is_no_source(kafka, why):
    assert why in (plan(make_state(), "raw/1", kafka=kafka)[FileKind.RAW].why or "")


def test_what_kafka_has_lost_does_not_matter_while_the_raw_bytes_are_there():
    found = plan(make_state(), *ALL - {"raw/1", "letters/1"}, kafka=KafkaFacts())
    assert all(repair.source is not None for repair in found.values())


def test_a_loaded_part_is_only_missed_when_it_is_sent_again():
    state = make_state()
    loaded = replace(state.batches[0], status=BatchStatus.IN_CLICKHOUSE)
    found = plan(replace(state, batches=(loaded,)), "parts/part-1", "duplicates/1")
    assert "7 rows" in found[FileKind.PART].lost
    assert "in ClickHouse already" in found[FileKind.PART].lost
    assert "all its rows are in ClickHouse" in found[FileKind.DUPLICATES].lost


def test_records_that_were_not_read_from_kafka_are_not_looked_for_there():
    state = make_state()
    replayed = replace(state.epochs[0], kind=EpochKind.REPLAY)
    found = plan(replace(state, epochs=(replayed,)), "raw/1", "letters/1")
    assert {repair.source for repair in found.values()} == {None}
    assert "not read from Kafka" in (found[FileKind.RAW].why or "")


def test_edits_are_nobodys_but_the_persons_who_made_them():
    state = make_state()
    edit = replace(state.dead_letter_files[0], kind=DeadLetterKind.EDIT)
    assert plan(replace(state, dead_letter_files=(edit,)), "letters/1")[FileKind.DEAD_LETTERS].source is None


def test_ids_of_another_rule_do_not_tell_what_was_a_duplicate():
    found = plan(make_state(), "duplicates/1", rekeyed_at=50.0)
    assert found[FileKind.DUPLICATES].source is None
    assert plan(make_state(), "duplicates/1", rekeyed_at=1.0)[FileKind.DUPLICATES].source is RepairSource.KEYS


def test_the_index_needs_every_key_file_and_every_list_of_duplicates():
    lost = KafkaFacts(earliest={("orders", 0): 99})
    assert plan(make_state(), "segments/segment-1", kafka=lost)[FileKind.SEGMENT].source is RepairSource.KEYS
    found = plan(make_state(), "segments/segment-1", "keys/1", "raw/1", kafka=lost)[FileKind.SEGMENT]
    assert found.source is None
    assert "key file keys-1 is damaged too" in (found.why or "")
    found = plan(make_state(), "segments/segment-1", "duplicates/1", rekeyed_at=50.0)[FileKind.SEGMENT]
    assert "duplicates of epoch 1 are damaged too" in (found.why or "")


def test_ids_that_came_out_of_a_table_come_from_there_again():
    state = make_state(segments=(make_segment("adopted-5-x"),))
    assert plan(state, "segments/adopted-5-x")[FileKind.SEGMENT].source is RepairSource.CLICKHOUSE


def test_a_part_that_was_sent_again_under_another_name_is_one_file():
    state = make_state()
    again = replace(state.parts[0], part="part-again", epoch=2)
    assert len(plan_repairs(replace(state, parts=(*state.parts, again)), {"parts/part-1": "cut"}, KAFKA)) == 1


@pytest.mark.parametrize(
    ("path", "newer"),
    [
        ("shop/0000000/0000000004-7-r1.keys.arrow", False),  # settled
        ("shop/0000000/0000000005-7-r1.keys.arrow", False),  # an attempt at the next epoch that died
        ("shop/0000000/0000000006-7-r1.keys.arrow", True),  # the next epoch must have been settled
        ("shop/0000000/0000000006-6-r1.keys.arrow", False),  # of a time that was given up on purpose
        ("shop/0000000/0000000005-8-r1.keys.arrow", True),  # a holder that the catalog does not know
        ("shop/edits/1794772800-9-edit.parquet", False),
        ("shop/packs/9-abc.raw.parquet", False),
    ],
)
def test_a_file_tells_that_the_catalog_is_older(path, newer):
    assert (find_newer([path], next_epoch=5, token=7) is not None) == newer
