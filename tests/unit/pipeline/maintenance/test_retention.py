"""The sweep takes only files that no writer can still register."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oncehouse.pipeline.ingest.part_files import epoch_path
from oncehouse.pipeline.maintenance.retention import plan_sweep

TOKEN, LAST_EPOCH = 5, 100


def sweep(*files: str, registered: set[str] | None = None) -> tuple[str, ...]:
    return plan_sweep(files, registered or set(), token=TOKEN, last_epoch=LAST_EPOCH)


def test_an_unregistered_file_of_an_older_token_is_swept():
    path = epoch_path("shop", LAST_EPOCH + 1, TOKEN - 1, "r1-abc-0.keys.arrow")
    assert sweep(path) == (path,)


def test_an_unregistered_file_of_a_settled_epoch_is_swept():
    path = epoch_path("shop", LAST_EPOCH, TOKEN, "r1-abc-0.keys.arrow")
    assert sweep(path) == (path,)


def test_what_the_current_epoch_has_written_stays():
    assert not sweep(epoch_path("shop", LAST_EPOCH + 1, TOKEN, "r1-abc-0.keys.arrow"))


def test_a_registered_file_stays_however_old():
    path = epoch_path("shop", 1, 1, "r1-abc-0.keys.arrow")
    assert not sweep(path, registered={path})


def test_an_index_file_of_an_older_token_is_swept_and_one_of_this_token_stays():
    old = f"shop/index/merged-{TOKEN - 1}-abc.segment.arrow"
    rebuilt = f"shop/index/rebuilt-{TOKEN - 1}-abc-0-3.segment.arrow"
    new = f"shop/index/merged-{TOKEN}-abc.segment.arrow"
    assert sweep(old, rebuilt, new) == (old, rebuilt)


def test_a_pinned_look_up_of_an_older_token_is_swept_and_one_of_this_token_stays():
    old, new = (f"shop/lookups/{token}-aa-bb.parquet" for token in (TOKEN - 1, TOKEN))
    assert sweep(old, new) == (old,)


def test_files_of_nobody_known_stay():
    assert not sweep("shop/checkpoints/1-1/offsets/0", "shop/notes.txt", "shop/0000000/readme", "other")


@given(
    made=st.lists(st.tuples(st.integers(0, 200), st.integers(1, 10), st.booleans(), st.booleans())),
    token=st.integers(1, 10),
    last_epoch=st.integers(0, 200),
)
def test_neither_registered_files_nor_those_being_written_are_ever_swept(made, token, last_epoch):
    registered: set[str] = set()
    being_written: set[str] = set()
    files = []
    for number, (epoch, writer, known, index) in enumerate(made):
        path = (
            f"shop/index/merged-{writer}-{number}.segment.arrow"
            if index
            else epoch_path("shop", epoch, writer, f"r{number}.keys.arrow")
        )
        files.append(path)
        if known:
            registered.add(path)
        elif writer >= token and (index or epoch > last_epoch):
            being_written.add(path)
    swept = plan_sweep(files, registered, token=token, last_epoch=last_epoch)
    assert not set(swept) & (registered | being_written)
    assert set(files) == set(swept) | registered | being_written, "and nothing else is left lying about"


def test_edits_that_nobody_has_named_for_a_day_are_swept():
    files = ["shop/edits/1000-a-0.parquet", "shop/edits/1000-b-0.parquet", "shop/edits/90000-c-0.parquet"]
    named = {"shop/edits/1000-b-0.parquet"}
    assert plan_sweep(files, named, token=1, last_epoch=9, now=87_000.0) == ()
    assert plan_sweep(files, named, token=1, last_epoch=9, now=88_000.0) == (files[0],)
