"""The constants of `oncehouse plan-capacity` that need no server: files, key index, catalog and memory.

    python benchmarks/capacity.py [--quick]

By the product's own read task, segments, merges, packs and catalog. Times are processor time, the best of some rounds,
so that they hold on a busy machine. Memory is what a fresh process took beyond what it had before. --quick takes
fewer keys and events: its sizes are the same, its times and memory are not to be kept.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

import capacity_catalog
from demo_traffic import make_messages, plan_traffic
from oncehouse.clickhouse.insert.insert_batch import encode
from oncehouse.clickhouse.insert.outcome import InsertRequest
from oncehouse.ledger.catalog.packs import PackBundle
from oncehouse.ledger.models import FileRef, KeyFile, Part
from oncehouse.ledger.storage import key_index
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.ledger.storage.key_index import Keys
from oncehouse.pipeline.dedup.deduplicate import DecidePlan, decide
from oncehouse.pipeline.dedup.index_compaction import FAN_IN, MAX_KEYS, MergePlan, merge_task
from oncehouse.pipeline.formats.base import EVENT_COLUMN
from oncehouse.pipeline.ingest import read_task
from oncehouse.pipeline.ingest.manifest import TaskManifest
from oncehouse.pipeline.maintenance.file_packs import LEAST_EPOCHS, PackPlan, pack_task
from processor_time import least_seconds
from read_tasks import make_blocks, make_read_plan

ROUNDS = 3
LONGER_BYTES = 800
LOOKED_UP = 100_000
LARGE_EVENTS = 256
LARGE_EVENT_BYTES = 1_000_000
SEGMENT_KEYS = (1_000_000, 4_000_000, MAX_KEYS)

Figures = dict[str, float]


def measure(folder: Path, *, quick: bool) -> Figures:
    divided = 16 if quick else 1
    return {
        **measure_files(folder / "files", events=400_000 // divided),
        **measure_duplicates(folder / "duplicates"),
        **measure_packs(folder / "packs"),
        **measure_index(folder / "index", sizes=[size // divided for size in SEGMENT_KEYS]),
        **measure_memory(folder / "memory", divided=divided),
        **capacity_catalog.measure(epochs=2_000 // divided),
    }


def measure_files(folder: Path, *, events: int) -> Figures:
    """A read task over events of two lengths: seconds an event and a byte, and what it writes."""
    short, long = (_measure_read(folder / str(added), events, added) for added in (0, LONGER_BYTES))
    seconds_a_byte = (long["seconds"] - short["seconds"]) / (long["length"] - short["length"])
    return {
        "event_bytes": short["length"],
        "read_seconds_a_byte": seconds_a_byte,
        "read_seconds_an_event": short["seconds"] - seconds_a_byte * short["length"],
        "raw_bytes_a_byte": short["raw"] / short["length"],
        "part_bytes_a_byte": short["part"] / short["length"],
        "key_file_bytes_an_event": short["keys"],
    }


def _measure_read(folder: Path, events: int, added_bytes: int) -> Figures:
    """All by event."""
    blocks = list(make_blocks(events, added_bytes))
    plan = make_read_plan(folder)
    read_task.read_records(plan, "warm", blocks[:1])
    seconds = best(lambda: read_task.read_records(plan, "timed", blocks))
    found = read_task.read_records(plan, "sized", blocks)
    length = sum(block.column("value").nbytes for block in blocks) / events - 4
    return {
        "length": length,
        "seconds": seconds / events,
        "raw": sum(chunk.raw.size_bytes for chunk in found.chunks) / events,
        "part": sum(part.file.size_bytes for chunk in found.chunks for part in chunk.parts) / events,
        "keys": sum(chunk.keys.size_bytes for chunk in found.chunks) / events,
    }


def measure_duplicates(folder: Path, *, events: int = 50_000) -> Figures:
    """What a decide task writes for each duplicate; of the events every twelfth or so is one."""
    (chunk,) = read_task.read_records(make_read_plan(folder), "read", make_blocks(events)).chunks
    plan = DecidePlan(
        bucket_from=0,
        bucket_to=15,
        buckets=16,
        files_root=str(folder),
        key_files=(chunk.keys,),
        segments=(),
        out="bench/decided",
        tables=1,
    )
    found = decide(plan).duplicate_file
    if found is None:
        raise SystemExit("the events of the benchmarks hold no duplicates")
    return {"duplicate_bytes": found.file.size_bytes / found.rows}


def measure_packs(folder: Path, *, events_an_epoch: int = 2_000) -> Figures:
    """Small epochs, packed: what is left of raw bytes and parts, by byte of the events."""
    blocks = list(make_blocks(LEAST_EPOCHS * events_an_epoch, 0, block_rows=events_an_epoch))
    plan = make_read_plan(folder)
    bundles = [
        _bundle(at, read_task.read_records(plan, f"e{at}", [block])) for at, block in enumerate(blocks)
    ]
    moves = pack_task(PackPlan(files_root=str(folder), out="bench/packs/1-pack", bundles=tuple(bundles)))
    sizes = {move.new.path: move.new.size_bytes for move in moves}
    read_bytes = sum(block.column("value").nbytes - 4 * block.num_rows for block in blocks)

    def share(ending: str) -> float:
        return sum(size for path, size in sizes.items() if path.endswith(ending)) / read_bytes

    return {
        "packed_raw_bytes_a_byte": share(".raw.parquet"),
        "packed_part_bytes_a_byte": share(".part.parquet"),
    }


def _bundle(epoch: int, read: TaskManifest) -> PackBundle:
    (chunk,) = read.chunks
    name = f"{epoch:010d}-1-0"
    part = Part(
        part=name,
        epoch=epoch,
        table="bench",
        key_file=name,
        ordinal=0,
        rows=chunk.events,
        live_rows=chunk.events,
        size_bytes=0,
        file=chunk.parts[0].file,
    )
    key_file = KeyFile(key_file=name, ordinal=0, events=chunk.events, keys=chunk.keys, raw=chunk.raw)
    return PackBundle(
        epoch=epoch, registered_at=0.0, key_files=(key_file,), parts=(part,), duplicate_files=()
    )


def measure_index(folder: Path, *, sizes: list[int]) -> Figures:
    """Segments by size: bytes a key, and seconds a looked-up key; a merge of the largest, seconds a key."""
    store = FileStore(str(folder))
    asked = make_keys(np.random.default_rng(1), LOOKED_UP)
    found: Figures = {}
    for size in sizes:
        ref = put_segment(store, f"bench/{size}.segment.arrow", np.random.default_rng(size), size)
        segment = key_index.open_keys(store.local(ref))
        key_index.find(segment, asked.hi, asked.lo)
        taken = best(lambda segment=segment: key_index.find(segment, asked.hi, asked.lo))
        found[f"look_up_seconds_among_{size}"] = taken / LOOKED_UP
        found["segment_bytes_a_key"] = ref.size_bytes / size
    found["open_seconds_a_segment"] = _measure_opening(store)
    keys = sizes[-1]
    plan = _merge_plan(store, folder, keys)
    found["merge_seconds_a_key"] = best(lambda: merge_task(plan)) / keys
    hashed = store.local(plan.inputs[0])
    found["check_seconds_a_byte"] = best(lambda: store.verify(plan.inputs[0])) / hashed.stat().st_size
    return found


def _measure_opening(store: FileStore, *, segments: int = 1000) -> float:
    """Once a segment was checked: opening it, and looking for a key that is not there."""
    rng = np.random.default_rng(4)
    refs = [put_segment(store, f"bench/small-{at}.segment.arrow", rng, 1000) for at in range(segments)]
    asked = make_keys(rng, 1)

    def open_all() -> None:
        for ref in refs:
            key_index.find(key_index.open_keys(store.checked(ref)), asked.hi, asked.lo)

    open_all()
    return best(open_all) / segments


def _merge_plan(store: FileStore, folder: Path, keys: int) -> MergePlan:
    rng = np.random.default_rng(2)
    inputs = tuple(
        put_segment(store, f"bench/in-{at}.segment.arrow", rng, keys // FAN_IN) for at in range(FAN_IN)
    )
    return MergePlan(files_root=str(folder), inputs=inputs, out="bench/merged", ranges=((0, 15),), buckets=16)


def measure_memory(folder: Path, *, divided: int) -> Figures:
    """In fresh processes: a worker before its first task, a read task of one part, a merge, a look-up."""
    rows = 500_000 // divided
    keys = MAX_KEYS // divided
    worker, _ = in_fresh_process(_grow_by_nothing, str(folder), 0)
    _, short = in_fresh_process(_grow_by_reading, str(folder), rows)
    _, long = in_fresh_process(_grow_by_reading_long, str(folder), rows // 2)
    _, small_blocks = in_fresh_process(_grow_by_small_blocks, str(folder), LARGE_EVENTS)
    _, large_blocks = in_fresh_process(_grow_by_large_blocks, str(folder), LARGE_EVENTS)
    _, load = in_fresh_process(_grow_by_loading, str(folder), LARGE_EVENTS)
    _, merge = in_fresh_process(_grow_by_merging, str(folder), keys)
    _, look_up = in_fresh_process(_grow_by_looking_up, str(folder), keys)
    a_byte = (long / (rows // 2) - short / rows) / LONGER_BYTES
    length = len(make_messages(plan_traffic(100).first)[0])
    return {
        "worker_bytes": worker,
        "read_memory_bytes_a_byte": a_byte,
        "read_memory_bytes_an_event": short / rows - a_byte * length,
        "read_memory_bytes_a_byte_of_a_block": (large_blocks - small_blocks) / (96 * LARGE_EVENT_BYTES),
        "load_memory_bytes_a_byte": load / (LARGE_EVENTS * LARGE_EVENT_BYTES),
        "merge_memory_bytes_a_key": merge / keys,
        "look_up_memory_bytes_a_key": look_up / keys,
    }


def in_fresh_process(
    work: Callable[[str, int], Callable[[], object]], folder: str, count: int
) -> tuple[int, int]:
    """(what the process had before, by how much it grew at most) in bytes."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_grow, (work, folder, count))


