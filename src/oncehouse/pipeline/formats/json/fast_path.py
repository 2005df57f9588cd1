"""Messages that all look alike, read without a parser: the bytes between their values are compared, not parsed.

A program writes its events with the same keys in the same order and the same white space. The first message gives that
layout; a message follows it when all that stands between its values is the same, byte for byte. Then each value is
where it must be, and nothing else can be in the message. What has an escape, a tab in a text, a null in place of a
text, an array or an object is left to the parser, as is everything that this module is not sure of: it may refuse any
block, but never reads one in another way than the parser does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.pipeline.convert.arrow_buffers import text_buffers
from oncehouse.pipeline.convert.decimals import has_plain_bytes
from oncehouse.pipeline.formats.json.message_errors import Constant, Pairs, load

if TYPE_CHECKING:
    from oncehouse.pipeline.convert.arrow_buffers import Bytes, Offsets
    from oncehouse.pipeline.convert.masks import Mask

# So many messages at a time that what is made of them stays in the processor's cache.
_SLICE = 8192
_QUOTE, _BACKSLASH, _BLANK = ord('"'), ord("\\"), ord(" ")
_MOST_BYTES = 1 << 30
# Each key costs some calls a slice: with many keys, or in long messages, the parser is as fast.
_MOST_KEYS = 200
_LONG_BYTES = 1 << 16
_INTEGER = r"^-?(0|[1-9][0-9]*)$"
_FRACTION = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?$"
# The parser refuses exponents that no float has, of whatever number: 0e400 too. With two digits there is none.
_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?$"
_WORD = r"^(true|false)$"
_ANYTHING = r"^(-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?|true|false|null)$"


@dataclass(frozen=True)
class _Value:
    """A value that differs from message to message: between two quotes, or without quotes."""

    key: str
    quoted: bool
    quote_before: int
    """Which of the message's quotes stands before it, and how many bytes after that quote it begins."""
    skip: int
    quote_after: int | None
    """Which one stands behind it, None for the message's end, and how many bytes before that it ends."""
    back: int


@dataclass(frozen=True)
class MessageLayout:
    """What messages that look alike have in common."""

    keys: frozenset[str]
    values: tuple[_Value, ...]
    literals: tuple[bytes, ...]
    """What stands before the first value, between values, and behind the last."""
    quotes: int
    tabs: int


