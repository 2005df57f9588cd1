"""Which dead letters are tried again, and what becomes of the others."""

from __future__ import annotations

import json

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.columns import parse_type
from oncehouse.ledger.files import FileStore
from oncehouse.pipeline.decoding import HEADERS
from oncehouse.pipeline.identity_rule import Rule
from oncehouse.pipeline.json_format import JsonFormat
from oncehouse.pipeline.letters import ReplayPlan, Selection, read_letters, replay
from oncehouse.pipeline.manifest import ReadPlan, TablePlan
from oncehouse.pipeline.parts import LETTER_SCHEMA, write_letters

PLACES = [("a", 0, 1), ("a", 0, 2), ("a", 1, 1), ("b", 0, 1), ("a/0", 1, 2)]
REASONS = ["not_json", "empty", "not_json", "wrong_type", "empty"]


def make_letters(places=tuple(PLACES), reasons=tuple(REASONS), values: list[bytes] | None = None) -> pa.Table:
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
    return pa.Table.from_arrays(columns, schema=LETTER_SCHEMA)


def chosen(selection: Selection) -> list[tuple[str, int, int]]:
    flags = selection.chosen(make_letters()).to_pylist()
    return [place for place, flag in zip(PLACES, flags, strict=True) if flag]


def test_all_letters_are_asked_for_when_nothing_is_said():
    assert chosen(Selection()) == PLACES


def test_letters_are_asked_for_by_reason():
    assert chosen(Selection(reason="not_json")) == [("a", 0, 1), ("a", 1, 1)]


def test_letters_are_asked_for_by_position():
    assert chosen(Selection(positions=(("a", 0, 2), ("b", 0, 1), ("b", 9, 9)))) == [("a", 0, 2), ("b", 0, 1)]


def test_reason_and_position_must_both_fit():
    assert chosen(Selection(reason="empty", positions=(("a", 0, 1), ("a", 0, 2)))) == [("a", 0, 2)]


@given(
    reason=st.none() | st.text(),
    positions=st.lists(st.tuples(st.text(), st.integers(0, 1 << 20), st.integers(0, 1 << 62))).map(tuple),
)
def test_a_selection_survives_its_way_through_the_catalog(reason, positions):
    asked = Selection(reason=reason, positions=positions)
    assert Selection.from_arguments(json.loads(json.dumps(asked.to_arguments()))) == asked


def test_a_replay_decodes_what_was_asked_for_and_carries_the_rest(tmp_path):
    store = FileStore(str(tmp_path))
    places = [("b", 0, 4), ("a", 0, 9), ("a", 0, 3), ("gone", 0, 1)]
    letters = make_letters(
        places,
        ["wrong_type", "wrong_type", "not_json", "wrong_type"],
        [b'{"id": 4}', b'{"id": 9}', b"{", b'{"id": 1}'],
    )
    file = store.put("letters.parquet", lambda path: write_letters(path, letters))
    table = TablePlan(name="t", columns=(("id", "id"),), id_column=None)
    plan = ReplayPlan(
        read=ReadPlan(
            pipeline="shop",
            epoch=2,
            token=1,
            topics=("a", "b"),
            format=JsonFormat(),
            fields={"id": parse_type("UInt64")},
            identity=Rule(fields=(("id",),)),
            tables=(table,),
            files_root=str(tmp_path),
            max_message_bytes=1000,
            max_depth=10,
            part_rows=100,
            part_bytes=1000,
            whole=False,
        ),
        attempt="l1",
        files=(file,),
        selection=Selection(reason="wrong_type"),
    )
    manifest = replay(plan)
    assert (manifest.read, sum(chunk.events for chunk in manifest.chunks)) == (4, 2)
    assert manifest.chunks[0].first == (0, 9), "in Kafka's order, whatever the order of the letters"
    (letters,) = manifest.letters
    kept = read_letters(store, [letters.file]).to_pylist()
    assert [(row["topic"], row["offset"], row["reason"]) for row in kept] == [
        ("a", 3, "not_json"),
        ("gone", 1, "wrong_type"),
    ]
    assert letters.reasons == {"not_json": 1, "wrong_type": 1}


def test_no_files_are_no_letters(tmp_path):
    assert read_letters(FileStore(str(tmp_path)), []).num_rows == 0