def _grow(work: Callable[[str, int], Callable[[], object]], folder: str, count: int) -> tuple[int, int]:
    ready = work(folder, count)
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forgets the highest so far
    ready()
    return before, _memory("VmHWM") - before


def _memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def _grow_by_nothing(_folder: str, _count: int) -> Callable[[], object]:
    return lambda: None


def _grow_by_reading(folder: str, rows: int) -> Callable[[], object]:
    plan = make_read_plan(Path(folder) / "read")
    return lambda: read_task.read_records(plan, "grow", make_blocks(rows, 0))


def _grow_by_reading_long(folder: str, rows: int) -> Callable[[], object]:
    plan = make_read_plan(Path(folder) / "long")
    return lambda: read_task.read_records(plan, "grow", make_blocks(rows, LONGER_BYTES))


def _grow_by_small_blocks(folder: str, events: int) -> Callable[[], object]:
    return _read_large(folder, events, block_rows=32)


def _grow_by_large_blocks(folder: str, events: int) -> Callable[[], object]:
    return _read_large(folder, events, block_rows=128)


def _read_large(folder: str, events: int, *, block_rows: int) -> Callable[[], object]:
    plan = replace(make_read_plan(Path(folder) / "large"), max_message_bytes=2 * LARGE_EVENT_BYTES)
    blocks = make_blocks(events, LARGE_EVENT_BYTES, block_rows=block_rows)
    return lambda: read_task.read_records(plan, f"grow-{block_rows}", blocks)


