"""Reads messages of one schema version into the declared fields, a block at a time, by ptars.

A message that ptars refuses costs only itself: the block is read again in smaller pieces until it stands alone,
and its result is always the one that it gets alone. Messages that are valid but unusual (two members of a
oneof, a key twice in a map) are first rewritten by the protobuf library, which knows that the last one counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import Descriptor, OneofDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from oncehouse.column_types import types as c
from oncehouse.common.extras import needs_extra
from oncehouse.pipeline.convert.convert import convert, repeated_keys, rows_of
from oncehouse.pipeline.convert.masks import Mask, either
from oncehouse.pipeline.convert.rejection import Reason, Rejection, RejectionCause
from oncehouse.pipeline.convert.value_errors import find_problem
from oncehouse.pipeline.formats.base import Places
from oncehouse.pipeline.formats.protobuf.projection import Wanted, describe_wanted, growths, project
from oncehouse.pipeline.formats.protobuf.values import (
    UnreadableMessageError,
    adapt,
    child,
    join_pieces,
    part_of,
    several_members,
)
from oncehouse.pipeline.formats.schema_fields import make_nullable
from oncehouse.protobuf.fields import FoundField, find, is_map

_SMALL = 4096
_RUN_BYTES = 16 << 20
_RUN_GROWN_BYTES = 128 << 20
# A message may take this many times its greatest size as columns; beyond is a bomb.
_MOST_GROWTH = 64
# ptars follows groups that it skips by recursion; any stack can hold this many, and no known writer nests so deep.
_MOST_GROUPS = 10_000
_GROUP = 3


class RefusedError(Exception):
    def __init__(self, problem: RejectionCause) -> None:
        super().__init__(problem.detail)
        self.problem = problem


class ProtobufReader:
    """Made once a task for each version that is met."""

    def __init__(
        self,
        descriptor: Descriptor,
        others: Sequence[Descriptor],
        fields: Mapping[str, c.ColumnType],
        *,
        max_message_bytes: int,
        numbers: Mapping[str, Sequence[int]] = MappingProxyType({}),
        must_be_set: Sequence[Sequence[str]] = (),
    ) -> None:
        """`others` are the other versions, which know fields that this one may lack; `numbers` are those of the fields
        that are found by them; absent fields of `must_be_set` are no defaults."""
        self._fields = fields
        self._schema = pa.schema([(name, c.arrow_type(type_)) for name, type_ in fields.items()])
        self._message_class = GetMessageClass(descriptor)
        self._read_types = dict(fields)
        for name, *inner in must_be_set:
            self._read_types[name] = _without_default(self._read_types[name], inner)
        self._wanted = project(descriptor, fields, numbers)
        self._found = {name: find(descriptor, name, numbers.get(name, ())) for name in fields}
        self._elsewhere = {name: _find_elsewhere(others, name, numbers.get(name, ())) for name in fields}
        file, message = describe_wanted(self._wanted)
        with needs_extra("protobuf", "a record in protobuf"):
            import ptars
            from ptars._lib import ProtoRegistry
        self._handler = ProtoRegistry([file]).create_for_message(
            message.removeprefix("."), ptars.PtarsConfig()
        )
        self._growths = growths(self._wanted)
        self._most_bytes = _MOST_GROWTH * max_message_bytes
        self._factor = max([8, *(growth.item_bytes // len(growth.tag) for growth in self._growths)])

    def read(
        self, index: Places, values: pa.Array, rejected: list[Rejection]
    ) -> Iterator[tuple[Places, pa.RecordBatch]]:
        """Rows with their places; what cannot be read is added to the rejected."""
        index, values = self._refuse_bombs(index, values, rejected)
        for start, stop in self._split(values):
            piece = values.slice(start, stop - start)
            for part_index, part in self._read_piece(index[start:stop], piece, rejected):
                yield self._convert_columns(part_index, part, rejected)

    # -- bombs: what must not reach ptars at all ----------------------------------------------------------

    def _refuse_bombs(
        self, index: Places, values: pa.Array, rejected: list[Rejection]
    ) -> tuple[Places, pa.Array]:
        lengths = pc.binary_length(values).to_numpy(zero_copy_only=False)
        suspects = np.flatnonzero(
            (lengths > _MOST_GROUPS) | (lengths.astype(np.int64) * self._factor > self._most_bytes)
        )
        bad = np.zeros(len(values), dtype=np.bool_)
        for row in suspects.tolist():
            problem = self._find_bomb(values[row].as_py())
            if problem is not None:
                bad[row] = True
                rejected.append(problem.at(int(index[row])))
        return (index[~bad], values.filter(pa.array(~bad))) if bad.any() else (index, values)

    def _find_bomb(self, message: bytes) -> RejectionCause | None:
        octets = np.frombuffer(message, dtype=np.uint8)
        if int(np.count_nonzero((octets & 7) == _GROUP)) > _MOST_GROUPS:
            try:
                self._message_class.FromString(message)
            except DecodeError:
                return RejectionCause(
                    reason=Reason.MALFORMED, detail="not readable as protobuf, or nested too deep"
                )
        grown = sum(message.count(growth.tag) * growth.item_bytes for growth in self._growths)
        if grown + len(message) * 8 > self._most_bytes:
            return RejectionCause(
                reason=Reason.TOO_BIG,
                detail=f"its repeated messages could take more than {self._most_bytes} bytes as columns",
            )
        return None

    def _split(self, values: pa.Array) -> Iterator[tuple[int, int]]:
        """Runs whose columns fit into memory, whatever they hold."""
        most = min(_RUN_BYTES, max(_RUN_GROWN_BYTES // self._factor, 1))
        ends = np.cumsum(pc.binary_length(values).to_numpy(zero_copy_only=False).astype(np.int64))
        start = 0
        while start < len(values):
            before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + most, side="right")))
            yield start, stop
            start = stop

    # -- reading: the piece at once, and smaller only when it fails ---------------------------------------

    def _read_piece(
        self, index: Places, values: pa.Array, rejected: list[Rejection]
    ) -> Iterator[tuple[Places, list[pa.Array]]]:
        try:
            yield index, self._decode(values)
        except RefusedError as refused:
            if len(values) == 1:
                rejected.append(refused.problem.at(int(index[0])))
            elif len(values) <= _SMALL:
                yield from self._sift(index, values, rejected)
            else:
                yield from self._read_halves(index, values, rejected)

    def _read_halves(
        self, index: Places, values: pa.Array, rejected: list[Rejection]
    ) -> Iterator[tuple[Places, list[pa.Array]]]:
        half = len(values) // 2
        yield from self._read_piece(index[:half], values.slice(0, half), rejected)
        yield from self._read_piece(index[half:], values.slice(half), rejected)

    def _sift(
        self, index: Places, values: pa.Array, rejected: list[Rejection]
    ) -> Iterator[tuple[Places, list[pa.Array]]]:
        """Those that the protobuf library refuses are read alone, the others together."""
        sound = np.array([self._is_sound(value) for value in values.to_pylist()])
        if sound.all():
            yield from self._read_halves(index, values, rejected)
            return
        for row in np.flatnonzero(~sound).tolist():
            yield from self._read_piece(index[row : row + 1], values.slice(row, 1), rejected)
        if sound.any():
            yield from self._read_piece(index[sound], values.filter(pa.array(sound)), rejected)

    def _is_sound(self, value: bytes) -> bool:
        try:
            self._message_class.FromString(value)
        except DecodeError:
            return False
        return True

    def _decode(self, values: pa.Array) -> list[pa.Array]:
        """A column a declared field, adapted but not yet converted; refuses all when one cannot be read."""
        batch = self._convert(values)
        odd = _find_odd(batch, self._wanted)
        if odd is not None and odd.any():
            batch = self._convert(self._rewrite(values, odd))
        try:
            return [self._column(batch, name, type_) for name, type_ in self._read_types.items()]
        except UnreadableMessageError as error:
            raise RefusedError(RejectionCause(reason=Reason.MALFORMED, detail=str(error))) from error

    def _convert(self, values: pa.Array) -> pa.Array:
        try:
            batch = self._handler.array_to_record_batch(values)
        except ValueError as error:
            raise RefusedError(_explain_failure(str(error))) from error
        except BaseException as error:
            # A panic of ptars is no Exception. None is known to be reached; it would cost one message, not a task.
            if type(error).__name__ != "PanicException":
                raise
            raise RefusedError(RejectionCause(reason=Reason.MALFORMED, detail="cannot be decoded")) from error
        if batch.num_columns == 0:
            return pa.array([{}] * len(values), pa.struct([]))
        return join_pieces(batch.to_struct_array(), self._wanted)

    def _rewrite(self, values: pa.Array, odd: Mask) -> pa.Array:
        places = np.flatnonzero(odd)
        try:
            written = [
                self._message_class.FromString(value).SerializePartialToString(deterministic=True)
                for value in values.take(pa.array(places)).to_pylist()
            ]
        except DecodeError as error:
            raise RefusedError(
                RejectionCause(reason=Reason.MALFORMED, detail="not readable as protobuf")
            ) from error
        return pc.replace_with_mask(values, pa.array(odd), pa.array(written, pa.binary()))

    def _column(self, batch: pa.Array, name: str, type_: c.ColumnType) -> pa.Array:
        found = self._found[name]
        if found is None:
            return _missing(len(batch), self._elsewhere[name], self._fields[name])
        holder = batch
        for step in found.through:
            holder = child(holder, step.name)
        return part_of(holder, found.message, found.end.name, type_)

    # -- converting ---------------------------------------------------------------------------------------

    def _convert_columns(
        self, index: Places, adapted: list[pa.Array], rejected: list[Rejection]
    ) -> tuple[Places, pa.RecordBatch]:
        bad = np.zeros(len(index), dtype=np.bool_)
        arrays = []
        for array, type_ in zip(adapted, self._fields.values(), strict=True):
            converted = convert(array, type_)
            arrays.append(converted.array)
            if converted.bad is not None:
                bad |= converted.bad
        rows = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if not bad.any():
            return index, rows
        rejected += [self._explain(adapted, row).at(int(index[row])) for row in np.flatnonzero(bad).tolist()]
        return index[~bad], rows.filter(pa.array(~bad))

    def _explain(self, adapted: list[pa.Array], row: int) -> RejectionCause:
        for array, (name, type_) in zip(adapted, self._fields.items(), strict=True):
            converted = convert(array.slice(row, 1), type_)
            if converted.bad is not None and converted.bad.any():
                return find_problem(array, row, type_, f"field {name}")
        raise AssertionError("a row was marked although all of its fields can be converted")


def _find_elsewhere(others: Sequence[Descriptor], name: str, numbers: Sequence[int]) -> FoundField | None:
    """As another version has it; where one gave its number to another field, as one that has it under its name."""
    known = [found for other in others if (found := find(other, name, numbers))]
    own = name.rpartition(".")[2]
    return next((found for found in known if found.end.name == own), known[0] if known else None)


def _without_default(type_: c.ColumnType, steps: Sequence[str]) -> c.ColumnType:
    """The type as which an absent value stays null, so that it cannot be the declared one."""
    if not steps:
        return make_nullable(type_) or type_
    if not isinstance(type_, c.Tuple):
        return type_
    first, *rest = steps
    parts = ((name, _without_default(part, rest) if name == first else part) for name, part in type_.fields)
    return c.Tuple(fields=tuple(parts))


def _explain_failure(message: str) -> RejectionCause:
    message = message.removeprefix("failed to decode Protobuf message: ")
    reason = Reason.BAD_UTF8 if "UTF-8" in message else Reason.MALFORMED
    return RejectionCause(reason=reason, detail=message)


def _missing(rows: int, elsewhere: FoundField | None, type_: c.ColumnType) -> pa.Array:
    """A field that this version lacks, as a reader of another version sees it."""
    if elsewhere is None or c.is_nullable(type_) or isinstance(elsewhere.end, OneofDescriptor):
        return pa.nulls(rows)
    return adapt(pa.nulls(rows), elsewhere.end, type_)


def _find_odd(array: pa.Array, wanted: Wanted) -> Mask | None:
    """Rows that mean something else on the wire than ptars takes them for."""
    odd: Mask | None = None
    for oneof in wanted.oneofs.values():
        odd = either(odd, several_members(array, oneof))
    for name, (field, inner) in wanted.messages.items():
        if inner.is_empty:
            continue
        found = child(array, name)
        if field.is_repeated:
            bounds = found.offsets.to_numpy().astype(np.int64)
            items = _find_odd(found.values, inner)
            if is_map(field):
                items = either(items, repeated_keys(_keys(found.values, inner), bounds))
            odd = either(odd, rows_of(items, bounds))
        else:
            odd = either(odd, _find_odd(found, inner))
    return odd


def _keys(entries: pa.Array, wanted: Wanted) -> pa.Array:
    """An entry without a key has the default one."""
    keys = entries.field("key")
    default = wanted.descriptor.fields_by_name["key"].default_value
    return keys.fill_null(pa.scalar(default, keys.type)) if keys.null_count else keys
