"""JSON messages into typed columns, block by block, in Arrow.

Good messages are joined and read by one call of Arrow's JSON reader; a row's values never depend on its
neighbours, and a bad message costs no other. Which JSON stands for which type is written down in
docs/decisions/0004-json-decoding.md. Nothing here raises for any bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as pa_json

from oncehouse.column_types import types as c
from oncehouse.common.backoff import Turns
from oncehouse.errors import ConfigurationError
from oncehouse.pipeline.convert.arrow_buffers import text_buffers, text_type
from oncehouse.pipeline.convert.masks import null_mask
from oncehouse.pipeline.convert.rejection import Reason, Rejection, RejectionCause
from oncehouse.pipeline.formats.base import Decoded
from oncehouse.pipeline.formats.json.arrow_limits import (
    find_small_exponents,
    holds_decimal,
    huge_number_pattern,
)
from oncehouse.pipeline.formats.json.columns import (
    ReadVariant,
    convert_column,
    reader_type,
)
from oncehouse.pipeline.formats.json.declared_members import write_declared
from oncehouse.pipeline.formats.json.fast_path import MessageLayout, find_followers, find_layout, read_uniform
from oncehouse.pipeline.formats.json.maps import holds_map, rewrite_maps
from oncehouse.pipeline.formats.json.message_errors import explain, find_far_exponent
from oncehouse.pipeline.formats.json.new_fields import (
    MOST_NEW_FIELDS,
    NewFields,
    cut_by_keys,
    find_new_fields,
    merge_fields,
    sample_new_fields,
)
from oncehouse.pipeline.formats.json.prefilter import (
    Block,
    screen_bytes,
    screen_structure,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from oncehouse.pipeline.convert.arrow_buffers import Offsets
    from oncehouse.pipeline.convert.masks import Mask

_RUN_BYTES = 32 << 20
_RUN_OBJECTS = 400_000
_PIECES = 8
LEAST_UNIFORM = 500
"""Fewer messages are parsed at once, whatever they look like."""
_MOST_UNTRIED_BLOCKS = 31  # blocks that are parsed before messages that differed are looked at again
_SMALL_BLOCK = 1024
_MOST_SINGLE_FAILURES = 64  # above this share of odd messages it is cheaper to look at each of a small block
_ROW = re.compile(r" in row ([0-9]+)$")
_UNREADABLE = RejectionCause(
    reason=Reason.WRONG_TYPE, detail="a number or an escape that the reader cannot take"
)
_MOST_COLUMNS = 200  # with so many keys, known and new, a whole run is read at once
_GREATEST_DEPTH = 400  # the explanation of a bad message recurses, within Python's own limit


@dataclass(frozen=True)
class _ReadMessages:
    """Messages that the reader took, and what it made of them."""

    index: Offsets
    texts: pa.Array
    table: pa.Table


@dataclass(frozen=True)
class _FailedRead:
    row: int | None
    """The row that the reader stumbled over, when it says so: a hint where to look, never a verdict."""


class JsonDecoder:
    """Decodes blocks of messages; it is made once a task, and Spark may pickle it."""

    def __init__(
        self,
        *,
        fields: Mapping[str, c.ColumnType],
        max_message_bytes: int,
        max_depth: int,
        watch: bool = False,
    ) -> None:
        """`watch`: report keys that are not declared."""
        if not fields:
            raise ConfigurationError("source.fields is empty; declare at least one field")
        if not 1 <= max_depth <= _GREATEST_DEPTH:
            raise ConfigurationError(f"source.max_depth is {max_depth}; choose 1 to {_GREATEST_DEPTH}")
        self._fields = dict(fields)
        self._watch = watch
        self._new_fields: NewFields = {}
        self._max_message_bytes = max_message_bytes
        self._max_depth = max_depth
        self._schema = pa.schema([(name, c.arrow_type(type_)) for name, type_ in fields.items()])
        self._options: dict[ReadVariant, pa_json.ParseOptions] = {}
        self._usual_variant = ReadVariant()
        self._layout: MessageLayout | None = None
        self._sorts_out = False
        self._blocks = Turns(_MOST_UNTRIED_BLOCKS)
        self._huge_number = huge_number_pattern(fields.values())
        self._holds_decimals = any(holds_decimal(type_) for type_ in fields.values())
        self._holds_maps = any(holds_map(type_) for type_ in fields.values())

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self._fields, self._max_message_bytes, self._max_depth, self._watch)

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def decode(self, values: pa.Array) -> Decoded:
        self._new_fields = {}
        block = screen_bytes(values, max_message_bytes=self._max_message_bytes)
        rejected: list[Rejection] = []
        batches = []
        if (alike := self._read_uniform_block(block)) is not None:
            batches.append(self._convert(alike, rejected))
        batches += self._parse_block(block, rejected)
        rejected += block.rejected
        taken, rows = _merge(batches, self._schema)
        rejected.sort(key=lambda rejection: rejection.index)
        return Decoded(
            rows=rows,
            taken=taken,
            rejected=tuple(rejected),
            skipped=np.flatnonzero(null_mask(values)).astype(np.int64),
            new_fields=self._new_fields,
        )

    # -- reading: without a parser where messages are alike ------------------------------------------------

    def _read_uniform_block(self, block: Block) -> _ReadMessages | None:
        """Messages of one layout, taken out of the block; None where too many differ.

        That is then not tried again for some blocks.
        """
        texts = block.texts
        if self._holds_maps or len(texts) < LEAST_UNIFORM or self._blocks.passes():
            return None
        found = self._follow_layouts(texts)
        if found is None:
            self._blocks.fail()
            return None
        self._blocks.succeed()
        follows, table = found
        read = _ReadMessages(
            block.index[follows], texts if follows.all() else texts.filter(pa.array(follows)), table
        )
        block.keep(~follows)
        return read

    def _follow_layouts(self, texts: pa.Array) -> tuple[Mask, pa.Table] | None:
        """By the layout that is known, or by that of the first message, or of one in the middle."""
        tried = [self._layout]
        found = self._follow(texts, self._layout) if self._layout else None
        for place in (0, len(texts) // 2):
            layout = self._find_layout(texts[place].as_py()) if found is None else None
            if layout is not None and layout not in tried:
                tried.append(layout)
                found = self._follow(texts, layout)
                self._layout = layout
        return found

    def _follow(self, texts: pa.Array, layout: MessageLayout) -> tuple[Mask, pa.Table] | None:
        schema = self._options_of(self._usual_variant).explicit_schema
        table = None if self._sorts_out else read_uniform(texts, schema, layout)
        if table is not None:
            return np.ones(len(texts), dtype=np.bool_), table
        follows = find_followers(texts, layout)
        # Odd messages seldom come alone: they are then sought before anything is read.
        tried, self._sorts_out = not self._sorts_out, not follows.all()
        if (tried and follows.all()) or np.count_nonzero(follows) < len(texts) / 2:
            return None
        table = read_uniform(texts.filter(pa.array(follows)), schema, layout)
        return None if table is None else (follows, table)

    def _find_layout(self, message: bytes) -> MessageLayout | None:
        layout = find_layout(message)
        # Only the parser knows the types of undeclared keys.
        return None if self._watch and layout is not None and layout.keys - self._fields.keys() else layout

    # -- reading: the block at once, and smaller only when it fails ---------------------------------------

    def _parse_block(self, block: Block, rejected: list[Rejection]) -> list[tuple[Offsets, pa.RecordBatch]]:
        screen_structure(block, max_depth=self._max_depth, explain=self._explain_rejected)
        if self._holds_decimals:
            self._reject_far_exponents(block)
        return [
            self._convert(read, rejected)
            for index, texts in _split_runs(block.index, block.texts)
            for read in self._read(index, texts, rejected)
        ]

    def _reject_far_exponents(self, block: Block) -> None:
        problems: dict[int, RejectionCause] = {}
        for row in find_small_exponents(block.texts):
            if (problem := find_far_exponent(block.texts[row].as_py(), self._fields)) is not None:
                problems[row] = problem
        if problems:
            bad = np.zeros(len(block.index), dtype=np.bool_)
            bad[list(problems)] = True
            block.reject(bad, problems.__getitem__)

    def _read(self, index: Offsets, texts: pa.Array, rejected: list[Rejection]) -> Iterator[_ReadMessages]:
        parsed = self._parse(texts, self._usual_variant)
        if isinstance(parsed, pa.Table):
            yield _ReadMessages(index, texts, parsed)
        elif len(texts) > _SMALL_BLOCK:
            size = -(-len(texts) // _PIECES)
            for start in range(0, len(texts), size):
                part = slice(start, start + size)
                yield from self._read(index[part], texts.slice(start, size), rejected)
        else:
            yield from self._read_around(index, texts, parsed.row, rejected)

    def _read_around(
        self, index: Offsets, texts: pa.Array, row: int | None, rejected: list[Rejection]
    ) -> Iterator[_ReadMessages]:
        """Read each message alone that the reader stumbled over, and all that stood between them together."""
        standing = np.ones(len(texts), dtype=np.bool_)
        start, failures = 0, 0
        while row is not None and failures < _MOST_SINGLE_FAILURES:
            failures += 1
            place = start + row
            standing[place] = False
            yield from self._read_alone(int(index[place]), texts.slice(place, 1), rejected)
            start = place + 1
            parsed = self._parse(texts.slice(start), self._usual_variant)
            row = None if isinstance(parsed, pa.Table) else parsed.row
        index, texts = index[standing], texts.filter(pa.array(standing))
        parsed = self._parse(texts, self._usual_variant) if failures and row is None else _FailedRead(row)
        if isinstance(parsed, pa.Table):
            yield _ReadMessages(index, texts, parsed)
        else:
            yield from self._triage(index, texts, rejected)

    def _read_alone(self, place: int, text: pa.Array, rejected: list[Rejection]) -> Iterator[_ReadMessages]:
        message = text[0].as_py()
        variant, problem = explain(message, self._fields, fully=True)
        parsed = self._parse(text, variant)
        if not isinstance(parsed, pa.Table) and problem is None:
            text = pa.array([write_declared(message, self._fields)], text.type)
            parsed = self._parse(text, variant)
        if isinstance(parsed, pa.Table):
            yield _ReadMessages(np.array([place], dtype=np.int64), text, parsed)
        else:
            rejected.append((problem or _UNREADABLE).at(place))

    def _triage(self, index: Offsets, texts: pa.Array, rejected: list[Rejection]) -> Iterator[_ReadMessages]:
        """Sort messages by variant and suspicion; suspects are read alone, the others together."""
        groups: dict[ReadVariant, list[int]] = {}
        for row, message in enumerate(texts.to_pylist()):
            variant, problem = explain(message, self._fields, fully=False)
            if problem is None:
                groups.setdefault(variant, []).append(row)
            else:
                yield from self._read_alone(int(index[row]), texts.slice(row, 1), rejected)
        together = ReadVariant().union(*groups)
        if len(groups) > 1 and (read := self._read_together(index, texts, groups, together)) is not None:
            # A null can be read either way, so messages differ in variant where only some have a value.
            self._usual_variant = together
            yield read
            return
        for variant, rows in groups.items():
            yield from self._narrow(index[rows], texts.take(pa.array(rows)), variant, rejected)
        if groups:
            self._usual_variant = max(groups, key=lambda variant: len(groups[variant]))

    def _read_together(
        self, index: Offsets, texts: pa.Array, groups: Mapping[ReadVariant, list[int]], variant: ReadVariant
    ) -> _ReadMessages | None:
        """Messages of all variants at once, if one variant can take them all."""
        rows = np.sort(np.concatenate([np.array(rows, dtype=np.int64) for rows in groups.values()]))
        chosen = texts.take(pa.array(rows))
        parsed = self._parse(chosen, variant)
        return _ReadMessages(index[rows], chosen, parsed) if isinstance(parsed, pa.Table) else None

    def _narrow(
        self, index: Offsets, texts: pa.Array, variant: ReadVariant, rejected: list[Rejection]
    ) -> Iterator[_ReadMessages]:
        """Messages expected to be good; where they are not, halves of them, and at last each alone."""
        parsed = self._parse(texts, variant)
        if isinstance(parsed, pa.Table):
            yield _ReadMessages(index, texts, parsed)
        elif len(texts) == 1:
            yield from self._read_alone(int(index[0]), texts, rejected)
        else:
            half = len(texts) // 2
            yield from self._narrow(index[:half], texts.slice(0, half), variant, rejected)
            yield from self._narrow(index[half:], texts.slice(half), variant, rejected)

    def _parse(self, texts: pa.Array, variant: ReadVariant) -> pa.Table | _FailedRead:
        """A row a message, or the failure of all of them."""
        if len(texts) == 0:
            return _empty_table(self._options_of(variant).explicit_schema)
        readable = rewrite_maps(texts, self._fields) if self._holds_maps else texts
        if readable is None:
            return _FailedRead(row=None)
        options = self._options_of(variant)
        table = self._read_watching(readable, options.explicit_schema) if self._watch else None
        try:
            table = _read_json(_join(readable), options) if table is None else table
        except (pa.ArrowException, ValueError) as error:
            return _FailedRead(row=_failing_row(error, len(texts)))
        return table if table.num_rows == len(texts) else _FailedRead(row=None)

    def _read_watching(self, texts: pa.Array, declared: pa.Schema) -> pa.Table | None:
        """What the reader makes of it when it takes all keys; None where the declared ones have to be read alone."""
        tables: list[pa.Table] = []
        # A few messages at a time, so that columns and cells stay few however their keys differ.
        for some in cut_by_keys(texts):
            table = _read_with_all_keys(some, declared)
            if table is None:
                # An undeclared key must never cost a message.
                merge_fields(self._new_fields, sample_new_fields(some, declared))
                return None
            merge_fields(self._new_fields, dict(find_new_fields(table.schema, declared)))
            if len(self._new_fields) > MOST_NEW_FIELDS:
                return None  # more than a table would take: the rest need not be known
            if not tables and len(table.schema) <= _MOST_COLUMNS:
                # Nearly always the others have the keys of the first, and all can be read at once.
                whole = _read_with_keys(texts, table.schema)
                if whole is not None:
                    tables = [whole.select(declared.names)]
                    break
            tables.append(table.select(declared.names))
        return pa.concat_tables(tables) if all(table.schema.equals(declared) for table in tables) else None

    def _options_of(self, variant: ReadVariant) -> pa_json.ParseOptions:
        if variant not in self._options:
            schema = pa.schema(
                [(name, reader_type(type_, (name,), variant)) for name, type_ in self._fields.items()]
            )
            self._options[variant] = pa_json.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="ignore"
            )
        return self._options[variant]

    # -- converting ---------------------------------------------------------------------------------------

    def _convert(self, read: _ReadMessages, rejected: list[Rejection]) -> tuple[Offsets, pa.RecordBatch]:
        bad = np.zeros(read.table.num_rows, dtype=np.bool_)
        arrays = []
        for column, type_ in zip(read.table.columns, self._fields.values(), strict=True):
            converted = convert_column(_one_chunk(column), type_)
            arrays.append(converted.array)
            if converted.bad is not None:
                bad |= converted.bad
        bad |= self._find_wrapped(read.texts)
        rows = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if not bad.any():
            return read.index, rows
        rejected += [
            self._explain_rejected(read.texts[row].as_py()).at(int(read.index[row]))
            for row in np.flatnonzero(bad).tolist()
        ]
        return read.index[~bad], rows.filter(pa.array(~bad))

    def _find_wrapped(self, texts: pa.Array) -> Mask:
        """Messages with numbers that the reader's decimals cannot hold, looked at digit by digit."""
        wrapped = np.zeros(len(texts), dtype=np.bool_)
        if self._huge_number is None:
            return wrapped
        suspects = pc.match_substring_regex(texts.view(text_type(texts)), self._huge_number)
        for row in np.flatnonzero(suspects.to_numpy(zero_copy_only=False)).tolist():
            problem = explain(texts[row].as_py(), self._fields, fully=False).problem
            wrapped[row] = problem is not None and problem.reason is Reason.OUT_OF_RANGE
        return wrapped

    def _explain_rejected(self, message: bytes) -> RejectionCause:
        return explain(message, self._fields, fully=True).problem or _UNREADABLE