def find_layout(message: bytes) -> MessageLayout | None:
    """The layout of a message; None where messages like it have to be parsed."""
    if len(message) > _LONG_BYTES or b"\\" in message:
        return None
    try:
        pairs = load(message.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(pairs, Pairs) or len(pairs) > _MOST_KEYS or len({key for key, _ in pairs}) < len(pairs):
        return None
    if any(isinstance(value, list | Constant) for _, value in pairs):
        return None
    return _lay_out(message, pairs)


def _lay_out(message: bytes, pairs: Pairs) -> MessageLayout | None:
    quotes = [place for place, character in enumerate(message) if character == _QUOTE]
    values: list[_Value] = []
    literals: list[bytes] = []
    at, number = 0, 0
    for key, value in pairs:
        closing = number + 1
        if type(value) is str:  # numbers come as texts of another class
            start, end = quotes[closing + 1] + 1, quotes[closing + 2]
            found = _Value(key, True, closing + 1, 1, closing + 2, 0)
            number += 4
        else:
            behind = quotes[closing + 1] if closing + 1 < len(quotes) else len(message)
            inside = message[quotes[closing] + 1 : behind]
            text = inside.strip(b" \t:,}")
            start = quotes[closing] + 1 + inside.index(text)
            end = start + len(text)
            after = closing + 1 if closing + 1 < len(quotes) else None
            found = _Value(key, False, closing, start - quotes[closing], after, behind - end)
            number += 2
        if value is None:
            continue  # the same in all messages: a part of what stands between values
        literals.append(message[at:start])
        values.append(found)
        at = end
    if not values:
        return None
    literals.append(message[at:])
    return MessageLayout(
        keys=frozenset(key for key, _ in pairs),
        values=tuple(values),
        literals=tuple(literals),
        quotes=len(quotes),
        tabs=message.count(b"\t"),
    )


def find_followers(texts: pa.Array, layout: MessageLayout) -> Mask:
    """Messages that may be in that layout, as far as their escapes, quotes and tabs show."""
    offsets, data = text_buffers(texts)
    bounds = offsets - offsets[0]
    inside = data[offsets[0] : offsets[-1]]

    def count(marks: Mask) -> Offsets:
        counts: Offsets = np.diff(np.searchsorted(np.flatnonzero(marks), bounds))
        return counts

    follows: Mask = count(inside == _QUOTE) == layout.quotes
    follows &= count(inside == _BACKSLASH) == 0
    follows &= count(inside < _BLANK) == layout.tabs
    return follows


def read_uniform(texts: pa.Array, schema: pa.Schema, layout: MessageLayout) -> pa.Table | None:
    """The declared keys of messages in that layout as the JSON reader takes them; None where that is not certain.

    The texts are valid UTF-8 without control bytes but tabs.
    """
    offsets, data = text_buffers(texts)
    columns: dict[str, list[pa.Array]] = {value.key: [] for value in layout.values}
    for start in range(0, len(texts), _SLICE):
        found = _read_slice(offsets[start : start + _SLICE + 1], data, schema, layout)
        if found is None:
            return None
        for key, column in found.items():
            columns[key].append(column)
    arrays = [
        pa.chunked_array(columns[field.name], field.type)
        if columns.get(field.name)
        else pa.nulls(len(texts), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _read_slice(
    offsets: Offsets, data: Bytes, schema: pa.Schema, layout: MessageLayout
) -> dict[str, pa.Array] | None:
    base, messages = int(offsets[0]), len(offsets) - 1
    inside = data[base : offsets[-1]]
    if not _may_follow(inside, messages, layout):
        return None
    quotes = np.flatnonzero(inside == _QUOTE).astype(np.int32)
    if len(quotes) != messages * layout.quotes:
        return None
    bounds = _bound_values((offsets - base).astype(np.int32), quotes.reshape(messages, -1), layout)
    if bounds is None:
        return None
    pieces = pa.Array.from_buffers(
        pa.binary(), bounds.size - 1, [None, pa.py_buffer(bounds), pa.py_buffer(inside)]
    )
    width = len(layout.values) * 2 + 1
    every = np.arange(messages, dtype=np.int32)[:, None] * np.int32(width)
    between = pieces.take(pa.array((every + np.arange(0, width, 2, dtype=np.int32)).reshape(-1)))
    if between.buffers()[2].to_pybytes() != b"".join(layout.literals) * messages:
        return None
    columns = {}
    for number, value in enumerate(layout.values):
        where = schema.get_field_index(value.key)
        texts = pieces.take(pa.array(every[:, 0] + np.int32(2 * number + 1)))
        type_ = schema.field(where).type if where >= 0 else None
        column = _read_quoted(texts, type_) if value.quoted else _read_bare(texts, type_)
        if column is None:
            return None
        if type_ is not None:
            columns[value.key] = column
    return columns


def _may_follow(inside: Bytes, messages: int, layout: MessageLayout) -> bool:
    if len(inside) > _MOST_BYTES or (inside == _BACKSLASH).any():
        return False
    # Between tokens a tab is white space, which a literal has; in a text it is a fault.
    return bool(inside.min(initial=_BLANK) == _BLANK) or (
        int(np.count_nonzero(inside < _BLANK)) == messages * layout.tabs
    )


def _bound_values(
    offsets: np.ndarray[tuple[int], np.dtype[np.int32]],
    quotes: np.ndarray[tuple[int, int], np.dtype[np.int32]],
    layout: MessageLayout,
) -> np.ndarray[tuple[int], np.dtype[np.int32]] | None:
    """Where literals and values begin, in turns, message after message; None where a literal has another length."""
    messages = len(offsets) - 1
    bounds = np.empty((messages, 2 * len(layout.values) + 1), dtype=np.int32)
    bounds[:, 0] = offsets[:-1]
    for number, value in enumerate(layout.values):
        behind = offsets[1:] if value.quote_after is None else quotes[:, value.quote_after]
        np.add(quotes[:, value.quote_before], value.skip, out=bounds[:, 2 * number + 1])
        np.subtract(behind, value.back, out=bounds[:, 2 * number + 2])
    lengths = [len(literal) for literal in layout.literals]
    for number, length in enumerate(lengths[:-1]):
        if (bounds[:, 2 * number + 1] - bounds[:, 2 * number] != length).any():
            return None
    if (offsets[1:] - bounds[:, -1] != lengths[-1]).any():
        return None
    if any((bounds[:, 2 * number] < bounds[:, 2 * number - 1]).any() for number in range(1, len(lengths))):
        return None
    return np.append(bounds.reshape(-1), offsets[-1])


def _read_quoted(texts: pa.Array, type_: pa.DataType | None) -> pa.Array | None:
    if type_ is None:
        return texts
    if pa.types.is_string(type_):
        return texts.view(type_)
    return _read_decimals(texts, type_) if pa.types.is_decimal(type_) else None


def _read_bare(texts: pa.Array, type_: pa.DataType | None) -> pa.Array | None:
    """Numbers, or words, of which some may be null."""
    if type_ is None:
        return texts if _match(texts, _ANYTHING) else None
    column = _read_values(texts, type_)
    if column is not None:
        return column
    present = pc.not_equal(texts, b"null")
    if pc.all(present).as_py():
        return None
    if not pc.any(present).as_py():
        return pa.nulls(len(texts), type_)
    return _read_values(pc.if_else(present, texts, None), type_)


def _read_values(texts: pa.Array, type_: pa.DataType) -> pa.Array | None:
    """By JSON's grammar of numbers, which is narrower than that of Arrow's casts."""
    if pa.types.is_boolean(type_):
        return pc.equal(texts, b"true") if _match(texts, _WORD) else None
    if pa.types.is_integer(type_):
        return _cast(texts, type_) if _are_plain_counts(texts) or _match(texts, _INTEGER) else None
    if pa.types.is_floating(type_):
        return _cast(texts, type_) if _match(texts, _NUMBER) else None
    if pa.types.is_decimal(type_):
        return _read_decimals(texts, type_) if _match(texts, _FRACTION) else None
    return None


def _read_decimals(texts: pa.Array, type_: pa.DataType) -> pa.Array | None:
    # The reader counts the digits as they are written, a cast those that are left: with so few both agree.
    if pc.max(pc.binary_length(texts)).as_py() > type_.precision:
        return None
    return _cast(texts, type_) if has_plain_bytes(texts.drop_null()) else None


def _are_plain_counts(texts: pa.Array) -> bool:
    """Whether each begins with a digit that a longer number may begin with; the reader checks the rest."""
    offsets, data = text_buffers(texts)
    if not np.diff(offsets).all():
        return False
    first = data[offsets[:-1]]
    return bool(((first >= ord("1")) & (first <= ord("9"))).all())


def _match(texts: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts.view(pa.string()), pattern)).as_py())


def _cast(texts: pa.Array, type_: pa.DataType) -> pa.Array | None:
    try:
        return texts.view(pa.string()).cast(type_)
    except pa.ArrowInvalid:
        return None
