"""Who an event is: the unique id of every row.

A unique id is SHA-256, cut to 128 bits, over an encoding of the values that the rule names, in which every value
carries its kind and its length, so that no two different lists of values share it. Wider integers of the same
value keep their id. A record that lacks a header or a key that the rule names has no id, and becomes a dead
letter: nothing would distinguish it from others. Which values are named is `identity_rule.py`.
"""

from __future__ import annotations

import binascii
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.common.hashing import Hashes, hash_column
from oncehouse.errors import ConfigurationError
from oncehouse.pipeline.convert.masks import cast_where_possible
from oncehouse.pipeline.convert.rejection import Reason, Rejection, RejectionCause
from oncehouse.pipeline.formats.base import reject_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncehouse.pipeline.dedup.identity_rule import Rule
    from oncehouse.pipeline.formats.base import Decoded

# Hexadecimal ones of a SHA-256.
_DIGITS = 64
_NULL = b"n;"
_TEXT_MARKS = pa.array([b"s%d:" % length for length in range(256)], pa.binary())


def unique_ids(
    rule: Rule, rows: pa.RecordBatch, records: pa.RecordBatch | None = None, schemas: pa.Array | None = None
) -> tuple[Hashes, Hashes]:
    """The high and low halves of each row's id: the digest's first and second eight bytes, big-endian.

    `records` holds the key and the headers of each row, `schemas` the version it was written in.
    """
    if rows.num_rows == 0:
        return np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.uint64)
    encoded = encode_identity(rule, rows, records, schemas)
    digests = hash_column(encoded, "chash", "sha2_256").to_arrow()
    digits = digests.cast(pa.large_string()).buffers()[2].slice(0, rows.num_rows * _DIGITS)
    words = np.frombuffer(binascii.unhexlify(digits), dtype=">u8").reshape(rows.num_rows, -1)
    return words[:, 0].astype(np.uint64), words[:, 1].astype(np.uint64)


def reject_unidentified(
    rule: Rule, records: pa.RecordBatch, decoded: Decoded, *, needs_value: bool = False
) -> Decoded:
    """Without the rows whose record lacks a header or the key that the rule names: those are rejected.

    With `needs_value` also those of which no field of the rule has a value: all of them would be one event.
    """
    lacking = np.zeros(len(decoded.taken), dtype=np.bool_)
    found: list[Rejection] = []
    for name, column in _of_record(rule, records):
        missing = column.is_null().to_numpy(zero_copy_only=False)[decoded.taken] & ~lacking
        problem = RejectionCause(
            reason=Reason.MISSING_FIELD, detail=f"{name}, which belongs to the identity, is missing"
        )
        found += [problem.at(int(place)) for place in decoded.taken[missing]]
        lacking |= missing
    if needs_value and not (rule.headers or rule.key):
        found += [_without_values(rule).at(int(place)) for place in decoded.taken[_all_null(rule, decoded)]]
    return reject_rows(decoded, found)


def _all_null(rule: Rule, decoded: Decoded) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """The rows in which every field of the rule is null."""
    empty = np.ones(len(decoded.taken), dtype=np.bool_)
    for steps in rule.fields:
        column = _column_at(decoded.rows, steps)
        if not column.null_count:
            return np.zeros(len(decoded.taken), dtype=np.bool_)
        empty &= column.is_null().to_numpy(zero_copy_only=False)
    return empty


def _without_values(rule: Rule) -> RejectionCause:
    names = ", ".join(".".join(steps) for steps in rule.fields)
    return RejectionCause(
        reason=Reason.MISSING_FIELD,
        detail=f"field {names}: missing or null, and nothing else of the identity distinguishes the record from others",
    )


# -- the encoding -----------------------------------------------------------------------------------------


def encode_identity(
    rule: Rule, rows: pa.RecordBatch, records: pa.RecordBatch | None = None, schemas: pa.Array | None = None
) -> pa.Array:
    """The bytes that are hashed: one piece a value, each readable to its end without knowing the next.

    A piece is a letter for the kind and the value: numbers in decimal digits up to a semicolon, texts and
    bytes behind their length and a colon, null as `n;`. Fields come first, then headers, key and schema.
    """
    columns = [_column_at(rows, steps) for steps in rule.fields]
    if rule.normalize != "none":
        columns = [_normalize(column, rule.normalize.upper()) for column in columns]
    if rule.headers or rule.key:
        columns += [column for _, column in _of_record(rule, records)]
    if rule.schema_version:
        columns.append(pa.nulls(rows.num_rows, pa.string()) if schemas is None else schemas)
    pieces: list[Any] = []
    for column in columns:
        piece = _pieces(column)
        pieces += piece if column.null_count == 0 else [pc.fill_null(_concatenate(piece), _NULL)]
    return _concatenate(pieces)


