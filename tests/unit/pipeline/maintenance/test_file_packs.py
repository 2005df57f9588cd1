from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oncehouse.ledger.catalog.packs import PackBundle
from oncehouse.ledger.models import FileRef, KeyFile
from oncehouse.pipeline.maintenance.file_packs import LEAST_EPOCHS, plan_packs

WINDOW = 60 * 86400.0


def make_bundle(epoch: int, *, size_bytes: int = 1000, registered_at: float = 0.0) -> PackBundle:
    raw = FileRef(path=f"raw/{epoch}", size_bytes=size_bytes, checksum="0" * 64)
    key_file = KeyFile(key_file=f"keys-{epoch}", ordinal=0, events=1, keys=raw, raw=raw)
    return PackBundle(
        epoch=epoch, registered_at=registered_at, key_files=(key_file,), parts=(), duplicate_files=()
    )


@given(
    st.lists(st.tuples(st.integers(1, 8 << 20), st.floats(0, 30 * 86400.0, allow_nan=False)), max_size=400)
)
def test_a_pack_holds_each_epoch_once_in_order_and_never_spans_much_of_the_window(epochs):
    times = sorted(at for _, at in epochs)
    bundles = [
        make_bundle(number, size_bytes=size, registered_at=at)
        for number, ((size, _), at) in enumerate(zip(epochs, times, strict=True))
    ]
    packed = list(plan_packs(bundles, window_seconds=WINDOW))
    numbers = [bundle.epoch for pack in packed for bundle in pack]
    assert numbers == sorted(set(numbers))
    for pack in packed:
        assert len(pack) >= LEAST_EPOCHS
        assert pack[-1].registered_at - pack[0].registered_at <= WINDOW / 12


def test_few_epochs_are_left_alone_and_large_ones_stand_alone():
    few = [make_bundle(number) for number in range(LEAST_EPOCHS - 1)]
    assert list(plan_packs(few, window_seconds=WINDOW)) == []
    large = [make_bundle(number, size_bytes=5 << 20) for number in range(LEAST_EPOCHS * 2)]
    assert list(plan_packs(large, window_seconds=WINDOW)) == []
    assert [len(pack) for pack in plan_packs([*few, make_bundle(99)], window_seconds=WINDOW)] == [
        LEAST_EPOCHS
    ]
