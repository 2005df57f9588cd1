"""Where the values of Avro's arrays and maps stand, for all bodies at once, and how values are passed over.

A list is a run of blocks, each with its count, and a value's size is known only by reading it. All lists take
the step to their next value together; the last few, when others have ended, go on one by one (`slow_walk.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from oncehouse.pipeline.convert.arrow_buffers import Offsets
from oncehouse.pipeline.convert.rejection import Reason, RejectionCause
from oncehouse.pipeline.formats.avro import schema as s
from oncehouse.pipeline.formats.avro.cursor import Cursor
from oncehouse.pipeline.formats.avro.slow_walk import (
    MOST_EMPTY_ITEMS,
    BodyWalker,
    BrokenBodyError,
    constant_size,
)

_FEW = 16  # below this many lists a step of all of them costs more than as many steps of one
# Two or three calls of Python a level; its stack ends at a thousand.
GREATEST_DEPTH = 150


class Items(NamedTuple):
    counts: Offsets
    """Values of each list."""
    cursor: Cursor
    """At the begin of each value, list by list."""


def skip(  # noqa: C901 - one case a kind
    cursor: Cursor, node: s.Node, path: str, *, depth: int, max_depth: int
) -> None:
    """Pass over one value in each slot."""
    if not cursor.sound.any():
        return  # broken bodies could lead anywhere, and into everything that the schema allows
    size = constant_size(node)
    if size is not None:
        cursor.skip(size, path)
        return
    match node:
        case s.Primitive(name="int" | "long"):
            cursor.read_numbers(path)
        case s.Primitive():
            cursor.skip(cursor.read_lengths(path), path)
        case s.AvroEnum(symbols=symbols):
            read_choices(cursor, len(symbols), path)
        case s.Union(branches=branches):
            chosen = read_choices(cursor, len(branches), path)
            chosen[~cursor.sound] = -1
            for slots, number in split_branches(chosen, len(branches)):
                part = cursor.pick(slots)
                skip(part, branches[number], path, depth=depth, max_depth=max_depth)
                cursor.put_back(slots, part)
        case s.Record(fields=fields):
            if reject_deep(cursor, path, depth + 1, max_depth):
                return
            for field in fields:
                skip(cursor, field.node, f"{path}.{field.name}", depth=depth + 1, max_depth=max_depth)
        case s.AvroArray() | s.AvroMap():
            find_items(cursor, node, path, depth=depth + 1, max_depth=max_depth)
        case _:
            raise AssertionError(node)


def reject_deep(cursor: Cursor, path: str, depth: int, max_depth: int) -> bool:
    if depth <= max_depth:
        return False
    problem = RejectionCause(reason=Reason.TOO_DEEP, detail=f"{path}: nested deeper than {max_depth}")
    cursor.reject(np.ones(len(cursor), dtype=np.bool_), lambda _: problem)
    return True


def read_choices(cursor: Cursor, choices: int, path: str) -> Offsets:
    """Numbers below `choices`: branches of a union or symbols of an enum."""
    chosen = cursor.read_numbers(path)
    wrong = (chosen < 0) | (chosen >= choices)
    cursor.reject_malformed(wrong, path, f"a choice that is none of the schema's {choices}")
    chosen[wrong] = 0
    return chosen


def split_branches(chosen: Offsets, branches: int) -> list[tuple[Offsets, int]]:
    """The slots of each branch that any slot has taken."""
    found = []
    for number in range(branches):
        slots = np.flatnonzero(chosen == number)
        if len(slots):
            found.append((slots, number))
    return found


def find_items(
    cursor: Cursor, node: s.AvroArray | s.AvroMap, path: str, *, depth: int, max_depth: int
) -> Items:
    """The values of one list in each slot; the cursor moves past the lists."""
    item = node.item if isinstance(node, s.AvroArray) else node.pair
    search = _ListSearch(cursor, item, f"{path}[]", depth, max_depth)
    if not reject_deep(cursor, path, depth, max_depth):
        search.run()
    return search.finish()


class _ListSearch:
    def __init__(self, cursor: Cursor, item: s.Node, path: str, depth: int, max_depth: int) -> None:
        self._cursor = cursor
        self._item = item
        self._path = path
        self._depth = depth
        self._max_depth = max_depth
        self._slots: list[Offsets] = []
        self._starts: list[Offsets] = []

    def run(self) -> None:
        """Block by block: slots whose list has ended drop out."""
        going = np.arange(len(self._cursor))
        while len(going) >= _FEW:
            part = self._cursor.pick(going)
            counts = self._read_counts(part)
            self._find_blocks(going, part, counts)
            self._cursor.put_back(going, part)
            going = going[counts > 0]
        self._walk(going)

    def _read_counts(self, part: Cursor) -> Offsets:
        counts = part.read_numbers(self._path)
        sized = np.flatnonzero(counts < 0)
        if len(sized):
            with_size = part.pick(sized)
            with_size.read_numbers(self._path)  # the block's size, for those who want to jump over it
            part.put_back(sized, with_size)
            with np.errstate(over="ignore"):
                counts[sized] = -counts[sized]
        size = constant_size(self._item)
        most = part.left // size if size else (part.left if size is None else MOST_EMPTY_ITEMS)
        wrong = (counts < 0) | (counts > most)
        part.reject_malformed(wrong, self._path, "a list of more values than the message can hold")
        counts[~part.sound] = 0
        return counts

    def _find_blocks(self, slots: Offsets, part: Cursor, counts: Offsets) -> None:
        size = constant_size(self._item)
        if size is not None:
            total = int(counts.sum())
            within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
            self._note(np.repeat(slots, counts), np.repeat(part.at, counts) + within * size)
            part.at = part.at + counts * size
            return
        going = np.flatnonzero(counts)
        for done in range(int(counts.max(initial=0))):
            going = going[counts[going] > done]
            if len(going) < _FEW:
                self._walk_block(slots, part, counts, done)
                return
            moving = part.pick(going)
            self._note(slots[going], moving.at.copy())
            skip(moving, self._item, self._path, depth=self._depth, max_depth=self._max_depth)
            part.put_back(going, moving)
            broken = ~part.sound
            counts[broken] = np.minimum(counts[broken], done + 1)

    # -- the last few -------------------------------------------------------------------------------------

    def _walk_block(self, slots: Offsets, part: Cursor, counts: Offsets, done: int) -> None:
        """The rest of a block in the few slots that are not through yet."""
        for slot in np.flatnonzero(counts > done).tolist():
            left = int(counts[slot]) - done
            self._step(part, slot, int(slots[slot]), left)

    def _walk(self, going: Offsets) -> None:
        """The rest of the lists, whatever blocks it has."""
        for slot in going.tolist():
            self._step(self._cursor, slot, slot, None)

    def _step(self, part: Cursor, place: int, slot: int, count: int | None) -> None:
        body = int(part.body[place])
        if not part.bodies.sound[body]:
            return
        end = int(part.bodies.ends[body])
        at = int(part.at[place])
        walk = BodyWalker(part.bodies.data[at:end].tobytes(), max_depth=self._max_depth)
        try:
            starts, after = self._walk_items(walk, count)
        except BrokenBodyError as error:
            problem = RejectionCause(
                reason=error.problem.reason, detail=f"{self._path}: {error.problem.detail}"
            )
            broken = np.zeros(len(part), dtype=np.bool_)
            broken[place] = True
            part.reject(broken, lambda _: problem)
            return
        self._note(np.full(len(starts), slot), np.array(starts, dtype=np.int64) + at)
        part.at[place] = at + after

    def _walk_items(self, walk: BodyWalker, count: int | None) -> tuple[list[int], int]:
        if count is None:
            return walk.find_items(self._item, 0, self._depth)
        starts: list[int] = []
        after = walk.find_block(self._item, 0, count, self._depth, starts)
        return starts, after

    def _note(self, slots: Offsets, starts: Offsets) -> None:
        self._slots.append(slots)
        self._starts.append(starts)

    def finish(self) -> Items:
        nothing: list[Any] = [np.zeros(0, dtype=np.int64)]
        slots = np.concatenate(self._slots or nothing)
        starts = np.concatenate(self._starts or nothing)
        order = np.argsort(slots, kind="stable")  # steps were noted in order, so each list keeps its own
        slots, starts = slots[order], starts[order]
        counts = np.bincount(slots, minlength=len(self._cursor)).astype(np.int64)
        return Items(counts, Cursor(self._cursor.bodies, self._cursor.body[slots], starts))
