"""The measured constants behind `oncehouse plan-capacity`, and nothing else: each with the command that prints it.

Sizes hold anywhere, and a test compares them with what the code writes now. Times are processor time of the benchmark
machine's cores; memory is what a process took at most. The events are those of the benchmarks: JSON of 213 bytes in
seven fields. To plan with figures of another machine, change them here.
"""

from __future__ import annotations

from dataclasses import dataclass

_CAPACITY = "python benchmarks/capacity.py"
_END_TO_END = "python benchmarks/end_to_end.py"
_SOAK = "python tools/soak.py"

MB = 1 << 20
GB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Figure:
    name: str
    """As the command prints it."""
    value: float
    unit: str
    command: str


EVENT_BYTES = Figure(name="event_bytes", value=213, unit="bytes", command=_CAPACITY)
"""The length of an event for which the figures by byte of it were measured."""

# Files of the ledger. What of an event's bytes is left after compression depends on the events.
RAW_BYTES_A_BYTE = Figure(name="raw_bytes_a_byte", value=0.235, unit="bytes", command=_CAPACITY)
PART_BYTES_A_BYTE = Figure(name="part_bytes_a_byte", value=0.273, unit="bytes", command=_CAPACITY)
PACKED_RAW_BYTES_A_BYTE = Figure(name="packed_raw_bytes_a_byte", value=0.113, unit="bytes", command=_CAPACITY)
PACKED_PART_BYTES_A_BYTE = Figure(
    name="packed_part_bytes_a_byte", value=0.149, unit="bytes", command=_CAPACITY
)
KEY_FILE_BYTES_AN_EVENT = Figure(name="key_file_bytes_an_event", value=28, unit="bytes", command=_CAPACITY)
DUPLICATE_BYTES = Figure(name="duplicate_bytes", value=8.3, unit="bytes", command=_CAPACITY)
SEGMENT_BYTES_A_KEY = Figure(name="segment_bytes_a_key", value=24, unit="bytes", command=_CAPACITY)

# Rows of the catalog with their share of its indexes.
CATALOG_BYTES_AN_EPOCH = Figure(name="catalog_bytes_an_epoch", value=1343, unit="bytes", command=_CAPACITY)
CATALOG_BYTES_A_RANGE = Figure(name="catalog_bytes_a_range", value=82, unit="bytes", command=_CAPACITY)
CATALOG_BYTES_A_PART = Figure(name="catalog_bytes_a_part", value=699, unit="bytes", command=_CAPACITY)
CATALOG_BYTES_A_BATCH = Figure(name="catalog_bytes_a_batch", value=473, unit="bytes", command=_CAPACITY)

# Processor time.
READ_SECONDS_AN_EVENT = Figure(name="read_seconds_an_event", value=0.55e-6, unit="seconds", command=_CAPACITY)
READ_SECONDS_A_BYTE = Figure(name="read_seconds_a_byte", value=4.2e-9, unit="seconds", command=_CAPACITY)
LOOKUP_SECONDS = (
    Figure(name="look_up_seconds_among_1000000", value=4.5e-8, unit="seconds", command=_CAPACITY),
    Figure(name="look_up_seconds_among_4000000", value=1.28e-7, unit="seconds", command=_CAPACITY),
    Figure(name="look_up_seconds_among_16000000", value=2.75e-7, unit="seconds", command=_CAPACITY),
)
"""By segment; for a segment of any other size the next larger one counts."""
OPEN_SECONDS_A_SEGMENT = Figure(
    name="open_seconds_a_segment", value=1.6e-4, unit="seconds", command=_CAPACITY
)
"""By each epoch, for each segment of the ranges that it decides."""
MERGE_SECONDS_A_KEY = Figure(name="merge_seconds_a_key", value=1.0e-7, unit="seconds", command=_CAPACITY)
CHECK_SECONDS_A_BYTE = Figure(name="check_seconds_a_byte", value=6.4e-10, unit="seconds", command=_CAPACITY)
PIPELINE_SECONDS_AN_EVENT = Figure(
    name="cpu_s_per_million of driver, Java and workers", value=4.2e-6, unit="seconds", command=_END_TO_END
)
"""Of all processes of Spark together, loads included, for an event of EVENT_BYTES and a small key index."""
EPOCH_SECONDS = 1.0
"""What an epoch takes, however little it reads: two jobs, planning, the offset log, the registration. Rounded up:
`python benchmarks/epoch_cost.py --events 500000` printed 0.93 on two busy cores."""

# Memory.
WORKER_BYTES = Figure(name="worker_bytes", value=163e6, unit="bytes", command=_CAPACITY)
READ_MEMORY_BYTES_AN_EVENT = Figure(
    name="read_memory_bytes_an_event", value=374, unit="bytes", command=_CAPACITY
)
READ_MEMORY_BYTES_A_BYTE = Figure(
    name="read_memory_bytes_a_byte", value=2.33, unit="bytes", command=_CAPACITY
)
READ_MEMORY_BYTES_A_BYTE_OF_A_BLOCK = Figure(
    name="read_memory_bytes_a_byte_of_a_block", value=9.0, unit="bytes", command=_CAPACITY
)
"""Of the block that is being decoded, next to the chunk that takes its rows. Rounded up: 7.0 to 8.1 were printed."""
LOAD_MEMORY_BYTES_A_BYTE = Figure(name="load_memory_bytes_a_byte", value=4.3, unit="bytes", command=_CAPACITY)
"""Of a batch: its rows, put together, and as they are sent."""
MERGE_MEMORY_BYTES_A_KEY = Figure(name="merge_memory_bytes_a_key", value=105, unit="bytes", command=_CAPACITY)
LOOKUP_MEMORY_BYTES_A_KEY = Figure(
    name="look_up_memory_bytes_a_key", value=8.3, unit="bytes", command=_CAPACITY
)
"""Of the key index, in the page cache, once many keys were looked up: the high halves."""
DRIVER_BYTES_A_FILE = Figure(name="driver_bytes_a_file", value=159, unit="bytes", command=_CAPACITY)
DRIVER_BYTES = Figure(name="driver (Python), most", value=216 * MB, unit="bytes", command=_SOAK)
JAVA_BYTES_BEYOND_HEAP = Figure(
    name="driver (Java), bound above the heap", value=450 * MB, unit="bytes", command=_SOAK
)
JAVA_HEAP_BYTES = GB
"""Spark's own default for `spark.driver.memory` and `spark.executor.memory`; no measurement."""

PAGE_BYTES = 4096
"""What a look-up reads of a file that is not in memory; no measurement."""
