"""Positions of duplicates that are found once more are those that were decided, or they are refused."""

from __future__ import annotations

import tempfile
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncehouse.errors import PermanentError
from oncehouse.ledger.models import Counts, DuplicateFile, EpochKind, EpochRow, FileRef, KeyFile
from oncehouse.ledger.stats.ledger_state import LedgerState, RegisteredKeyFile
from oncehouse.ledger.storage import key_index
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.ledger.storage.key_index import Keys
from oncehouse.pipeline.dedup.deduplicate import DecidePlan, decide
from oncehouse.pipeline.repair.duplicates_rebuild import find_duplicates, without_known

WINDOW_SECONDS = 100.0
events = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2)), min_size=1, max_size=8)  # (id, payload)
ledgers = st.lists(st.lists(events, min_size=1, max_size=3), min_size=1, max_size=4)


def write_keys(store: FileStore, name: str, rows: list[tuple[int, int]]) -> FileRef:
    ids, payload = (np.array(column, dtype=np.uint64) for column in zip(*rows, strict=True))
    order = key_index.sort_order(ids, ids)
    keys = Keys(hi=ids[order], lo=ids[order], payload=payload[order], event=order.astype(np.uint32))
    return store.put(name, lambda path: key_index.write_keys(path, keys))


def settle(store: FileStore, epochs: list[list[list[tuple[int, int]]]]) -> LedgerState:
    """A ledger of these epochs, decided one after another by the decide task, a second apart."""
    key_files, lists, index, rows = [], {}, [], []
    for number, chunks in enumerate(epochs, start=1):
        files = [write_keys(store, f"{number}-{at}.keys", chunk) for at, chunk in enumerate(chunks)]
        decision = decide(
            DecidePlan(
                bucket_from=0,
                bucket_to=0,
                buckets=1,
                files_root=store.root,
                key_files=tuple(files),
                segments=tuple(index),
                out=f"{number}",
                tables=1,
            )
        )
        index += [decision.segment] if decision.segment else []
        lists[number] = (decision.duplicate_file,) if decision.duplicate_file else ()
        for at, (file, chunk) in enumerate(zip(files, chunks, strict=True)):
            of_chunk = KeyFile(key_file=f"{number}-{at}", ordinal=at, events=len(chunk), keys=file, raw=file)
            key_files.append(RegisteredKeyFile(epoch=number, registered_at=float(number), key_file=of_chunk))
        rows.append(
            EpochRow(
                epoch=number,
                kind=EpochKind.KAFKA,
                token=1,
                started_at=float(number),
                registered_at=float(number),
                counts=Counts(),
            )
        )
    return LedgerState(
        now=100.0,
        epochs=tuple(rows),
        ranges=(),
        positions={},
        queries={},
        key_files=tuple(key_files),
        parts=(),
        duplicates=lists,
        dead_letter_files=(),
        segments=(),
        batches=(),
    )


def read_list(store: FileStore, file: DuplicateFile) -> pa.RecordBatch:
    return pa.ipc.open_file(pa.memory_map(str(store.local(file.file)))).get_batch(0)


@given(ledgers)
@settings(max_examples=10, deadline=None)
def test_all_lists_of_a_ledger_are_found_once_more(ledger):
    with tempfile.TemporaryDirectory() as folder:
        store = FileStore(folder)
        state = settle(store, ledger)
        for epoch, files in state.duplicates.items():
            found = find_duplicates(store, state, epoch, window_seconds=WINDOW_SECONDS)
            if files:
                assert found.equals(read_list(store, files[0]))
            else:
                assert not found.num_rows


def test_what_has_left_the_window_is_not_guessed(tmp_path):
    store = FileStore(str(tmp_path))
    state = settle(store, [[[(1, 0), (2, 0)]], [[(1, 0), (3, 0)]]])
    with pytest.raises(
        PermanentError, match="0 events of epoch 2 are surely duplicates, the ledger counted 1"
    ):
        find_duplicates(store, state, 2, window_seconds=0.5)
    gone = replace(state, key_files=state.key_files[1:])
    with pytest.raises(PermanentError, match="which ones they were is unknown"):
        find_duplicates(store, gone, 2, window_seconds=WINDOW_SECONDS)


def test_an_event_that_was_new_again_after_the_window_stays_new(tmp_path):
    """Its id stands before it only as a duplicate, and duplicates do not renew what is remembered."""
    store = FileStore(str(tmp_path))
    state = settle(store, [[[(1, 0)]], [[(1, 0)]], [[(1, 0), (2, 0)]]])
    # As if the id had left the window between the second and the third epoch.
    forgotten = replace(state, duplicates={**state.duplicates, 3: ()})
    assert not find_duplicates(store, forgotten, 3, window_seconds=1.5).num_rows


def test_positions_that_a_sound_list_has_are_left_out(tmp_path):
    store = FileStore(str(tmp_path))
    state = settle(store, [[[(1, 0), (1, 0), (2, 0), (1, 1)]]])
    found = find_duplicates(store, state, 1, window_seconds=WINDOW_SECONDS)
    assert found.column("conflict").to_pylist() == [False, True]
    (sound,) = state.duplicates[1]
    assert not without_known(store, found, [sound]).num_rows
    assert without_known(store, found, []).equals(found)
