"""Where JSON's brackets stand, for many messages at once, without parsing them.

Quotes and backslashes decide what is inside a string; both are followed per message, so that a broken message
never changes what is seen of its neighbours. Used for the depth limit and for finding maps.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from oncehouse.pipeline.convert.arrow_buffers import Bytes, Offsets
from oncehouse.pipeline.convert.masks import Mask

# Braces and square brackets differ in one bit, so that one comparison finds both.
_BRACKET_BITS, _OPENING, _CLOSING = 0xDF, 0x5B, 0x5D


class Tokens(NamedTuple):
    """Structural bytes outside strings, in order."""

    places: Offsets
    message: Offsets
    depth: Offsets
    """Depth after the byte, counted from its own message."""
    quotes: Offsets
    """Quotes that open or close a string."""


def count_opening(data: Bytes, offsets: Offsets, *, enough: int) -> Offsets:
    """Opening brackets of each message, strings included; zeros when none can have more than `enough`.

    Messages that begin with a brace, as events do, cost only one pass over the bytes.
    """
    inside = data[offsets[0] : offsets[-1]]
    messages = len(offsets) - 1
    total = int(np.count_nonzero(inside == ord("{"))) + int(np.count_nonzero(inside == ord("[")))
    starts = offsets[:-1][np.diff(offsets) > 0]
    own = int(np.count_nonzero(is_opening(data[starts])))
    if total - own + 1 <= enough:
        return np.zeros(messages, dtype=np.int64)
    places = np.flatnonzero(is_opening(inside)) + offsets[0]
    return np.diff(np.searchsorted(places, offsets))


def is_opening(characters: Bytes) -> Mask:
    opening: Mask = (characters & _BRACKET_BITS) == _OPENING
    return opening


def is_closing(characters: Bytes) -> Mask:
    closing: Mask = (characters & _BRACKET_BITS) == _CLOSING
    return closing


def measure_depth(data: Bytes, offsets: Offsets) -> tuple[Offsets, Mask]:
    """The greatest depth of each message, and whether more brackets follow the end of its first value."""
    tokens = find_tokens(data, offsets, separators=b"")
    deepest = np.zeros(len(offsets) - 1, dtype=np.int64)
    np.maximum.at(deepest, tokens.message, tokens.depth)
    goes_on = np.zeros(len(offsets) - 1, dtype=np.bool_)
    ended = (tokens.depth[:-1] <= 0) & (tokens.message[:-1] == tokens.message[1:])
    goes_on[tokens.message[:-1][ended]] = True
    return deepest, goes_on


def find_tokens(data: Bytes, offsets: Offsets, *, separators: bytes) -> Tokens:
    """The brackets and the given separators that stand outside strings."""
    base = int(offsets[0])
    inside = data[base : offsets[-1]]
    marks, counts = _find_marks(inside, offsets - base, separators)
    characters = inside[marks]
    is_quote = characters == ord('"')
    outside = ~is_quote
    is_quote[is_quote] = ~_escaped(inside, marks[is_quote])
    outside &= (_count_within(is_quote, counts) & 1) == 0
    counts = _sum_within(outside, counts)
    characters = characters[outside]
    steps = is_opening(characters).view(np.int8) - is_closing(characters).view(np.int8)
    return Tokens(
        places=marks[outside] + base,
        message=np.repeat(np.arange(len(counts)), counts),
        depth=_count_within(steps, counts),
        quotes=marks[is_quote] + base,
    )


def _find_marks(data: Bytes, bounds: Offsets, separators: bytes) -> tuple[Offsets, Offsets]:
    """All quotes, brackets and separators, and how many each message has."""
    wanted = (data == ord('"')) | is_opening(data) | is_closing(data)
    for separator in separators:
        wanted |= data == separator
    marks = np.flatnonzero(wanted)
    return marks, np.diff(np.searchsorted(marks, bounds))


def _count_within(steps: np.ndarray[Any, Any], counts: Offsets) -> Offsets:
    """Running sums of the steps, restarted at each message."""
    running = np.concatenate([[0], np.cumsum(steps, dtype=np.int64)])
    before = running[np.cumsum(counts) - counts]
    within: Offsets = running[1:] - np.repeat(before, counts) if before.any() else running[1:]
    return within


def _sum_within(steps: Mask, counts: Offsets) -> Offsets:
    running = np.concatenate([[0], np.cumsum(steps, dtype=np.int64)])
    sums: Offsets = np.diff(running[np.concatenate([[0], np.cumsum(counts)])])
    return sums


def _escaped(data: Bytes, quotes: Offsets) -> Mask:
    """Quotes after an odd number of backslashes."""
    slashes = np.flatnonzero(data == ord("\\"))
    if len(slashes) == 0 or len(quotes) == 0:
        return np.zeros(len(quotes), dtype=np.bool_)
    starts_run = np.concatenate([[True], np.diff(slashes) != 1])
    run_start = np.maximum.accumulate(np.where(starts_run, np.arange(len(slashes)), 0))
    run_length = np.arange(len(slashes)) - run_start + 1
    before = np.searchsorted(slashes, quotes) - 1
    touching = (before >= 0) & (slashes[before] == quotes - 1)
    escaped: Mask = touching & (run_length[before] % 2 == 1)
    return escaped
