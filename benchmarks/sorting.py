"""Sorting the ids of one part: by the high half alone, against the lexicographic sort of both halves."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from oncehouse.ledger.keyindex import sort_order

KEYS = 500_000
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
    random = np.random.default_rng(1)
    hi, lo = (random.integers(0, 1 << 64, KEYS, dtype=np.uint64) for _ in range(2))
    tenth = KEYS // 10
    hi[:tenth], lo[:tenth] = hi[tenth : 2 * tenth], lo[tenth : 2 * tenth]
    ours = measure(lambda: sort_order(hi, lo))
    both = measure(lambda: np.lexsort((lo, hi)))
    print(
        f"{KEYS} ids, a tenth of them twice: {ours:.0f} ms, by both halves {both:.0f} ms ({both / ours:.1f}x)"
    )


if __name__ == "__main__":
    main()
