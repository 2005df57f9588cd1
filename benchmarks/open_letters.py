"""What open dead letters cost whoever looks, by their files: `python benchmarks/open_letters.py [catalog URL]`.

Counts added up by the database beside those added up file by file, the first page of files, and the question whether
anything waits for a schema, which a run asks every second; the last two also without the index. Every file has one to
three reasons and its own counts, so that few of them are alike.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from itertools import islice

from sqlalchemy import insert, text

from oncehouse.ledger.catalog import dead_letters, epochs, schema
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.models import DeadLetterKind, LedgerIdentity
from oncehouse.ledger.stats.awaited_schemas import AwaitedSchemas

_FILES = (1_000, 10_000, 100_000)
_REASONS = ("not_json", "bad_value", "missing_field")
_INDEX = "oncehouse_dead_letter_files_open"


def fill(catalog: Catalog, first: int, last: int) -> None:
    rng = random.Random(first)  # the same figures each time
    rows = [
        {
            "pipeline": "shop",
            "dead_letter_file": f"{epoch:010d}-1-0",
            "kind": DeadLetterKind.DEAD,
            "epoch": epoch,
            "rows_total": 1,
            "reasons": json.dumps(
                {reason: rng.randint(1, 20) for reason in rng.sample(_REASONS, rng.randint(1, 3))}
            ),
            "registered_at": 1.0,
            "file_path": f"letters/{epoch:010d}-1-0.parquet",
            "file_bytes": 1,
            "file_checksum": "0" * 64,
            "file_row": 0,
        }
        for epoch in range(first, last)
    ]
    with catalog.engine.begin() as connection:
        connection.execute(insert(schema.dead_letter_files), rows)
    _run(catalog, "ANALYZE oncehouse_dead_letter_files")


def _run(catalog: Catalog, statement: str) -> None:
    with catalog.engine.begin() as connection:
        connection.execute(text(statement))


def _add_up(catalog: Catalog) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for file in epochs.list_dead_letter_files(catalog):
        counted.update(file.reasons)
    return dict(counted)


def _best(work: Callable[[], object], times: int = 3) -> float:
    """Milliseconds."""
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return min(taken) * 1000


def measure(catalog: Catalog) -> list[float]:
    if dead_letters.count_reasons(catalog) != _add_up(catalog):
        raise SystemExit("the two ways count differently")

    def read_open() -> None:
        list(islice(dead_letters.walk_newest_files(catalog), 100))

    def ask() -> None:
        AwaitedSchemas().read(catalog)

    indexed = [_best(read_open), _best(ask)]
    _run(catalog, f"DROP INDEX {_INDEX}")
    bare = [_best(read_open), _best(ask)]
    _run(
        catalog,
        f"CREATE INDEX {_INDEX} ON oncehouse_dead_letter_files (pipeline, kind, epoch) "
        "WHERE tried_in_epoch IS NULL",
    )
    return [
        _best(lambda: _add_up(catalog)),
        _best(lambda: dead_letters.count_reasons(catalog)),
        *(figure for pair in zip(bare, indexed, strict=True) for figure in pair),
    ]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/catalog.db"
        catalog = Catalog(url, "shop")
        catalog.prepare()
        catalog.adopt(LedgerIdentity(fingerprint="x", buckets=16))
        print("milliseconds, best of three")
        heads = ("counts: by file", "by database", "page: bare", "indexed", "waiting?: bare", "indexed")
        print(f"{'files':>8} " + " ".join(f"{head:>15}" for head in heads))
        entered = 1
        for number in _FILES:
            fill(catalog, entered, number + 1)
            entered = number + 1
            print(f"{number:>8,} " + " ".join(f"{figure:>15.1f}" for figure in measure(catalog)))
        catalog.close()


if __name__ == "__main__":
    main()