def _rebuild(
    fields: dict[str, c.ColumnType], max_message_bytes: int, max_depth: int, watch: bool
) -> JsonDecoder:
    return JsonDecoder(fields=fields, max_message_bytes=max_message_bytes, max_depth=max_depth, watch=watch)


def _read_json(buffer: pa.Buffer, options: pa_json.ParseOptions) -> pa.Table:
    return pa_json.read_json(
        pa.BufferReader(buffer),
        read_options=pa_json.ReadOptions(use_threads=False, block_size=buffer.size + 1),
        parse_options=options,
    )


def _split_runs(index: Offsets, texts: pa.Array) -> Iterator[tuple[Offsets, pa.Array]]:
    """Runs of messages whose bytes fit one call of the reader."""
    if len(texts) == 0:
        return
    ends = np.cumsum(pc.binary_length(texts).to_numpy(zero_copy_only=False).astype(np.int64))
    start = 0
    while start < len(texts):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _RUN_BYTES, side="right")))
        yield from _split_objects(index[start:stop], texts.slice(start, stop - start))
        start = stop


def _split_objects(index: Offsets, texts: pa.Array) -> Iterator[tuple[Offsets, pa.Array]]:
    """The reader makes a row of every object, wanted or not: this bounds the memory that they can take."""
    offsets, data = text_buffers(texts)
    objects = np.count_nonzero(data[offsets[0] : offsets[-1]] == ord("{"))
    if objects <= _RUN_OBJECTS or len(texts) == 1:
        yield index, texts
        return
    half = len(texts) // 2
    yield from _split_objects(index[:half], texts.slice(0, half))
    yield from _split_objects(index[half:], texts.slice(half))


