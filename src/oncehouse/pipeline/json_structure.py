"""Where JSON's brackets stand, for many messages at once, without parsing them.

Quotes and backslashes decide what is inside a string; both are followed per message, so that a broken message
never changes what is seen of its neighbours. Used for the depth limit and for finding maps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from oncehouse.pipeline.json_bytes import Bytes, Offsets

_OPENING = np.zeros(256, dtype=np.bool_)
_OPENING[list(b"{[")] = True
_STEP = np.zeros(256, dtype=np.int8)
_STEP[list(b"{[")] = 1
_STEP[list(b"}]")] = -1


class Tokens(NamedTuple):
    """Structural bytes outside strings, in order."""

    places: Offsets
    message: Offsets
    depth: Offsets
    """Depth after the byte, counted from its own message."""


def count_opening(data: Bytes, offsets: Offsets, *, enough: int) -> Offsets:
    """Opening brackets of each message, strings included; zeros when none can have more than `enough`.

    Messages that begin with a brace, as events do, cost only one pass over the bytes.
    """
    inside = data[offsets[0] : offsets[-1]]
    messages = len(offsets) - 1
    total = int(np.count_nonzero(inside == ord("{"))) + int(np.count_nonzero(inside == ord("[")))
    starts = offsets[:-1][np.diff(offsets) > 0]
    own = int(np.count_nonzero(_OPENING[data[starts]]))
    if total - own + 1 <= enough:
        return np.zeros(messages, dtype=np.int64)
    places = np.flatnonzero(_OPENING[inside]) + offsets[0]
    return np.diff(np.searchsorted(places, offsets))


def deepest(data: Bytes, offsets: Offsets) -> Offsets:
    """The greatest depth of each message."""
    tokens = find_tokens(data, offsets, b"{}[]")
    found = np.zeros(len(offsets) - 1, dtype=np.int64)
    np.maximum.at(found, tokens.message, tokens.depth)
    return found


def find_tokens(data: Bytes, offsets: Offsets, wanted: bytes) -> Tokens:
    """The bytes of `wanted` that stand outside strings."""
    base = int(offsets[0])
    inside = data[base : offsets[-1]]
    bounds = offsets - base
    quotes = find_quotes(inside)
    is_wanted = np.zeros(256, dtype=np.bool_)
    is_wanted[list(wanted)] = True
    places = np.flatnonzero(is_wanted[inside])
    message = np.searchsorted(bounds, places, side="right") - 1
    quotes_before = np.searchsorted(quotes, bounds[:-1])
    outside = (np.searchsorted(quotes, places) - quotes_before[message]) % 2 == 0
    places, message = places[outside], message[outside]
    running = np.concatenate([[0], np.cumsum(_STEP[inside[places]], dtype=np.int64)])
    first = np.searchsorted(places, bounds[:-1])
    return Tokens(places + base, message, running[1:] - running[first][message])


def find_quotes(data: Bytes) -> Offsets:
    """Quotes that open or close a string: those after an even number of backslashes."""
    quotes = np.flatnonzero(data == ord('"'))
    slashes = np.flatnonzero(data == ord("\\"))
    if len(slashes) == 0 or len(quotes) == 0:
        return quotes
    starts_run = np.concatenate([[True], np.diff(slashes) != 1])
    run_start = np.maximum.accumulate(np.where(starts_run, np.arange(len(slashes)), 0))
    run_length = np.arange(len(slashes)) - run_start + 1
    before = np.searchsorted(slashes, quotes) - 1
    touching = (before >= 0) & (slashes[before] == quotes - 1)
    escaped = touching & (run_length[before] % 2 == 1)
    standing: Offsets = quotes[~escaped]
    return standing
