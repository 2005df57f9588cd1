"""Where the time of the pipeline goes: on the driver, stage by stage, and inside one read, decide and load task.

The driver's stages are timed while the pipeline runs. The tasks are run once more in this process on blocks of the
same events, with a stopwatch around each step; a step's time leaves out the steps inside it.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from oncehouse.ledger.models import FileRef
from oncehouse.pipeline.dedup import deduplicate
from oncehouse.pipeline.dedup.deduplicate import DecidePlan
from oncehouse.pipeline.ingest import read_task
from oncehouse.pipeline.ingest.manifest import TaskManifest
from read_tasks import make_blocks, make_read_plan

_EVENTS = 400_000

# module, attribute (with its class), and the name it is shown under
_DRIVER = (
    ("oncehouse.pipeline.stages.kafka_stream", "settle", "epoch: plans, manifests and the rest"),
    ("oncehouse.pipeline.stages.kafka_stream", "read_dataframe", "epoch: read job"),
    ("oncehouse.pipeline.ingest.epoch", "_decide_all", "epoch: decide job"),
    ("oncehouse.ledger.catalog.registration", "register", "epoch: register"),
    ("oncehouse.pipeline.stages.ingest_stage", "compact", "between epochs: compaction"),
    ("oncehouse.pipeline.stages.load_stage", "load", "beside ingest: load"),
)
_TASK = (
    ("oncehouse.pipeline.ingest.read_task", "read_records", "read: blocks and the rest"),
    ("oncehouse.pipeline.formats.json.decoder", "JsonDecoder.decode", "read: decode, the rest"),
    ("oncehouse.pipeline.formats.json.decoder", "screen_bytes", "read: decode, screen"),
    ("oncehouse.pipeline.formats.json.decoder", "screen_structure", "read: decode, screen what is parsed"),
    ("oncehouse.pipeline.formats.json.decoder", "JsonDecoder._read_alike", "read: decode, by one layout"),
    ("oncehouse.pipeline.formats.json.decoder", "JsonDecoder._parse", "read: decode, parse"),
    ("oncehouse.pipeline.formats.json.decoder", "JsonDecoder._convert", "read: decode, convert"),
    ("oncehouse.pipeline.ingest.read_task", "unique_ids", "read: unique ids"),
    ("oncehouse.pipeline.ingest.read_task", "hash_payloads", "read: payload hashes"),
    ("oncehouse.pipeline.ingest.read_task", "_Chunk._sorted_keys", "read: sort keys"),
    ("oncehouse.pipeline.ingest.part_files", "PartFile.write", "read: part to a file"),
    ("oncehouse.pipeline.ingest.read_task", "write_blocks", "read: raw bytes to a file"),
    ("oncehouse.pipeline.ingest.read_task", "write_keys", "read: key file"),
    ("oncehouse.ledger.storage.file_store", "checksum", "files: checksum"),
    ("oncehouse.ledger.storage.file_store", "checksum", "files: checksum"),
    ("oncehouse.ledger.storage.file_store", "_sync", "files: fsync"),
    ("oncehouse.pipeline.dedup.deduplicate", "decide", "decide: the rest"),
    ("oncehouse.pipeline.dedup.deduplicate", "_gather", "decide: gather and sort keys"),
    ("oncehouse.pipeline.dedup.deduplicate", "_find_seen", "decide: look up in the index"),
    ("oncehouse.pipeline.dedup.deduplicate", "_write_segment", "decide: write segment"),
)


class Watch:
    """Seconds and calls by name; a step's seconds leave out the watched steps inside it on its thread."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self._lock = threading.Lock()
        self._running = threading.local()

    def wrap(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            inside: list[float] = self._running.__dict__.setdefault("inside", [])
            inside.append(0.0)
            started = time.perf_counter()
            try:
                return work(*args, **kwargs)
            finally:
                took = time.perf_counter() - started
                self._add(name, took - inside.pop())
                if inside:
                    inside[-1] += took

        return timed

    def _add(self, name: str, seconds: float) -> None:
        with self._lock:
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
            self.calls[name] = self.calls.get(name, 0) + 1

    def show(self, title: str, whole_seconds: float) -> None:
        print(f"{title} ({whole_seconds:.2f} s)")
        for name, seconds in sorted(self.seconds.items(), key=lambda item: -item[1]):
            print(f"  {seconds / whole_seconds:6.1%} {seconds:8.2f} s {self.calls[name]:6} x  {name}")


@contextmanager
def watching(places: Sequence[tuple[str, str, str]]) -> Iterator[Watch]:
    """Stopwatches around the named functions; a name that is gone is told, not guessed."""
    watch = Watch()
    with ExitStack() as at_end:
        for module, path, name in places:
            owner: Any = importlib.import_module(module)
            *parents, attribute = path.split(".")
            for parent in parents:
                owner = getattr(owner, parent)
            work = getattr(owner, attribute, None)
            if work is None:
                print(f"no {module}.{path} to time")
                continue
            setattr(owner, attribute, watch.wrap(name, work))
            at_end.callback(setattr, owner, attribute, work)
        yield watch


def watch_driver() -> AbstractContextManager[Watch]:
    return watching(_DRIVER)


def show_tasks(folder: Path) -> None:
    """One read task, then a decide task over what it wrote, against an index of the same size."""
    plan = make_read_plan(folder)
    blocks = list(make_blocks(_EVENTS))
    read_task.read_records(plan, "warm", blocks[:1])
    with watching(_TASK) as watch:
        started = time.perf_counter()
        first, second = (read_task.read_records(plan, name, half) for name, half in _halves(blocks))
        read_seconds = time.perf_counter() - started
        known = deduplicate.decide(_decide_plan(folder, first, "a", ()))
        deduplicate.decide(_decide_plan(folder, second, "b", (known.segment,) if known.segment else ()))
        seconds = time.perf_counter() - started
    rows = sum(block.num_rows for block in blocks)
    print(f"one task, one core, {rows} events: read {rows / read_seconds:.0f} events/s")
    watch.show("read and decide tasks", seconds)


def _halves(blocks: list[pa.RecordBatch]) -> tuple[tuple[str, list[pa.RecordBatch]], ...]:
    middle = len(blocks) // 2
    return ("first", blocks[:middle]), ("second", blocks[middle:])


def _decide_plan(folder: Path, read: TaskManifest, name: str, segments: tuple[FileRef, ...]) -> DecidePlan:
    return DecidePlan(
        bucket_from=0,
        bucket_to=15,
        buckets=16,
        files_root=str(folder),
        key_files=tuple(chunk.keys for chunk in read.chunks),
        segments=segments,
        out=f"bench/{name}",
        tables=1,
    )
