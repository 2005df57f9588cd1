"""What parts and raw bytes cost as Arrow files and as Parquet, and how fast their checksums are made.

    python benchmarks/part_forms.py [events]

On one thread, with the events of the other benchmarks. Reading is what a task does: damage is looked for too. The
choice and its reasons stand in docs/decisions/0007-parts-and-packs.md.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

from oncehouse.ledger.models import FileRef
from oncehouse.ledger.storage.checksums import checksum, quick_checksum
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.ingest import read_task
from oncehouse.pipeline.ingest.manifest import ChunkManifest, Form
from oncehouse.pipeline.ingest.part_files import read_rows, write_blocks
from processor_time import least_seconds
from read_tasks import make_blocks, make_read_plan

EVENTS = 500_000
ROUNDS = 5


def measure(store: FileStore, name: str, file: FileRef, form: Form, events: int) -> None:
    rows = read_rows(store, file)
    target = str(store.local(file).with_suffix(".again"))
    writing = least_seconds(lambda: write_blocks(target, [rows], form), ROUNDS)
    loading = least_seconds(lambda: read_rows(store, file), ROUNDS)
    cells = (writing / events * 1e6, loading / events * 1e6, file.size_bytes / events)
    print(f"{name:6} {form:8}" + "".join(f"{cell:10.3f}" for cell in cells))


def main() -> None:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else EVENTS
    blocks = list(make_blocks(events))
    print(f"{'':15}{'write µs':>10}{'read µs':>10}{'bytes':>10}  an event")
    with tempfile.TemporaryDirectory() as folder:
        store = FileStore(folder)
        for form in Form:
            plan = replace(make_read_plan(Path(folder)), form=form, part_rows=events, part_bytes=1 << 40)
            chunk: ChunkManifest
            (chunk,) = read_task.read_records(plan, str(form), iter(blocks)).chunks
            measure(store, "part", chunk.parts[0].file, form, events)
            measure(store, "raw", chunk.raw, form, events)
        for way in (quick_checksum, checksum):
            path = store.local(chunk.raw)
            speed = chunk.raw.size_bytes / least_seconds(partial(way, path), ROUNDS) / 1e9
            print(f"{way.__name__:16}{speed:8.1f} GB/s")


if __name__ == "__main__":
    main()
