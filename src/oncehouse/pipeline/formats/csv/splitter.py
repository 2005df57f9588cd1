"""Lines and columns of delimited text, for many messages at once, by where quotes, delimiters and line ends stand.

A quote opens a value only at its begin and closes it only at its end, doubled it stands for itself; so whether
a delimiter counts is decided by the number of quotes before it in its own message. What breaks this rule is found
in the same pass, and no message can reach into the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.pipeline.convert.arrow_buffers import Bytes, Offsets, cut, text_buffers
from oncehouse.pipeline.convert.masks import Mask, null_mask

_NEWLINE, _RETURN = 10, 13
_MARK = np.frombuffer(b"\xef\xbb\xbf", dtype=np.uint8)


@dataclass(frozen=True, kw_only=True)
class Dialect:
    delimiter: int
    quote: int | None
    marks: bool = False
    """Whether a byte order mark before the first line says how the message is encoded, and is no part of it."""


class Columns(NamedTuple):
    counts: Offsets
    """How many columns each line has."""
    misquoted: Mask
    texts: list[pa.Array]
    """The wanted columns as bytes; of lines with another count or wrong quotes they mean nothing."""
    quoted: list[Mask]


def split_lines(values: pa.Array, dialect: Dialect, *, skip_first: bool) -> pa.ListArray:
    """The lines of each message without blank ones; at least one each, so that no message vanishes.

    `skip_first` leaves out the first line of each message, unless it is the only one.
    """
    offsets, data = text_buffers(values)
    inside, bounds = data[offsets[0] : offsets[-1]], offsets - offsets[0]
    ends = np.flatnonzero(inside == _NEWLINE)
    if dialect.quote is not None and len(ends):
        ends = ends[~_within_quotes(inside, bounds, ends, dialect.quote)]
    starts, stops, message = _cut_lines(inside, bounds, ends)
    if dialect.marks:
        starts[np.searchsorted(message, _find_marked(inside, bounds))] += len(_MARK)
    kept = stops > starts
    if skip_first:
        kept[np.flatnonzero(np.diff(message, prepend=-1))] = False
    # A message of nothing but blank lines keeps its first one, which then is refused as empty.
    silent = np.bincount(message, weights=kept, minlength=len(values)) == 0
    firsts = np.searchsorted(message, np.flatnonzero(silent))
    kept[firsts] = True
    if skip_first:
        stops[firsts] = starts[firsts]
    counts = np.bincount(message[kept], minlength=len(values))
    lines = cut(pa.py_buffer(np.ascontiguousarray(inside)), starts[kept], (stops - starts)[kept])
    lines = _keep_tombstones(lines, message[kept], null_mask(values))
    return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32()), lines)


def _find_marked(data: Bytes, bounds: Offsets) -> Offsets:
    """The messages that begin with a byte order mark."""
    long = np.flatnonzero(np.diff(bounds) >= len(_MARK))
    first = data[bounds[long][:, None] + np.arange(len(_MARK))]
    marked: Offsets = long[(first == _MARK).all(axis=1)]
    return marked


def _cut_lines(data: Bytes, bounds: Offsets, ends: Offsets) -> tuple[Offsets, Offsets, Offsets]:
    """Begin, end and message of every line; a return before the line's end does not belong to it."""
    message_of_end = np.searchsorted(bounds, ends, side="right") - 1
    starts = np.concatenate([bounds[:-1], ends + 1])
    stops = np.concatenate([ends, bounds[1:]])
    order = np.argsort(np.concatenate([np.arange(len(bounds) - 1), message_of_end]), kind="stable")
    message = np.concatenate([np.arange(len(bounds) - 1), message_of_end])[order]
    starts = starts[order]
    stops = stops[np.argsort(np.concatenate([message_of_end, np.arange(len(bounds) - 1)]), kind="stable")]
    last = data[np.maximum(stops - 1, 0)] if len(data) else np.zeros(len(stops), dtype=np.uint8)
    return starts, stops - ((stops > starts) & (last == _RETURN)), message


