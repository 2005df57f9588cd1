"""A message with its declared members alone, in a form that Arrow's JSON reader can take.

The reader refuses a whole message for an undeclared member that it could not hold (half of a surrogate pair, a number
beyond a 64-bit float), and `-0` in a column of UInt64. Both are JSON, so a message that fails though its declared
members are sound is written again without what is not declared, all else as it stood.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from oncehouse.column_types import types as c
from oncehouse.pipeline.formats.json.message_errors import Constant, Pairs, RawNumber, load


def write_declared(message: bytes, fields: Mapping[str, c.ColumnType]) -> bytes | None:
    """None where the message is no JSON object."""
    try:
        pairs = load(message.decode())
    except (ValueError, RecursionError):
        return None
    return _write_members(pairs, fields).encode() if isinstance(pairs, Pairs) else None


def _write_members(pairs: Pairs, fields: Mapping[str, c.ColumnType]) -> str:
    members = [f"{json.dumps(name)}:{_write(value, fields[name])}" for name, value in pairs if name in fields]
    return f"{{{','.join(members)}}}"


def _write(value: Any, type_: c.ColumnType | None) -> str:
    """`type_`: None for what no type describes."""
    bare = None if type_ is None else c.bare(type_)
    match bare, value:
        case c.Tuple(fields=fields), Pairs():
            return _write_members(value, dict(fields))
        case _, Pairs():
            inner = bare.value if isinstance(bare, c.Map) else None
            return f"{{{','.join(f'{json.dumps(name)}:{_write(member, inner)}' for name, member in value)}}}"
        case _, list():
            item = bare.item if isinstance(bare, c.Array) else None
            return f"[{','.join(_write(entry, item) for entry in value)}]"
        case c.Integer(), "-0" if isinstance(value, RawNumber):
            return "0"
        case _, RawNumber() | Constant():
            return str(value)
        case _:
            return json.dumps(value)
