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
    EpochKind,
    FileRef,
    LearnedField,
    LetterKind,
    Registration,
    Schema,
)
from oncehouse.pipeline.ingest.part_files import read_rows
from oncehouse.pipeline.repair import epoch_reread, file_restorer, repair
from oncehouse.pipeline.repair.repair import RepairResult, plan_repair
from oncehouse.pipeline.repair.repair_plan import FileKind
from repair_world import RepairWorld, as_halves

UNSTEADY = """
import itertools
import pyarrow as pa

calls = itertools.count()


def shape(table):
    return table.append_column("made", pa.array([f"call {next(calls)}"] * table.num_rows))
"""


@pytest.fixture
def make_world(tmp_path, monkeypatch) -> Iterator[Callable[..., RepairWorld]]:
    made: list[RepairWorld] = []

    def make(**changes: object) -> RepairWorld:
        world = RepairWorld(tmp_path, **changes)
        made.append(world)
        for module in (repair, file_restorer):
            monkeypatch.setattr(module, "connect", lambda _: world.tables)
        monkeypatch.setattr(repair, "_ask_kafka", lambda _, known: world.ask_kafka(known))
        monkeypatch.setattr(
            epoch_reread,
            "read_again",
            lambda _kafka, ranges, **_: [world.block(span.start, span.end) for span in ranges],
        )
        return world

    yield make
    for world in made:
        world.catalog.close()


def harm(world: RepairWorld, file: FileRef) -> None:
    path = Path(world.store.root) / file.path
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x55
    path.write_bytes(content[:-3])


def mend(world: RepairWorld) -> RepairResult:
    world.stop()
    return repair.apply_repair(world.pipeline, lambda _: None)


def rows_of(world: RepairWorld) -> list[dict[str, object]]:
    return [
        row for part in list_parts(world.catalog) for row in read_rows(world.store, part.file).to_pylist()
    ]


# Packs


def test_a_damaged_pack_comes_back_as_what_is_in_it(make_world):
    world = make_world()
    for start in (0, 5, 10):
        world.load(world.ingest(range(start, start + 5)))
    before = rows_of(world)
    world.pack()
    packed = {part.file.path for part in list_parts(world.catalog)} | {
        file.path for _, _, found in epochs.list_key_files(world.catalog) for file in (found.keys, found.raw)
    }
    assert len(packed) == 3
    for path in packed:
        assert is_pack(path)
        harm(world, FileRef(path=path, size_bytes=0, checksum=""))
    planned = plan_repair(world.pipeline).files
    assert [found.kind for found in planned] == [FileKind.RAW] * 3 + [FileKind.KEYS] * 3 + [FileKind.PART] * 3
    result = mend(world)
    assert not result.refused
    assert sum(len(done.repairs) for done in result.done) == 9
    assert rows_of(world) == before
    assert plan_repair(world.pipeline).is_clean
    assert not any(is_pack(part.file.path) for part in list_parts(world.catalog))


# Shaped parts


@pytest.fixture
def shaped(make_world, tmp_path) -> RepairWorld:
    """A world whose function gives something else each time, so that parts made again have other bytes."""
    (tmp_path / "shape.py").write_text(UNSTEADY)
    return make_world(
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
    assert [("shaped" in found.reason) for found in result.refused] == [True] * refused
    expected = BatchStatus.PARKED if refused else BatchStatus.RETRY
    assert find_batch(shaped.catalog, batch_id).status is expected


def test_a_shaped_part_that_may_be_in_clickhouse_is_made_with_the_same_bytes(make_world):
    world = make_world(shape={"columns": {"made": {"type": "String", "sql": "'always the same'"}}})
    batch_id = world.make_batch(world.ingest(range(5)))
    (part,) = list_parts(world.catalog)
    harm(world, part.file)
    world.end_attempt(batch_id, BatchStatus.PARKED, "unknown", f"{part.file.path} is damaged")
    assert not mend(world).refused
    (made,) = list_parts(world.catalog)
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
    assert "is shaped, its bytes are not those that were written" in refusal.reason
    assert {found.file.path for found in list_parts(shaped.catalog)} == {part.file.path}


# Fields that were learnt


def test_a_part_of_before_a_field_was_learnt_is_made_again_without_it(make_world):
    world = make_world()
    world.ingest(range(3))
    before = rows_of(world)
    (old,) = list_parts(world.catalog)
    learn_fields(world.catalog, [LearnedField(field="price", type="Nullable(UInt64)")])
    world.ingest([], more=[json.dumps({"id": 3, "price": 7}).encode()])
    _, new = list_parts(world.catalog)
    assert new.shape != old.shape
    harm(world, old.file)
    harm(world, new.file)
    assert not mend(world).refused
    found = rows_of(world)
    assert found[:3] == before
    assert found[3]["price"] == 7


# Letters


def test_records_that_wait_for_their_schema_wait_again_in_a_file_made_again(make_world):
    """Although the schema has become known since: what was settled as waiting stays so."""
    schema = json.dumps({"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]})
    world = make_world(
        source={
            "kafka": {"bootstrap_servers": "127.0.0.1:9", "topics": ["orders"]},
            "format": "avro",
            "avro": {"registry": {"url": "http://127.0.0.1:9"}},
            "fields": {"id": "Int64"},
        }
    )
    add_schemas(world.catalog, [Schema(schema="1", format="avro", definition=schema)])
    world.ingest([], more=[b"\0\0\0\0\1\2", b"\0\0\0\0\2\4", b"\0\0\0\0\2\6", b"\0"])
    (waiting,) = epochs.list_dead_letter_files(world.catalog, kind=LetterKind.WAITING)
    (dead,) = epochs.list_dead_letter_files(world.catalog, kind=LetterKind.DEAD)
    before = [read_rows(world.store, found.file).to_pylist() for found in (waiting, dead)]
    assert [row["schema"] for row in before[0]] == ["2", "2"]
    add_schemas(world.catalog, [Schema(schema="2", format="avro", definition=schema)])
    harm(world, waiting.file)
    harm(world, dead.file)
    assert not mend(world).refused
    made = [
        read_rows(world.store, epochs.list_dead_letter_files(world.catalog, kind=kind)[0].file).to_pylist()
        for kind in (LetterKind.WAITING, LetterKind.DEAD)
    ]
    assert made == before


# Ids that came out of tables


@pytest.fixture
def adopted(make_world) -> RepairWorld:
    """A catalog that has learnt four ids from its table, whose segment is damaged."""
    world = make_world()
    world.load(world.ingest(range(3)))
    world.snapshot()
    world.load(world.ingest(range(3, 7)))
    world.lose_catalog()
    world.restore()
    (segment,) = filter(is_adopted, list_segments(world.catalog))
    assert segment.keys == 4
    harm(world, segment.file)
    return world


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
