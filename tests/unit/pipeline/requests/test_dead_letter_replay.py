"""Which dead letters are tried again, and what becomes of the others."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.ledger.models import DeadLetterFile, DeadLetterKind, FileRef
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.dead_letters.edits import EDIT_SCHEMA, apply_edits
from oncehouse.pipeline.dead_letters.filter import Selection, Span
from oncehouse.pipeline.dead_letters.reader import find_dead_letters, may_hold
from oncehouse.pipeline.formats.base import HEADERS
from oncehouse.pipeline.ingest.dead_letter_writer import DeadLetterWriter
from oncehouse.pipeline.ingest.manifest import ReadPlan
from oncehouse.pipeline.ingest.part_files import DEAD_LETTER_SCHEMA, write_dead_letters
from oncehouse.pipeline.requests.dead_letter_replay import ReplayPlan, group_files, read_dead_letters, replay
from plan_examples import make_read_plan

PLACES = [("a", 0, 1), ("a", 0, 2), ("a", 1, 1), ("b", 0, 1), ("a/0", 1, 2)]
REASONS = ["not_json", "empty", "not_json", "wrong_type", "empty"]


def at(topic: str, partition: int, first: int, last: int | None = None) -> Span:
    return Span(topic=topic, partition=partition, first=first, last=first if last is None else last)


def make_dead_letters(
    places=tuple(PLACES), reasons=tuple(REASONS), values: list[bytes] | None = None
) -> pa.Table:
    topics, partitions, offsets = zip(*places, strict=True)
    columns = [
        pa.array(topics, pa.string()).dictionary_encode(),
        pa.array(partitions, pa.int32()),
        pa.array(offsets, pa.int64()),
        pa.array([0] * len(places), pa.int32()),
        pa.array([0] * len(places), pa.timestamp("us", tz="UTC")),
        pa.nulls(len(places), pa.binary()),
        pa.array(values or [b"{"] * len(places), pa.binary()),
        pa.nulls(len(places), HEADERS),
        pa.nulls(len(places), pa.string()),
        pa.array(reasons, pa.string()),
        pa.array(["detail"] * len(places), pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=DEAD_LETTER_SCHEMA)


def make_plan(folder, **changes) -> ReadPlan:
    return make_read_plan(folder, **({"epoch": 2, "topics": ("a", "b"), "part_bytes": 100_000} | changes))


def chosen(selection: Selection) -> list[tuple[str, int, int]]:
    flags = selection.chosen(make_dead_letters()).to_pylist()
    return [place for place, flag in zip(PLACES, flags, strict=True) if flag]


def test_all_letters_are_asked_for_when_nothing_is_said():
    assert chosen(Selection()) == PLACES


def test_letters_are_asked_for_by_reason():
    assert chosen(Selection(reason="not_json")) == [("a", 0, 1), ("a", 1, 1)]


def test_letters_are_asked_for_by_position():
    assert chosen(Selection(positions=(at("a", 0, 2), at("b", 0, 1), at("b", 9, 9)))) == [
        ("a", 0, 2),
        ("b", 0, 1),
    ]


def test_reason_and_position_must_both_fit():
    assert chosen(Selection(reason="empty", positions=(at("a", 0, 1), at("a", 0, 2)))) == [("a", 0, 2)]


def test_letters_are_asked_for_by_topic_range_and_time():
    assert chosen(Selection(topic="a")) == PLACES[:3]
    assert chosen(Selection(positions=(at("a", 0, 0, 1),))) == [("a", 0, 1)]
    assert chosen(Selection(since=0.0, until=1.0)) == PLACES
    assert chosen(Selection(since=1.0)) == chosen(Selection(until=0.0)) == []


spans = st.builds(
    Span,
    topic=st.text(),
    partition=st.integers(0, 1 << 20),
    first=st.integers(0, 1 << 62),
    last=st.integers(0, 1 << 62),
)


@given(
    reason=st.none() | st.text(min_size=1),
    topic=st.none() | st.text(min_size=1),
    since=st.none() | st.floats(0, 1e10),
    positions=st.lists(spans).map(tuple),
)
def test_a_selection_survives_its_way_through_the_catalog(reason, topic, since, positions):
    asked = Selection(reason=reason, topic=topic, since=since, positions=positions)
    assert Selection.from_arguments(json.loads(json.dumps(asked.to_arguments()))) == asked


def test_a_replay_decodes_what_was_asked_for_and_carries_the_rest(tmp_path):
    store = FileStore(str(tmp_path))
    places = [("b", 0, 4), ("a", 0, 9), ("a", 0, 3), ("gone", 0, 1)]
    letters = make_dead_letters(
        places,
        ["wrong_type", "wrong_type", "not_json", "wrong_type"],
        [b'{"id": 4}', b'{"id": 9}', b"{", b'{"id": 1}'],
    )
    file = store.put("letters.parquet", lambda path: write_dead_letters(path, letters))
    plan = ReplayPlan(
        read=make_plan(tmp_path),
        attempt="l1",
        files=(file,),
        selection=Selection(reason="wrong_type"),
    )
    manifest = replay(plan)
    assert (manifest.read, sum(chunk.events for chunk in manifest.chunks)) == (4, 2)
    assert manifest.chunks[0].first == (0, 9), "in Kafka's order, whatever the order of the letters"
    (letters,) = manifest.letters
    kept = read_dead_letters(store, [letters.file]).to_pylist()
    assert [(row["topic"], row["offset"], row["reason"]) for row in kept] == [
        ("a", 3, "not_json"),
        ("gone", 1, "wrong_type"),
    ]
    assert letters.reasons == {"not_json": 1, "wrong_type": 1}


def test_no_files_are_no_letters(tmp_path):
    assert read_dead_letters(FileStore(str(tmp_path)), []).num_rows == 0


def test_letters_roll_over_to_another_file_so_that_none_is_held_for_long(tmp_path):
    store = FileStore(str(tmp_path))
    writer = DeadLetterWriter(make_plan(tmp_path, part_rows=10), store, "r1", DeadLetterKind.DEAD)
    for start in range(0, 25, 5):
        letters = make_dead_letters([("a", 0, start + n) for n in range(5)], ["not_json"] * 4 + ["empty"])
        writer.add(letters.columns)
    written = writer.finish()
    assert [found.rows for found in written] == [10, 10, 5]
    assert written[0].reasons == {"not_json": 8, "empty": 2}
    assert len({found.file.path for found in written}) == 3
    assert read_dead_letters(store, [found.file for found in written]).column("offset").to_pylist() == list(
        range(25)
    )


def test_large_letters_roll_over_by_their_bytes(tmp_path):
    writer = DeadLetterWriter(
        make_plan(tmp_path, part_bytes=1000), FileStore(str(tmp_path)), "r1", DeadLetterKind.DEAD
    )
    for number in range(3):
        letters = make_dead_letters([("a", 0, number)], ["too_big"], [b"x" * 2000])
        writer.add(letters.columns)
    assert [found.rows for found in writer.finish()] == [1, 1, 1]


@pytest.fixture
def long_file(tmp_path):
    """25,000 letters of two topics, a letter a second: three row groups."""
    number = 25_000
    letters = make_dead_letters(
        [("a" if n < 12_000 else "b", n % 3, n) for n in range(number)], ["not_json", "empty"] * (number // 2)
    )
    times = pa.array([n * 1_000_000 for n in range(number)], pa.timestamp("us", tz="UTC"))
    letters = letters.set_column(4, "timestamp", times)
    store = FileStore(str(tmp_path))
    return store, store.put("letters.parquet", lambda path: write_dead_letters(path, letters))


@pytest.mark.parametrize(
    ("selection", "groups", "found"),
    [
        (Selection(), 3, 25_000),
        (Selection(topic="a"), 2, 12_000),
        (Selection(topic="c"), 0, 0),
        (Selection(positions=(at("b", 2, 23_000),)), 1, 1),
        (Selection(positions=(at("a", 0, 23_001),)), 0, 0),
        (Selection(since=24_999.0), 1, 1),
        (Selection(until=10.0), 1, 10),
        (Selection(reason="empty"), 3, 12_500),
    ],
)
def test_only_row_groups_that_may_hold_what_is_asked_for_are_read(selection, groups, found, long_file):
    store, file = long_file
    with pq.ParquetFile(store.local(file)) as opened:
        assert len(selection.find_groups(opened.metadata)) == groups
    letters = [row for part in find_dead_letters(store, file, selection) for row in part.rows.tolist()]
    assert len(letters) == found
    assert letters == sorted(letters)
    assert may_hold(store, file, selection) == (groups > 0)


def test_newest_letters_come_first_and_only_those_before_a_row(long_file):
    store, file = long_file
    first = next(find_dead_letters(store, file, Selection(), newest_first=True))
    assert first.rows[-1] == 24_999
    behind = next(find_dead_letters(store, file, Selection(), newest_first=True, before=20_001))
    assert behind.rows.tolist() == [20_000]


def make_edits(letters: pa.Table, values: list[bytes | None]) -> pa.Table:
    return letters.append_column("edited", pa.array(values, pa.binary())).cast(EDIT_SCHEMA)


def test_an_edit_takes_the_place_of_the_value_of_its_letter_alone():
    letters = make_dead_letters(values=[b"1", b"2", b"3", b"4", b"5"])
    edits = [make_edits(letters.take([3, 1]), [b"four", b"old"]), make_edits(letters.take([1]), [b"two"])]
    edited, meant = apply_edits(letters, edits)
    assert edited.column("value").to_pylist() == [b"1", b"two", b"3", b"four", b"5"]
    assert meant.to_pylist() == [False, True, False, True, False]
    assert edited.schema.equals(DEAD_LETTER_SCHEMA)


def test_edited_letters_are_decoded_from_their_new_bytes_and_the_others_are_carried(tmp_path):
    store = FileStore(str(tmp_path))
    letters = make_dead_letters([("a", 0, 1), ("a", 0, 2), ("b", 0, 3)], ["not_json"] * 3, [b"{", b"{", b"{"])
    edits = make_edits(letters.take([2, 0]), [b'{"id": 3}', b"still no json"])
    file = store.put("letters.parquet", lambda path: write_dead_letters(path, letters))
    edit = store.put("edits.parquet", lambda path: write_dead_letters(path, edits))
    manifest = replay(
        ReplayPlan(
            read=make_plan(tmp_path), attempt="l1", files=(file,), selection=Selection(), edits=(edit,)
        )
    )
    assert (manifest.read, sum(chunk.events for chunk in manifest.chunks)) == (3, 1)
    left = read_dead_letters(store, [found.file for found in manifest.letters]).to_pylist()
    assert sorted((row["offset"], row["value"]) for row in left) == [(1, b"still no json"), (2, b"{")]


def test_files_are_grouped_so_that_a_task_can_hold_them():
    def file(name, rows, size):
        ref = FileRef(path=name, size_bytes=size, checksum="")
        return DeadLetterFile(dead_letter_file=name, epoch=1, rows=rows, reasons={}, file=ref)

    files = [file("a", 4, 10), file("b", 4, 10), file("c", 4, 10), file("d", 1, 90), file("e", 99, 1)]
    groups = [[found.path for found in group] for group in group_files(files, rows=10, size_bytes=95)]
    assert groups == [["a", "b"], ["c"], ["d"], ["e"]]
    assert list(group_files([], rows=1, size_bytes=1)) == []
