"""Damaged files are made again as they were, from what the ledger, Kafka and the tables have, or they are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ledger_examples import take_lease
from oncehouse.ledger.catalog import epochs
from oncehouse.ledger.catalog.batches import find_batch, list_parts
from oncehouse.ledger.catalog.known_schemas import add_schemas
from oncehouse.ledger.catalog.learned_fields import learn_fields
from oncehouse.ledger.catalog.packs import is_pack
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.catalog.segments import is_adopted, list_segments
from oncehouse.ledger.models import (
    BatchStatus,
    Counts,
    DeadLetterKind,
    EpochKind,
    FileRef,
    LearnedField,
    Registration,
    Schema,
)
from oncehouse.pipeline.ingest.part_files import read_rows
from oncehouse.pipeline.repair import epoch_reread, file_restorer, repair
from oncehouse.pipeline.repair.repair import RepairResult, plan_repair
from oncehouse.pipeline.repair.repair_plan import FileKind
from repairable_ledger import RepairableLedger, as_halves

UNSTEADY = """
import itertools
import pyarrow as pa

calls = itertools.count()


def shape(table):
    return table.append_column("made", pa.array([f"call {next(calls)}"] * table.num_rows))
"""


@pytest.fixture
def make_repairable(tmp_path, monkeypatch) -> Iterator[Callable[..., RepairableLedger]]:
    made: list[RepairableLedger] = []

    def make(**changes: object) -> RepairableLedger:
        repairable = RepairableLedger(tmp_path, **changes)
        made.append(repairable)
        for module in (repair, file_restorer):
            monkeypatch.setattr(module, "connect", lambda _: repairable.tables)
        monkeypatch.setattr(repair, "_ask_kafka", lambda _, known: repairable.ask_kafka(known))
        monkeypatch.setattr(
            epoch_reread,
            "reread_offsets",
            lambda _kafka, ranges, **_: [repairable.block(span.start, span.end) for span in ranges],
        )
        return repairable

    yield make
    for repairable in made:
        repairable.catalog.close()


def harm(repairable: RepairableLedger, file: FileRef) -> None:
    path = Path(repairable.store.root) / file.path
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x55
    path.write_bytes(content[:-3])


def mend(repairable: RepairableLedger) -> RepairResult:
    repairable.stop()
    return repair.apply_repair(repairable.pipeline, lambda _: None)


def rows_of(repairable: RepairableLedger) -> list[dict[str, object]]:
    return [
        row
        for part in list_parts(repairable.catalog)
        for row in read_rows(repairable.store, part.file).to_pylist()
    ]


# Packs


def test_a_damaged_pack_comes_back_as_what_is_in_it(make_repairable):
    repairable = make_repairable()
    for start in (0, 5, 10):
        repairable.load(repairable.ingest(range(start, start + 5)))
    before = rows_of(repairable)
    repairable.pack()
    packed = {part.file.path for part in list_parts(repairable.catalog)} | {
        file.path
        for _, _, found in epochs.list_key_files(repairable.catalog)
        for file in (found.keys, found.raw)
    }
    assert len(packed) == 3
    for path in packed:
        assert is_pack(path)
        harm(repairable, FileRef(path=path, size_bytes=0, checksum=""))
    planned = plan_repair(repairable.pipeline).files
    assert [found.kind for found in planned] == [FileKind.RAW] * 3 + [FileKind.KEYS] * 3 + [FileKind.PART] * 3
    result = mend(repairable)
    assert not result.refused
    assert sum(len(done.repairs) for done in result.done) == 9
    assert rows_of(repairable) == before
    assert plan_repair(repairable.pipeline).is_clean
    assert not any(is_pack(part.file.path) for part in list_parts(repairable.catalog))


# Shaped parts


@pytest.fixture
def shaped(make_repairable, tmp_path) -> RepairableLedger:
    """A repairable whose function gives something else each time, so that parts made again have other bytes."""
    (tmp_path / "shape.py").write_text(UNSTEADY)
    return make_repairable(
        shape={
            "columns": {"made": {"type": "String"}},
            "function": {"file": str(tmp_path / "shape.py"), "name": "shape"},
        }
    )


@pytest.mark.parametrize(("outcome", "refused"), [("unknown", True), ("failed", False)])
def test_a_shaped_part_that_may_be_in_clickhouse_is_not_made_with_other_bytes(shaped, outcome, refused):
    batch_id = shaped.make_batch(shaped.ingest(range(5)))
    (part,) = list_parts(shaped.catalog)
    harm(shaped, part.file)
    shaped.end_attempt(batch_id, BatchStatus.PARKED, outcome, f"{part.file.path} is damaged")
    result = mend(shaped)
    assert [("transformed" in found.reason) for found in result.refused] == [True] * refused
    expected = BatchStatus.PARKED if refused else BatchStatus.RETRY
    assert find_batch(shaped.catalog, batch_id).status is expected


def test_a_shaped_part_that_may_be_in_clickhouse_is_made_with_the_same_bytes(make_repairable):
    repairable = make_repairable(shape={"columns": {"made": {"type": "String", "sql": "'always the same'"}}})
    batch_id = repairable.make_batch(repairable.ingest(range(5)))
    (part,) = list_parts(repairable.catalog)
    harm(repairable, part.file)
    repairable.end_attempt(batch_id, BatchStatus.PARKED, "unknown", f"{part.file.path} is damaged")
    assert not mend(repairable).refused
    (made,) = list_parts(repairable.catalog)
    assert made.file.path != part.file.path
    assert made.file.checksum == part.file.checksum


def test_a_shaped_part_that_is_on_its_way_under_another_name_is_not_made_either(shaped):
    """A refill sends the same file again: the first batch is settled, the second one may be in ClickHouse."""
    first = shaped.ingest(range(5))
    shaped.load(first)
    (part,) = list_parts(shaped.catalog)
    again = replace(part, part="again", epoch=2, batch_id=None)
    register(
        shaped.catalog,
        take_lease(shaped.catalog),
        Registration(
            epoch=2, kind=EpochKind.REFILL, started_at=1.0, counts=Counts(), topic_ids={}, parts=(again,)
        ),
    )
    batch_id = shaped.make_batch(2)
    shaped.end_attempt(batch_id, BatchStatus.PARKED, "unknown", "who knows")
    harm(shaped, part.file)
    (refusal,) = mend(shaped).refused
    assert "is transformed, its bytes are not those that were written" in refusal.reason
    assert {found.file.path for found in list_parts(shaped.catalog)} == {part.file.path}


# Fields that were learnt


def test_a_part_of_before_a_field_was_learnt_is_made_again_without_it(make_repairable):
    repairable = make_repairable()
    repairable.ingest(range(3))
    before = rows_of(repairable)
    (old,) = list_parts(repairable.catalog)
    learn_fields(repairable.catalog, [LearnedField(field="price", type="Nullable(UInt64)")])
    repairable.ingest([], more=[json.dumps({"id": 3, "price": 7}).encode()])
    _, new = list_parts(repairable.catalog)
    assert new.shape != old.shape
    harm(repairable, old.file)
    harm(repairable, new.file)
    assert not mend(repairable).refused
    found = rows_of(repairable)
    assert found[:3] == before
    assert found[3]["price"] == 7


# Letters


def test_records_that_wait_for_their_schema_wait_again_in_a_file_made_again(make_repairable):
    """Although the schema has become known since: what was settled as waiting stays so."""
    schema = json.dumps({"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]})
    repairable = make_repairable(
        source={
            "kafka": {"bootstrap_servers": "127.0.0.1:9", "topics": ["orders"]},
            "format": "avro",
            "avro": {"registry": {"url": "http://127.0.0.1:9"}},
            "fields": {"id": "Int64"},
        }
    )
    add_schemas(repairable.catalog, [Schema(schema="1", format="avro", definition=schema)])
    repairable.ingest([], more=[b"\0\0\0\0\1\2", b"\0\0\0\0\2\4", b"\0\0\0\0\2\6", b"\0"])
    (waiting,) = epochs.list_dead_letter_files(repairable.catalog, kind=DeadLetterKind.WAITING)
    (dead,) = epochs.list_dead_letter_files(repairable.catalog, kind=DeadLetterKind.DEAD)
    before = [read_rows(repairable.store, found.file).to_pylist() for found in (waiting, dead)]
    assert [row["schema"] for row in before[0]] == ["2", "2"]
    add_schemas(repairable.catalog, [Schema(schema="2", format="avro", definition=schema)])
    harm(repairable, waiting.file)
    harm(repairable, dead.file)
    assert not mend(repairable).refused
    made = [
        read_rows(
            repairable.store, epochs.list_dead_letter_files(repairable.catalog, kind=kind)[0].file
        ).to_pylist()
        for kind in (DeadLetterKind.WAITING, DeadLetterKind.DEAD)
    ]
    assert made == before


# Ids that came out of tables


@pytest.fixture
def adopted(make_repairable) -> RepairableLedger:
    """A catalog that has learnt four ids from its table, whose segment is damaged."""
    repairable = make_repairable()
    repairable.load(repairable.ingest(range(3)))
    repairable.snapshot()
    repairable.load(repairable.ingest(range(3, 7)))
    repairable.lose_catalog()
    repairable.restore()
    (segment,) = filter(is_adopted, list_segments(repairable.catalog))
    assert segment.keys == 4
    harm(repairable, segment.file)
    return repairable


def test_ids_that_came_out_of_a_table_are_read_from_there_again(adopted):
    assert not mend(adopted).refused
    known = {unique_id for _, unique_id in adopted.tables.rows["orders"]}
    assert adopted.index() == as_halves(list(known))
    (segment,) = filter(is_adopted, list_segments(adopted.catalog))
    assert segment.first_seen_from > 0


def test_ids_whose_rows_were_deleted_are_not_forgotten(adopted):
    """A shorter index would let their events count as new; the ledger's files are left as they are."""
    (old,) = filter(is_adopted, list_segments(adopted.catalog))
    del adopted.tables.rows["orders"][-1]
    (refusal,) = mend(adopted).refused
    assert "orders holds 3 rows of batches that the ledger knows only in sum, and had 4" in refusal.reason
    assert list(filter(is_adopted, list_segments(adopted.catalog))) == [old]


def test_rows_that_took_the_place_of_others_do_not_hide_that_ids_are_missing(adopted):
    """As many rows as before, but one of them stands twice."""
    rows = adopted.tables.rows["orders"]
    rows[-1] = rows[-2]
    (refusal,) = mend(adopted).refused
    assert "hold 3 ids" in refusal.reason
    assert "4 were taken from them" in refusal.reason
