"""One Avro body walked value by value, for what few bodies have: very long or very many lists.

Reading side by side pays by the length of the longest list; the last few cursors of a list go on here instead,
at a cost of about a microsecond a value. Only the places of values are found; the values are read as all others.
"""

from __future__ import annotations

from oncehouse.pipeline.convert.rejection import Reason, RejectionCause
from oncehouse.pipeline.formats.avro import schema as s

_WIDTHS = {"null": 0, "boolean": 1, "float": 4, "double": 8}
# Values that take no bytes: more of them in one list could fill the memory from a message of a few bytes.
MOST_EMPTY_ITEMS = 64
_LARGEST_SIZE = 1 << 40  # beyond every message, within the range of a cursor


class BrokenBodyError(Exception):
    def __init__(self, problem: RejectionCause) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def _broken(what: str, reason: Reason = Reason.MALFORMED) -> BrokenBodyError:
    return BrokenBodyError(RejectionCause(reason=reason, detail=what))


def constant_size(node: s.Node) -> int | None:
    """Bytes that every value takes, where that is known beforehand."""
    match node:
        case s.Primitive(name=name):
            return _WIDTHS.get(name)
        case s.Fixed(size=size):
            return size
        case s.Record() as record:
            return _record_size(record)
        case _:
            return None


def _record_size(record: s.Record) -> int | None:
    """Looked at once a record: records of records of records would else take forever, holding nothing."""
    if record.size is s.NOT_MEASURED:
        record.size = None  # what it is for a record that holds itself
        sizes = [constant_size(field.node) for field in record.fields]
        known = [size for size in sizes if size is not None]
        record.size = min(sum(known), _LARGEST_SIZE) if len(known) == len(sizes) else None
    measured: int | None = record.size
    return measured


class BodyWalker:
    def __init__(self, data: bytes, *, max_depth: int) -> None:
        self._data = data
        self._max_depth = max_depth

    def find_items(self, item: s.Node, at: int, depth: int) -> tuple[list[int], int]:
        """Where each value of a list begins, and where the list ends; `at` is where a block's count stands."""
        starts: list[int] = []
        while True:
            count, at = self._number(at)
            if count == 0:
                return starts, at
            if count < 0:
                count = -count
                _, at = self._number(at)  # the block's size, for those who want to jump over it
            at = self.find_block(item, at, count, depth, starts)

    def find_block(self, item: s.Node, at: int, count: int, depth: int, starts: list[int]) -> int:
        size = constant_size(item)
        most = MOST_EMPTY_ITEMS if size == 0 else (len(self._data) - at) // (size or 1)
        if count > most:
            raise _broken("a list of more values than the message can hold")
        if size is not None:
            starts += range(at, at + count * size, size) if size else [at] * count
            return at + count * size
        for _ in range(count):
            starts.append(at)
            at = self.skip(item, at, depth)
        return at

    def skip(self, node: s.Node, at: int, depth: int) -> int:  # noqa: PLR0911 - one case a kind
        match node:
            case s.Primitive(name="int" | "long"):
                return self._number(at)[1]
            case s.Primitive(name="string" | "bytes"):
                length, at = self._number(at)
                return self._advance(at, length)
            case s.Primitive(name=name):
                return self._advance(at, _WIDTHS[name])
            case s.Fixed(size=size):
                return self._advance(at, size)
            case s.AvroEnum(symbols=symbols):
                return self._choose(at, len(symbols))[1]
            case s.Union(branches=branches):
                branch, at = self._choose(at, len(branches))
                return self.skip(branches[branch], at, depth)
            case _:
                return self._skip_nested(node, at, depth + 1)

    def _skip_nested(self, node: s.Node, at: int, depth: int) -> int:
        if depth > self._max_depth:
            raise _broken(f"nested deeper than {self._max_depth}", Reason.TOO_DEEP)
        match node:
            case s.Record(fields=fields):
                for field in fields:
                    at = self.skip(field.node, at, depth)
                return at
            case s.AvroArray(item=item):
                return self.find_items(item, at, depth)[1]
            case s.AvroMap() as map_node:
                return self.find_items(map_node.pair, at, depth)[1]
        raise AssertionError(node)

    def _number(self, at: int) -> tuple[int, int]:
        data = self._data
        word = shift = 0
        while True:
            if at >= len(data):
                raise _broken("the message ends too early")
            octet = data[at]
            at += 1
            word |= (octet & 0x7F) << shift
            if octet < 0x80:
                break
            shift += 7
            if shift > 63:
                raise _broken("a number of more than 64 bits")
        if word >> 64:
            raise _broken("a number of more than 64 bits")
        return (word >> 1) ^ -(word & 1), at

    def _choose(self, at: int, choices: int) -> tuple[int, int]:
        number, at = self._number(at)
        if not 0 <= number < choices:
            raise _broken(f"choice {number} of {choices}")
        return number, at

    def _advance(self, at: int, size: int) -> int:
        if not 0 <= size <= len(self._data) - at:
            raise _broken("a length that the message does not have")
        return at + size