def _grow_by_loading(folder: str, _events: int) -> Callable[[], object]:
    """A batch of the parts that were read before, from the files to what is sent."""
    place = Path(folder) / "large"
    paths = sorted(place.rglob("*-grow-32-*.part.arrow"))

    def load() -> object:
        rows = pa.concat_tables(pa.ipc.open_file(pa.memory_map(str(path))).read_all() for path in paths)
        rows = rows.drop_columns(EVENT_COLUMN)
        request = InsertRequest(
            table="bench",
            columns=tuple(rows.column_names),
            batch_column="_batch_id",
            batch_id=str(uuid.UUID(int=1)),
            attempt=1,
            rows=rows.num_rows,
            earlier_query_ids=(),
            outcome_unknown=False,
            may_be_forgotten=False,
            merges_rows=False,
        )
        return encode(request, rows)

    return load


def _grow_by_merging(folder: str, keys: int) -> Callable[[], object]:
    place = Path(folder) / "merge"
    plan = _merge_plan(FileStore(str(place)), place, keys)
    return lambda: merge_task(plan)


def _grow_by_looking_up(folder: str, keys: int) -> Callable[[], object]:
    store = FileStore(str(Path(folder) / "look-up"))
    ref = put_segment(store, "bench/one.segment.arrow", np.random.default_rng(keys), keys)
    asked = make_keys(np.random.default_rng(1), LOOKED_UP)
    return lambda: key_index.find(key_index.open_keys(store.local(ref)), asked.hi, asked.lo)


def best(work: Callable[[], object]) -> float:
    return least_seconds(work, ROUNDS)


def make_keys(rng: np.random.Generator, count: int) -> Keys:
    hi, lo, payload = (rng.integers(0, 1 << 64, count, dtype=np.uint64) for _ in range(3))
    hi.sort()
    return Keys(hi=hi, lo=lo, payload=payload)


def put_segment(store: FileStore, name: str, rng: np.random.Generator, count: int) -> FileRef:
    keys = make_keys(rng, count)
    return store.put(name, lambda path: key_index.write_keys(path, keys))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a sixteenth of the keys and events")
    quick = parser.parse_args().quick
    folder = Path(tempfile.mkdtemp(prefix="oncehouse-bench-capacity-"))
    try:
        for name, value in measure(folder, quick=quick).items():
            print(f"{name:<36} {value:.4g}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