def _keep_tombstones(lines: pa.Array, message: Offsets, nulls: Mask) -> pa.Array:
    if not nulls.any():
        return lines
    return pc.if_else(pa.array(~nulls[message]), lines, pa.scalar(None, lines.type))


def _within_quotes(data: Bytes, bounds: Offsets, places: Offsets, quote: int) -> Mask:
    """Places after an odd number of quotes of their own message."""
    quotes = np.flatnonzero(data == quote)
    if len(quotes) == 0:
        return np.zeros(len(places), dtype=np.bool_)
    before = np.searchsorted(quotes, places)
    owner = np.searchsorted(bounds, places, side="right") - 1
    within: Mask = (before - np.searchsorted(quotes, bounds)[owner]) % 2 == 1
    return within


def split_columns(lines: pa.Array, dialect: Dialect, *, columns: int, wanted: list[int]) -> Columns:
    """The columns of lines, of which each should have so many."""
    offsets, data = text_buffers(lines)
    inside = np.ascontiguousarray(data[offsets[0] : offsets[-1]])
    bounds = offsets - offsets[0]
    commas = np.flatnonzero(inside == dialect.delimiter)
    misquoted = np.zeros(len(lines), dtype=np.bool_)
    if dialect.quote is not None:
        misquoted = _find_misquoted(inside, bounds, dialect)
        if len(commas):
            commas = commas[~_within_quotes(inside, bounds, commas, dialect.quote)]
    firsts = np.searchsorted(commas, bounds[:-1])
    counts = np.searchsorted(commas, bounds[1:]) - firsts + 1
    good = (counts == columns) & ~misquoted
    # Borders of a column: the delimiter before it and the one after it, or the line's own ends.
    padded = np.concatenate([commas, [0]])
    texts, quoted = [], []
    for column in wanted:
        starts = bounds[:-1] if column == 0 else padded[np.minimum(firsts + column - 1, len(commas))] + 1
        stops = bounds[1:] if column == columns - 1 else padded[np.minimum(firsts + column, len(commas))]
        text, marked = _unquote(
            inside, np.where(good, starts, bounds[:-1]), np.where(good, stops, bounds[:-1]), dialect
        )
        texts.append(text)
        quoted.append(marked)
    return Columns(counts, misquoted, texts, quoted)


def _find_misquoted(data: Bytes, bounds: Offsets, dialect: Dialect) -> Mask:
    """Lines with a quote that neither begins a value, nor ends one, nor is doubled."""
    quotes = np.flatnonzero(data == dialect.quote)
    bad = np.zeros(len(bounds) - 1, dtype=np.bool_)
    if len(quotes) == 0:
        return bad
    line = np.searchsorted(bounds, quotes, side="right") - 1
    number = np.arange(len(quotes)) - np.searchsorted(quotes, bounds)[line]
    opens = number % 2 == 0
    before = np.where(quotes == bounds[line], dialect.delimiter, data[quotes - 1])
    after = np.where(
        quotes + 1 == bounds[line + 1], dialect.delimiter, data[np.minimum(quotes + 1, len(data) - 1)]
    )
    # Inside a value a doubled quote closes and opens again, so that its halves touch.
    wrong = np.where(opens, (before != dialect.delimiter) & (before != dialect.quote), False)
    wrong |= np.where(~opens, (after != dialect.delimiter) & (after != dialect.quote), False)
    bad[line[wrong]] = True
    bad |= np.bincount(line, minlength=len(bounds) - 1) % 2 == 1
    return bad


def _unquote(data: Bytes, starts: Offsets, stops: Offsets, dialect: Dialect) -> tuple[pa.Array, Mask]:
    buffer = pa.py_buffer(data)
    if dialect.quote is None or len(data) == 0:
        return cut(buffer, starts, stops - starts), np.zeros(len(starts), dtype=np.bool_)
    quoted: Mask = (stops > starts) & (data[np.minimum(starts, len(data) - 1)] == dialect.quote)
    texts = cut(buffer, starts + quoted, stops - starts - 2 * quoted)
    if quoted.any():
        mark = bytes([dialect.quote])
        texts = pc.if_else(pa.array(quoted), pc.replace_substring(texts, mark * 2, mark), texts)
    return texts, quoted