def _normalize(column: pa.Array, form: str) -> pa.Array:
    """Texts in a normal form of Unicode, where they are Unicode at all; NaN in one pattern of bits."""
    if pa.types.is_floating(column.type):
        return pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)
    if not pa.types.is_string(column.type) or pc.all(pc.string_is_ascii(column)).as_py() is not False:
        return column
    texts, foreign = cast_where_possible(column.cast(pa.binary()), pa.string())
    texts = pc.utf8_normalize(texts, form=form)
    return pc.if_else(pa.array(foreign), column, texts) if foreign.any() else texts


def _column_at(rows: pa.RecordBatch, steps: tuple[str, ...]) -> pa.Array:
    column = rows.column(rows.schema.get_field_index(steps[0]))
    for step in steps[1:]:
        column = pc.struct_field(column, [column.type.get_field_index(step)])
    return column


def _of_record(rule: Rule, records: pa.RecordBatch | None) -> Iterator[tuple[str, pa.Array]]:
    """What the rule takes from key and headers, each with the name that error messages use."""
    if not rule.headers and not rule.key:
        return
    if records is None:
        raise ConfigurationError("the identity rule names headers or the key, which these rows do not have")
    for name in rule.headers:
        yield f"header {name!r}", find_header(records.column("headers"), name)
    if rule.key:
        yield "the key", records.column("key")


def find_header(headers: pa.Array, name: str) -> pa.Array:
    """The value of each record's last header of that name, null where there is none."""
    last = np.full(len(headers), -1, dtype=np.int64)
    flat = headers.flatten()
    lengths = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)
    places = np.flatnonzero(pc.fill_null(pc.equal(flat.field("key"), name), False))
    owners = np.repeat(np.arange(len(headers)), lengths)
    last[owners[places]] = places  # the later one overwrites the earlier
    return flat.field("value").take(pa.array(last, mask=last < 0))


def _concatenate(pieces: list[Any]) -> pa.Array:
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.binary()))


def _pieces(column: pa.Array) -> list[Any]:  # noqa: PLR0911 - one way out for each kind
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return [*_text_marks(pc.binary_length(column)), column.cast(pa.binary())]
    if pa.types.is_fixed_size_binary(kind):
        return [_mark(b"x%d:" % kind.byte_width), column.cast(pa.binary())]
    if pa.types.is_integer(kind):
        return [_mark(b"i"), _texts(column), _mark(b";")]
    if pa.types.is_boolean(kind):
        return [_mark(b"b"), _texts(column.cast(pa.uint8())), _mark(b";")]
    if pa.types.is_decimal(kind):
        return [_mark(b"d%d," % kind.scale), _texts(_unscaled(column)), _mark(b";")]
    if pa.types.is_date32(kind):
        return [_mark(b"D"), _texts(column.view(pa.int32())), _mark(b";")]
    if pa.types.is_timestamp(kind):
        return [_mark(b"t" + kind.unit.encode()), _texts(column.view(pa.int64())), _mark(b";")]
    if pa.types.is_floating(kind):
        return [_mark(b"f%d:" % (kind.bit_width // 8)), _float_bytes(column)]
    raise ConfigurationError(f"a column of {kind} cannot make an event unique; choose scalar fields")


def _text_marks(lengths: pa.Array) -> list[Any]:
    """What stands before texts of these lengths: looked up where all are short, for pieces are what costs."""
    longest = pc.max(lengths).as_py()
    if longest is not None and longest < len(_TEXT_MARKS):
        return [_TEXT_MARKS.take(lengths)]
    return [_mark(b"s"), _texts(lengths), _mark(b":")]


def _mark(text: bytes) -> pa.Scalar:
    return pa.scalar(text, pa.binary())


def _texts(numbers: pa.Array) -> pa.Array:
    return numbers.cast(pa.string()).cast(pa.binary())


def _unscaled(column: pa.Array) -> pa.Array:
    """The digits without their point: the same bytes, read with scale 0."""
    make = pa.decimal128 if pa.types.is_decimal128(column.type) else pa.decimal256
    return column.view(make(column.type.precision, 0))


def _float_bytes(column: pa.Array) -> pa.Array:
    width = column.type.bit_width // 8
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        values = column.fill_null(0.0).to_numpy() + 0.0  # -0.0 and 0.0 are the same number, so one id
    data = np.ascontiguousarray(values).astype(f">f{width}")
    offsets = np.arange(len(column) + 1, dtype=np.int32) * width
    validity = pa.array(column.is_valid().to_numpy(zero_copy_only=False)).buffers()[1]
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(column), buffers)
