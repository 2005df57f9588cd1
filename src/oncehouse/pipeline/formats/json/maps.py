"""Maps: JSON objects with undeclared keys, which Arrow's JSON reader cannot take.

In the bytes of a whole block, each map is rewritten as a list of key and value objects, which the reader can
take: `{"a":1}` becomes `[{"key":"a","value":1}]`. Only brackets, colons and commas of maps change, and only
where keys and values alternate as they must; so what was not JSON before does not become JSON here.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.column_types import types as c
from oncehouse.pipeline.convert.arrow_buffers import Bytes, Offsets, text_buffers
from oncehouse.pipeline.formats.json.brackets import find_tokens, is_closing, is_opening
from oncehouse.pipeline.formats.json.columns import KEY, VALUE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncehouse.pipeline.convert.masks import Mask

_OPEN_CURLY, _CLOSE_CURLY, _COLON = ord("{"), ord("}"), ord(":")
_REPLACEMENTS = [  # by number of the edit; 0 leaves the byte alone
    b"",
    f'[{{"{KEY}":'.encode(),
    f',"{VALUE}":'.encode(),
    f'}},{{"{KEY}":'.encode(),
    b"}]",
    b"[",
    b"]",
]
_FIRST = np.array([(text or b" ")[0] for text in _REPLACEMENTS], dtype=np.uint8)
_REST = pa.array([text[1:] for text in _REPLACEMENTS], pa.binary())
_GROWTH = np.array([len(text[1:]) for text in _REPLACEMENTS], dtype=np.int64)
_MESSAGES_AT_ONCE = 4096  # some hundred kilobytes, so that the arrays stay in the processor's cache
_OPEN, _PAIR, _NEXT, _CLOSE, _OPEN_EMPTY, _CLOSE_EMPTY = range(1, 7)


class _NoMapError(Exception):
    """Something that cannot be a map stands where one is declared."""


def holds_map(type_: c.ColumnType) -> bool:
    match c.bare(type_):
        case c.Map():
            return True
        case c.Array(item=item):
            return holds_map(item)
        case c.Tuple(fields=fields):
            return any(holds_map(inner) for _, inner in fields)
        case _:
            return False


def rewrite_maps(texts: pa.Array, fields: Mapping[str, c.ColumnType]) -> pa.Array | None:
    """The messages with their maps as lists, or None when one of them cannot be written so."""
    try:
        pieces = [
            _rewrite(texts.slice(start, _MESSAGES_AT_ONCE), fields)
            for start in range(0, len(texts), _MESSAGES_AT_ONCE)
        ]
    except _NoMapError:
        return None
    return pa.concat_arrays(pieces)


def _rewrite(texts: pa.Array, fields: Mapping[str, c.ColumnType]) -> pa.Array:
    offsets, data = text_buffers(texts)
    inside, bounds = data[offsets[0] : offsets[-1]], offsets - offsets[0]
    block = _Block(inside, bounds)
    block.visit_root(fields)
    return _apply_edits(inside, bounds, block.places, block.edits)


class _Block:
    """The structure of all messages of a block, and what is to be changed in it."""

    def __init__(self, data: Bytes, bounds: Offsets) -> None:
        self.data = data
        self.places, message, self.depth, self.quotes = find_tokens(data, bounds, separators=b",:")
        self.characters = data[self.places]
        self.opens = is_opening(self.characters)
        self.closes = is_closing(self.characters)
        self.separates = ~self.opens & ~self.closes
        self.slashes = np.flatnonzero(data == ord("\\"))
        self.edits = np.zeros(len(self.places), dtype=np.int8)
        last = np.searchsorted(message, np.arange(len(bounds) - 1), side="right") - 1
        if len(self.places) == 0 or self.depth.min() < 0 or self.depth[last].any():
            raise _NoMapError
        self.closing = self._match_brackets()

    def _match_brackets(self) -> Offsets:
        """For each opening token, its closing one: on one level they alternate, since depth is never negative."""
        brackets = np.flatnonzero(self.opens | self.closes)
        level = self.depth[brackets] + self.closes[brackets]
        ordered = brackets[np.argsort(level, kind="stable")]
        matching = np.zeros(len(self.places), dtype=np.int64)
        matching[ordered[0::2]] = ordered[1::2]
        return matching

    def visit_root(self, fields: Mapping[str, c.ColumnType]) -> None:
        roots = np.flatnonzero(self.opens & (self.depth == 1))
        self._visit_tuple(tuple(fields.items()), roots)

    def _visit(self, type_: c.ColumnType, containers: Offsets) -> None:
        if len(containers) == 0:
            return
        match c.bare(type_):
            case c.Map(value=value):
                self._edit_maps(containers)
                if holds_map(value):
                    self._visit(value, self._children(containers))
            case c.Array(item=item):
                self._visit(item, self._children(containers))
            case c.Tuple(fields=fields):
                self._visit_tuple(fields, containers)

    def _visit_tuple(self, fields: tuple[tuple[str, c.ColumnType], ...], containers: Offsets) -> None:
        depth = self.depth[containers[0]]
        colons = np.flatnonzero((self.depth == depth) & (self.characters == _COLON))
        colons = colons[self._owners(colons, containers) >= 0]
        for name, inner in fields:
            if holds_map(inner):
                following = colons[self._has_key(colons, name)] + 1
                self._visit(inner, following[self.opens[following]])

    def _children(self, containers: Offsets) -> Offsets:
        depth = self.depth[containers[0]]
        candidates = np.flatnonzero(self.opens & (self.depth == depth + 1))
        children: Offsets = candidates[self._owners(candidates, containers) >= 0]
        return children

    def _owners(self, tokens: Offsets, containers: Offsets) -> Offsets:
        """Which of the containers, all of one depth, each token stands in; -1 for none."""
        owner = np.searchsorted(containers, tokens) - 1
        inside = (owner >= 0) & (tokens < self.closing[containers[owner]])
        return np.where(inside, owner, -1)

    def _edit_maps(self, containers: Offsets) -> None:
        closing = self.closing[containers]
        if (self.characters[containers] != _OPEN_CURLY).any() or (
            self.characters[closing] != _CLOSE_CURLY
        ).any():
            raise _NoMapError
        separators = np.flatnonzero((self.depth == self.depth[containers[0]]) & self.separates)
        owner = self._owners(separators, containers)
        separators, owner = separators[owner >= 0], owner[owner >= 0]
        count = np.bincount(owner, minlength=len(containers))
        rank = np.arange(len(owner)) - (np.cumsum(count) - count)[owner]
        is_colon = self.characters[separators] == _COLON
        if (is_colon != (rank % 2 == 0)).any() or ((count % 2 == 0) & (count > 0)).any():
            raise _NoMapError
        self.edits[separators] = np.where(is_colon, _PAIR, _NEXT)
        self.edits[containers] = np.where(count > 0, _OPEN, _OPEN_EMPTY)
        self.edits[closing] = np.where(count > 0, _CLOSE, _CLOSE_EMPTY)

    # -- keys -----------------------------------------------------------------------------------------------

    def _has_key(self, colons: Offsets, name: str) -> Mask:
        """Marks the colons whose key is `name`."""
        after = np.searchsorted(self.quotes, self.places[colons])
        found = after >= 2
        start = self.quotes[np.where(found, after - 2, 0)] + 1 if len(self.quotes) else after
        end = self.quotes[np.where(found, after - 1, 0)] if len(self.quotes) else after
        escaped = np.searchsorted(self.slashes, end) > np.searchsorted(self.slashes, start)
        wanted = np.frombuffer(name.encode(), dtype=np.uint8)
        same: Mask = found & (end - start == len(wanted)) & ~escaped
        rows = np.flatnonzero(same)
        same[rows] = (self.data[start[rows][:, None] + np.arange(len(wanted))] == wanted).all(axis=1)
        for row in np.flatnonzero(found & escaped).tolist():
            same[row] = _unescape(self.data[start[row] : end[row]].tobytes()) == name
        return same


def _unescape(key: bytes) -> Any:
    try:
        return json.loads(b'"' + key + b'"')
    except ValueError:
        return None


def _apply_edits(
    data: Bytes, bounds: Offsets, places: Offsets, edits: np.ndarray[Any, np.dtype[np.int8]]
) -> pa.Array:
    """Each edited byte becomes the first of its replacement, and the rest is put in behind it."""
    places, edits = places[edits > 0], edits[edits > 0]
    changed = data.copy()
    changed[places] = _FIRST[edits]
    ends = np.concatenate([[0], places + 1, [len(data)]]).astype(np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(changed)]
    pieces = pa.Array.from_buffers(pa.binary(), len(ends) - 1, buffers)
    behind = _REST.take(pa.array(np.append(edits, 0)))
    _, written = text_buffers(pc.binary_join_element_wise(pieces, behind, b""))
    grown = np.concatenate([[0], np.cumsum(_GROWTH[edits])])
    offsets = bounds + grown[np.searchsorted(places, bounds)]
    return pa.Array.from_buffers(
        pa.large_binary(), len(bounds) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(written)]
    )
