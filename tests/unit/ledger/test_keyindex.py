from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncehouse.errors import CorruptFileError
from oncehouse.ledger.storage import key_index
from oncehouse.ledger.storage.key_index import Keys

LARGEST = (1 << 64) - 1

# High halves from a tiny range make long runs of equal ones, and of those that share their upper bits; the edges of
# buckets are among them.
halves = st.sampled_from(
    [0, 1, 1 << 16, 1 << 32, 1 << 48, 1 << 62, (1 << 63) - 1, 1 << 63, LARGEST - 1, LARGEST]
)
ids = st.tuples(halves, st.integers(0, 6) | st.sampled_from([1 << 63, LARGEST]))
id_lists = st.lists(ids, max_size=60)
bucket_numbers = st.sampled_from([1, 2, 4, 16, 256])


def split(pairs) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.array([hi for hi, _ in pairs], dtype=np.uint64),
        np.array([lo for _, lo in pairs], dtype=np.uint64),
    )


def make_keys(pairs, *, payload: int = 0) -> Keys:
    """A segment: sorted, each id once."""
    hi, lo = split(sorted(set(pairs)))
    return Keys(hi=hi, lo=lo, payload=np.full(len(hi), payload, dtype=np.uint64))


def pairs_of(keys: Keys) -> list[tuple[int, int]]:
    return list(zip(keys.hi.tolist(), keys.lo.tolist(), strict=True))


@pytest.mark.parametrize("find_order", [key_index.sort_order, key_index.merge_order])
@given(pairs=id_lists)
def test_ids_are_ordered_and_equal_ones_stay_in_the_order_they_came(find_order, pairs):
    order = find_order(*split(pairs)).tolist()
    assert order == sorted(range(len(pairs)), key=lambda at: (pairs[at], at))


def test_ids_that_share_their_upper_bits_are_ordered_among_many():
    random = np.random.default_rng(5)
    hi, lo = (random.integers(0, 1 << 64, 20_000, dtype=np.uint64) for _ in range(2))
    hi[random.integers(0, len(hi), 300)] &= np.uint64(LARGEST >> 32)
    hi[:50] = hi[50]
    order = key_index.sort_order(hi, lo)
    assert np.array_equal(order, np.lexsort((np.arange(len(hi)), lo, hi)))


@settings(deadline=None)
@given(st.lists(id_lists, min_size=1, max_size=5), id_lists)
def test_an_index_of_several_segments_knows_exactly_the_ids_of_a_set(segments, asked):
    known = set().union(*segments)
    hi, lo = split(sorted(asked))
    found = np.zeros(len(hi), dtype=bool)
    for segment in segments:
        found |= key_index.find(make_keys(segment), hi, lo) >= 0
    assert found.tolist() == [pair in known for pair in sorted(asked)]


@given(id_lists, id_lists)
def test_a_found_id_stands_where_it_says(segment, asked):
    keys = make_keys(segment)
    asked = sorted(asked)
    for pair, at in zip(asked, key_index.find(keys, *split(asked)).tolist(), strict=True):
        assert pair not in segment if at < 0 else pairs_of(keys)[at] == pair


@given(st.lists(id_lists, min_size=1, max_size=5))
def test_merged_segments_hold_each_id_once_with_its_earliest_payload(segments):
    tables = [make_keys(segment, payload=at) for at, segment in enumerate(segments)]
    merged = key_index.merge(tables)
    earliest: dict[tuple[int, int], int] = {}
    for at, segment in enumerate(segments):
        for pair in segment:
            earliest.setdefault(pair, at)
    assert pairs_of(merged) == sorted(earliest)
    assert merged.payload.tolist() == [earliest[pair] for pair in sorted(earliest)]


@given(id_lists, bucket_numbers, st.data())
def test_bucket_slices_together_are_the_whole_and_each_holds_its_own_range(pairs, buckets, data):
    keys = make_keys(pairs)
    cut = data.draw(st.integers(0, buckets - 1))
    low = key_index.slice_buckets(keys, 0, cut, buckets)
    high = (
        key_index.slice_buckets(keys, cut + 1, buckets - 1, buckets)
        if cut + 1 < buckets
        else keys.take(slice(0))
    )
    assert pairs_of(low) + pairs_of(high) == pairs_of(keys)
    assert all(hi * buckets >> 64 <= cut for hi, _ in pairs_of(low))
    assert all(hi * buckets >> 64 > cut for hi, _ in pairs_of(high))


@given(st.lists(ids, max_size=60).map(sorted))
def test_the_first_of_each_id_is_marked(pairs):
    hi, lo = split(pairs)
    keys = Keys(hi=hi, lo=lo, payload=hi)
    expected = [at == 0 or pairs[at - 1] != pair for at, pair in enumerate(pairs)]
    assert key_index.first_of_each(keys).tolist() == expected


