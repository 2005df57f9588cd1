"""Sorting the ids of one part, and merging those of four, against NumPy's own sorts of one half and of both."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from oncehouse.ledger.storage.key_index import UInt64, merge_order, sort_order
from oncehouse.pipeline.spark.worker_daemon import keep_memory

KEYS = 500_000
RUNS = 4
TIMES = 7


def measure(work: Callable[[], object]) -> float:
    """Least processor time in milliseconds."""
    best = float("inf")
    for _ in range(TIMES):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best * 1000


def main() -> None:
    keep_memory()
    random = np.random.default_rng(1)
    hi, lo = (random.integers(0, 1 << 64, KEYS, dtype=np.uint64) for _ in range(2))
    tenth = KEYS // 10
    hi[:tenth], lo[:tenth] = hi[tenth : 2 * tenth], lo[tenth : 2 * tenth]
    show("as they come", hi, lo, sort_order)
    runs = np.concatenate([part[sort_order(hi[part], lo[part])] for part in np.split(np.arange(KEYS), RUNS)])
    show(f"{RUNS} sorted runs", hi[runs], lo[runs], merge_order)


def show(name: str, hi: UInt64, lo: UInt64, order: Callable[[UInt64, UInt64], object]) -> None:
    ours = measure(lambda: order(hi, lo))
    stable = measure(lambda: np.argsort(hi, kind="stable"))
    both = measure(lambda: np.lexsort((lo, hi)))
    print(
        f"{KEYS} ids, {name}, a tenth of them twice: {ours:.0f} ms; "
        f"stable by one half {stable:.0f} ms ({stable / ours:.1f}x), by both {both:.0f} ms ({both / ours:.1f}x)"
    )


if __name__ == "__main__":
    main()
