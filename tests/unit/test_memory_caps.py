"""Records made to fill the memory: each is a row or a dead letter, in a process that may not take much more.

Protobuf and Avro have bombs of their own kind, beside their fuzzing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ALLOWED_BYTES = 192 << 20

RUN = """
import json, resource, sys
sys.path[:0] = {paths!r}
import pyarrow as pa
from oncehouse.column_types.parser import parse_type
from oncehouse.config.formats import Csv, Text
from oncehouse.pipeline.formats.csv.decoder import make_csv_format
from oncehouse.pipeline.formats.debezium.decoder import DebeziumFormat
from oncehouse.pipeline.formats.base import DecodeLimits
from oncehouse.pipeline.formats.json.format import JsonFormat
from oncehouse.pipeline.formats.text import make_text_format
from debezium_examples import FIELDS, OWN

plain = {{"a": "Nullable(String)", "b": "Nullable(Int64)"}}
formats = {{
    "json": (JsonFormat(), plain),
    "jsonl": (JsonFormat(lines=True), plain),
    "csv": (make_csv_format(Csv(), tuple(plain)), plain),
    "text": (make_text_format(Text(pattern="(?P<a>(?:x*)*)(?P<b>[0-9]*)")), plain),
    "lines": (make_text_format(Text(lines=True)), {{"a": "Nullable(String)"}}),
    "debezium": (DebeziumFormat(precise_decimals=True), FIELDS | OWN),
}}
size = 1 << 18
bombs = [
    b"[" * size,
    b'{{"a":' * (size // 5),
    b'{{"payload":{{"after":' * (size // 20),
    b'"' * size,
    b"," * size,
    b"\\n" * size,
    b"x" * size,
    b"{{}}\\n" * (size // 3),
    b"x\\n" * (size // 2),
    b'{{"a":[' + b"{{}}," * (size // 3) + b"{{}}]}}",
    b"{{" + b",".join(b'"k%d":1' % n for n in range(size // 11)) + b"}}",
    b'{{"a":"' + b"\\\\u0000" * (size // 6) + b'"}}',
]
limits = DecodeLimits(max_message_bytes=size + 100, max_depth=64)
told = {{}}
format_, declared = formats[{name!r}]
decoder = format_.make_decoder({{field: parse_type(text) for field, text in declared.items()}}, (), limits)


def decode(*values):
    keys = pa.nulls(len(values), pa.binary())
    offsets = pa.array(range(len(values)), pa.int64())
    given = [pa.array(values, pa.binary()), keys, offsets]
    block = format_.unfold(pa.record_batch(given, ["value", "key", "offset"]))
    decoded = decoder.decode(block)
    places = [*decoded.taken.tolist(), *decoded.skipped.tolist(), *(one.index for one in decoded.rejected)]
    return sorted(places) == list(range(block.num_rows))


decode(b"1,2")
with open("/proc/self/statm") as statm:
    before = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (before + {allowed}, -1))
print(json.dumps([decode(b"1,2", bomb, b"1,2", bomb) for bomb in bombs]))
"""


@pytest.mark.parametrize("name", ["json", "jsonl", "csv", "text", "lines", "debezium"])
def test_bombs_are_rows_or_dead_letters_within_a_cap_of_memory(name):
    tests = Path(__file__).parents[1] / "support"
    paths = [str(tests), *(path for path in sys.path if path.endswith("src"))]
    script = RUN.format(paths=paths, allowed=ALLOWED_BYTES, name=name)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == [True] * 12
