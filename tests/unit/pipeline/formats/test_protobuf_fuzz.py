"""Whatever the bytes: a row or a dead letter, the same with any neighbours, and never more memory than allowed."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import examples
from protobuf_examples import block, column, derived, everything, make_decoder, message_class, schema

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
UINT32 = st.integers(0, 2**32 - 1)
UINT64 = st.integers(0, 2**64 - 1)
INNER = st.fixed_dictionaries({}, optional={"id": INT64, "name": st.text(max_size=3)})
TIME = st.fixed_dictionaries({"seconds": st.integers(-(2**31), 2**33), "nanos": st.integers(0, 10**9 - 1)})
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "i32": INT32, "i64": INT64, "u32": UINT32, "u64": UINT64, "s32": INT32, "s64": INT64, "f32": UINT32,
        "f64": UINT64, "sf32": INT32, "sf64": INT64, "fl": st.floats(width=32), "db": st.floats(),
        "b": st.booleans(), "s": st.text(max_size=4), "y": st.binary(max_size=4), "c": st.integers(-1, 6),
        "inner": INNER, "oi": INT32, "os": st.text(max_size=3), "oc": st.integers(0, 6),
        "ri": st.lists(INT32, max_size=3), "rs": st.lists(st.text(max_size=2), max_size=3),
        "rm": st.lists(INNER, max_size=3), "rc": st.lists(st.integers(0, 6), max_size=3),
        "msi": st.dictionaries(st.text(max_size=2), INT32, max_size=3), "oa": INT32, "ob": st.text(max_size=2),
        "ts": TIME, "du": TIME, "rts": st.lists(TIME, max_size=2),
    },
).map(lambda given: everything()(**given))  # fmt: skip
SIMPLE = [
    "i32", "i64", "u32", "u64", "s32", "s64", "f32", "f64", "sf32", "sf64", "fl", "db", "b", "s", "y", "oi", "os",
    "ri", "rs", "oa", "ob", "msi",
]  # fmt: skip
DECODER = make_decoder()
SMALL = make_decoder({name: derived()[name] for name in (*SIMPLE, "one")})


def same(left, right):
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    return left == right


def seen(message, field):
    """What the protobuf library says of a field."""
    if message.DESCRIPTOR.fields_by_name[field].has_presence and not message.HasField(field):
        return None
    value = getattr(message, field)
    if field == "y":
        return text_or_bytes(value)
    if field == "msi":
        return dict(value)
    return list(value) if field in ("ri", "rs") else value


def text_or_bytes(value):
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def rows(decoded):
    columns = {field: column(decoded, field) for field in SIMPLE}
    columns["msi"] = [dict(pairs) for pairs in columns["msi"]]
    return [{field: columns[field][row] for field in SIMPLE} for row in range(decoded.rows.num_rows)]


def accounted(decoded, count):
    places = [
        *decoded.taken.tolist(),
        *(found.index for found in decoded.rejected),
        *decoded.skipped.tolist(),
    ]
    return sorted(places) == list(range(count)) and decoded.rows.num_rows == len(decoded.taken)


@given(st.lists(MESSAGES, min_size=1, max_size=8))
@examples(40)
def test_rows_hold_what_the_protobuf_library_sees(messages):
    decoded = DECODER.decode(block([message.SerializeToString() for message in messages]))
    assert not decoded.rejected
    for row, message in zip(rows(decoded), messages, strict=True):
        assert all(same(row[field], seen(message, field)) for field in SIMPLE)


@st.composite
def damaged(draw):
    """A message with bytes changed, taken out, put in, or another one behind it."""
    data = bytearray(draw(MESSAGES).SerializeToString())
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(data)))
        data[place : place + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(data) + (draw(MESSAGES).SerializeToString() if draw(st.booleans()) else b"")


@given(st.lists(st.binary(max_size=40) | damaged(), min_size=1, max_size=12))
@examples(30)
def test_any_bytes_are_a_row_or_a_dead_letter_whatever_stands_beside_them(values):
    decoded = DECODER.decode(block(values))
    assert accounted(decoded, len(values))
    taken = set(decoded.taken.tolist())
    for place, value in enumerate(values):
        alone = DECODER.decode(block([value]))
        assert (len(alone.taken) == 1) == (place in taken)


@given(damaged())
@examples(80)
def test_what_the_library_and_we_can_both_read_reads_the_same(value):
    decoded = SMALL.decode(block([value]))
    try:
        message = everything().FromString(value)
    except DecodeError:
        return
    if decoded.rejected:
        return
    (row,) = rows(decoded)
    assert all(same(row[field], seen(message, field)) for field in SIMPLE)
    assert column(decoded, "one") == [message.WhichOneof("one")]


# -- bombs ------------------------------------------------------------------------------------------------

BOMB_RUN = """
import json, resource, sys
sys.path[:0] = {paths!r}
from protobuf_examples import block, make_decoder, schema
decoder = make_decoder()
wide = make_decoder(
    {{"items": "Array(Tuple(" + ", ".join(f"f{{n}} Int64" for n in range(60)) + "))"}},
    [schema("1", "wide.proto", "bomb.Wide")],
)
good = b""
decoder.decode(block([good]))
with open("/proc/self/statm") as statm:
    before = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (before + {allowed}, -1))