def _read_with_all_keys(texts: pa.Array, declared: pa.Schema) -> pa.Table | None:
    """The messages with all their keys, undeclared ones included; None where that cannot be."""
    options = pa_json.ParseOptions(explicit_schema=declared, unexpected_field_behavior="infer")
    return _try_reading(texts, options)


def _read_with_keys(texts: pa.Array, known: pa.Schema) -> pa.Table | None:
    """The messages when they have these keys alone, in these types."""
    return _try_reading(texts, pa_json.ParseOptions(explicit_schema=known, unexpected_field_behavior="error"))


def _try_reading(texts: pa.Array, options: pa_json.ParseOptions) -> pa.Table | None:
    try:
        table = _read_json(_join(texts), options)
    except (pa.ArrowException, ValueError):
        return None
    return table if table.num_rows == len(texts) else None


def _join(texts: pa.Array) -> pa.Buffer:
    """The messages with a newline between them; none has one inside."""
    narrow = texts.cast(pa.binary())
    lists = pa.ListArray.from_arrays(pa.array([0, len(narrow)], pa.int32()), narrow)
    return pc.binary_join(lists, b"\n")[0].as_buffer()


def _failing_row(error: Exception, rows: int) -> int | None:
    match = _ROW.search(str(error))
    return int(match[1]) if match is not None and int(match[1]) < rows else None


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _merge(
    batches: list[tuple[Offsets, pa.RecordBatch]], schema: pa.Schema
) -> tuple[Offsets, pa.RecordBatch]:
    if not batches:
        return np.zeros(0, dtype=np.int64), _empty(schema)
    if len(batches) == 1:
        return batches[0]
    taken = np.concatenate([index for index, _ in batches])
    rows = pa.concat_batches([batch for _, batch in batches])
    order = np.argsort(taken, kind="stable")
    if (order == np.arange(len(order))).all():
        return taken, rows
    return taken[order], rows.take(pa.array(order))


def _empty_table(schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches([_empty(schema)])


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