steps = st.one_of(
    st.tuples(st.just("see"), id_lists),
    st.tuples(st.just("merge"), st.integers(2, 4)),
    st.tuples(st.just("forget"), st.integers(1, 5)),
)


@settings(max_examples=200)
@given(st.lists(steps, max_size=12), bucket_numbers, st.data())
def test_the_index_agrees_with_a_set_over_epochs_merges_and_windows(history, buckets, data):
    """Each bucket range is decided by itself, as decide tasks do; a segment falls out of the window whole."""
    cut = data.draw(st.integers(0, buckets - 1))
    spans = [(0, cut), (cut + 1, buckets - 1)] if cut + 1 < buckets else [(0, buckets - 1)]
    # What a Python set a moment would remember, and the index: segments with the last moment they hold.
    remembered: dict[tuple[int, int], int] = {}
    index: list[tuple[int, Keys]] = []
    for moment, (what, value) in enumerate(history):
        if what == "see":
            fresh = key_index.merge([_new_ids(index, make_keys(value), span, buckets) for span in spans])
            expected = {pair for pair in value if pair not in remembered}
            assert set(pairs_of(fresh)) == expected
            assert len(fresh) == len(expected)
            index.append((moment, fresh))
            remembered |= dict.fromkeys(expected, moment)
        elif what == "merge" and len(index) >= value:
            merged = key_index.merge([keys for _, keys in index[:value]])
            last = index[value - 1][0]
            index[:value] = [(last, merged)]
            # A merged segment is as young as its youngest: the window is a minimum promise.
            remembered = {
                pair: max(seen, last) if seen <= last else seen for pair, seen in remembered.items()
            }
        elif what == "forget":
            oldest = moment - value
            index = [(seen, keys) for seen, keys in index if seen >= oldest]
            remembered = {pair: seen for pair, seen in remembered.items() if seen >= oldest}


def _new_ids(index, keys: Keys, span: tuple[int, int], buckets: int) -> Keys:
    mine = key_index.slice_buckets(keys, *span, buckets)
    known = np.zeros(len(mine), dtype=bool)
    for _, segment in index:
        known |= key_index.find(key_index.slice_buckets(segment, *span, buckets), mine.hi, mine.lo) >= 0
    return mine.take(~known)


@given(id_lists, st.booleans(), st.booleans())
def test_a_key_table_is_read_back_as_it_was_written(tmp_path_factory, pairs, with_event, with_routes):
    path = tmp_path_factory.mktemp("keys") / "table.arrow"
    plain = make_keys(pairs, payload=LARGEST)
    rows = np.arange(len(plain), dtype=np.uint32)
    keys = Keys(
        hi=plain.hi,
        lo=plain.lo,
        payload=plain.payload,
        **({"event": rows[::-1].copy()} if with_event else {}),
        **({"routes": rows + 1} if with_routes else {}),
    )
    key_index.write_keys(str(path), keys)
    read = key_index.open_keys(path)
    for name in ("hi", "lo", "payload", "event", "routes"):
        written, found = getattr(keys, name), getattr(read, name)
        assert found.dtype == written.dtype
        assert found.tolist() == written.tolist()


def test_rows_taken_from_a_key_table_keep_what_travels_beside_them():
    keys = Keys(
        hi=np.array([1, 2, 3], dtype=np.uint64),
        lo=np.array([4, 5, 6], dtype=np.uint64),
        payload=np.array([7, 8, 9], dtype=np.uint64),
        event=np.array([2, 0, 1], dtype=np.uint32),
    )
    taken = keys.take(np.array([True, False, True]))
    assert (pairs_of(taken), taken.payload.tolist(), taken.event.tolist()) == (
        [(1, 4), (3, 6)],
        [7, 9],
        [2, 1],
    )
    assert len(taken.routes) == 0


@pytest.mark.parametrize("keep_bytes", [0, 7, 300, -1])
def test_a_cut_key_table_is_refused_by_name(tmp_path, keep_bytes):
    path = tmp_path / "table.arrow"
    key_index.write_keys(str(path), make_keys([(1, at) for at in range(100)]))
    path.write_bytes(path.read_bytes()[:keep_bytes])
    with pytest.raises(CorruptFileError, match=r"table\.arrow"):
        key_index.open_keys(path)


def test_a_missing_key_table_is_refused_by_name(tmp_path):
    with pytest.raises(CorruptFileError, match=r"gone\.arrow"):
        key_index.open_keys(tmp_path / "gone.arrow")


@pytest.mark.parametrize(
    "batch",
    [
        pa.record_batch({"hi": [1], "other": [2]}),
        pa.record_batch({"hi": ["a"], "lo": ["b"], "payload": ["c"]}),
    ],
)
def test_an_arrow_file_that_holds_no_keys_is_refused(tmp_path, batch):
    path = tmp_path / "table.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(CorruptFileError, match=r"table\.arrow"):
        key_index.open_keys(path)