size = 1 << 20


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def tag(number, kind):
    return varint(number << 3 | kind)


def nested(numbers, levels):
    parts, length = [], 0
    for level in range(levels):
        head = tag(numbers[level % len(numbers)], 2) + varint(length)
        parts.append(head)
        length += len(head)
    return b"".join(reversed(parts))


bombs = {{
    "groups": tag(1000, 3) * (size // 4) + tag(1000, 4) * (size // 4),
    "open groups": b"\\x0b" * size,
    "packed integers": tag(21, 2) + varint(size - 8) + b"\\x01" * (size - 8),
    "empty messages": (tag(23, 2) + b"\\0") * (size // 3),
    "empty entries": (tag(25, 2) + b"\\0") * (size // 3),
    "empty texts": (tag(22, 2) + b"\\0") * (size // 3),
    "deep value": (lambda inner: tag(40, 2) + varint(len(inner)) + inner)(nested([6, 1], size // 10)),
    "deep messages": nested([17], size // 10),
    "a length of 2^63": tag(14, 2) + varint(1 << 63) + b"a",
}}
told = {{}}
for name, bomb in bombs.items():
    decoded = decoder.decode(block([good, bomb, good] + [bomb] * 3))
    places = sorted([*decoded.taken.tolist(), *(found.index for found in decoded.rejected)])
    told[name] = [places == list(range(6)), sorted({{str(found.reason) for found in decoded.rejected}})]
decoded = wide.decode(block([good, b"\\x0a\\0" * (size // 2), good]))
told["wide items"] = [decoded.taken.tolist() == [0, 2], [str(found.reason) for found in decoded.rejected]]
print(json.dumps(told))
"""


def test_bombs_are_rows_or_dead_letters_within_a_cap_of_memory():
    """In a process of its own, which may take half a gigabyte more than it had before the first bomb."""
    tests = Path(__file__).parents[3] / "support"
    script = BOMB_RUN.format(
        paths=[str(tests), *(path for path in sys.path if path.endswith("src"))],
        allowed=512 << 20,
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert all(whole for whole, _ in told.values()), told
    assert told["groups"][1] == ["malformed"]
    assert told["open groups"][1] == ["malformed"]
    assert told["wide items"][1] == ["too_big"]
    assert told["deep value"][1] == ["malformed"]


def test_a_large_message_of_wide_items_that_is_no_bomb_passes():
    wide = message_class("wide.proto", "bomb.Wide")
    message = wide(items=[{f"f{field}": 2**62 for field in range(60)} for _ in range(1200)])
    fields = {"items": f"Array(Tuple({', '.join(f'f{field} Int64' for field in range(60))}))"}
    decoder = make_decoder(fields, [schema("1", "wide.proto", "bomb.Wide")])
    decoded = decoder.decode(block([message.SerializeToString()]))
    assert not decoded.rejected
    assert len(column(decoded, "items")[0]) == 1200
