"""Who an event is: the unique id of every row, and the hash that tells payloads apart.

A unique id is SHA-256, cut to 128 bits, over an encoding of the identity fields in which every value carries
its kind and its length, so that no two different lists of values share it. Wider integers of the same value
keep their id. `identity_fingerprint` names everything the ids depend on; the ledger refuses another one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse import columns as c
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Hashes = np.ndarray[Any, np.dtype[np.uint64]]

_VERSION = "sha256-128/1"
_NULL = b"n;"
_NIBBLE = np.zeros(256, dtype=np.uint8)
for _value, _digit in enumerate(b"0123456789abcdef"):
    _NIBBLE[_digit] = _value


def check_identity(fields: Sequence[str], types: Mapping[str, c.ColumnType]) -> None:
    """Refuse identity fields that are not declared, stand twice, or are no scalars."""
    if not fields:
        raise ConfigurationError("identity.fields is empty; name the fields that make an event unique")
    for position, name in enumerate(fields):
        if name not in types:
            raise ConfigurationError(f"identity.fields names {name!r}, which source.fields does not declare")
        if name in fields[:position]:
            raise ConfigurationError(f"identity.fields names {name!r} twice; each field may stand once")
        if isinstance(c.bare(types[name]), c.Array | c.Map | c.Tuple):
            raise ConfigurationError(
                f"identity.fields names {name!r}, which is {c.clickhouse_name(types[name])}; "
                "only scalar fields can make an event unique"
            )


def identity_fingerprint(fields: Sequence[str], types: Mapping[str, c.ColumnType]) -> str:
    """A text that changes exactly when the same events might get other ids."""
    check_identity(fields, types)
    return json.dumps([_VERSION, *([name, _kind(c.bare(types[name]))] for name in fields)])


def _kind(type_: c.ColumnType) -> str:
    match type_:
        case c.Integer(bits=bits) if bits <= 64:
            return "integer"
        case c.String() | c.Enum():
            return "text"
        case c.Decimal(scale=scale):
            return f"decimal with {scale} digits"
        case c.Date():
            return "date"
        case c.DateTime() | c.DateTime64():
            precision = type_.precision if isinstance(type_, c.DateTime64) else 0
            return f"time with {precision} digits, read in {c.zone_of(type_)}"
        case _:
            return c.clickhouse_name(type_)


def unique_ids(rows: pa.RecordBatch, fields: Sequence[str]) -> tuple[Hashes, Hashes]:
    """The high and low halves of each row's id: the digest's first and second eight bytes, big-endian."""
    if rows.num_rows == 0:
        return np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.uint64)
    digests = _hash_column(encode_identity(rows, fields), "chash", "sha2_256").to_arrow()
    digits = np.frombuffer(digests.cast(pa.large_string()).buffers()[2], dtype=np.uint8)
    nibbles = _NIBBLE[digits[: rows.num_rows * 64].reshape(-1, 64)[:, :32]]
    halves = ((nibbles[:, 0::2] << 4) | nibbles[:, 1::2]).view(">u8").astype(np.uint64)
    return np.ascontiguousarray(halves[:, 0]), np.ascontiguousarray(halves[:, 1])


def payload_hashes(values: pa.Array) -> Hashes:
    """XXH3 (64 bits) of each value's bytes; a missing value has 0."""
    if len(values) == 0:
        return np.zeros(0, dtype=np.uint64)
    hashed = _hash_column(values.cast(pa.large_binary()), "nchash", "xxh3_64")
    hashes: Hashes = hashed.fill_null(0).to_numpy().astype(np.uint64, copy=False)
    return hashes


def _hash_column(values: pa.Array, family: str, function: str) -> Any:
    # Imported by the process that hashes: Polars starts threads, which a fork of Spark's daemon would not carry.
    import polars as pl
    import polars_hash

    expression = getattr(getattr(polars_hash.col("x"), family), function)()
    return pl.DataFrame({"x": pl.from_arrow(values)}).select(expression).to_series()


# -- the encoding -----------------------------------------------------------------------------------------


def encode_identity(rows: pa.RecordBatch, fields: Sequence[str]) -> pa.Array:
    """The bytes that are hashed: one piece a field, each readable to its end without knowing the next.

    A piece is a letter for the kind and the value: numbers in decimal digits up to a semicolon, texts and
    bytes behind their length and a colon, null as `n;`.
    """
    pieces: list[Any] = []
    for name in fields:
        column = rows.column(rows.schema.get_field_index(name))
        piece = _pieces(column)
        pieces += piece if column.null_count == 0 else [pc.fill_null(_concatenate(piece), _NULL)]
    return _concatenate(pieces)


def _concatenate(pieces: list[Any]) -> pa.Array:
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.binary()))


def _pieces(column: pa.Array) -> list[Any]:  # noqa: PLR0911 - one way out for each kind
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return [_mark(b"s"), _texts(pc.binary_length(column)), _mark(b":"), column.cast(pa.binary())]
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


def _mark(letters: bytes) -> pa.Scalar:
    return pa.scalar(letters, pa.binary())


def _texts(numbers: pa.Array) -> pa.Array:
    return numbers.cast(pa.string()).cast(pa.binary())


def _unscaled(column: pa.Array) -> pa.Array:
    """The digits without their point: the same bytes, read with scale 0."""
    make = pa.decimal128 if pa.types.is_decimal128(column.type) else pa.decimal256
    return column.view(make(column.type.precision, 0))


def _float_bytes(column: pa.Array) -> pa.Array:
    width = column.type.bit_width // 8
    values = column.fill_null(0.0).to_numpy() + 0.0  # -0.0 and 0.0 are the same number, so one id
    data = np.ascontiguousarray(values).astype(f">f{width}")
    offsets = np.arange(len(column) + 1, dtype=np.int32) * width
    validity = pa.array(column.is_valid().to_numpy(zero_copy_only=False)).buffers()[1]
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(column), buffers)
