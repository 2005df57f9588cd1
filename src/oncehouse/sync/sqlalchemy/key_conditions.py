"""Conditions on keys: that columns hold one of these, however many there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Dialect, any_, cast, func, literal, select, tuple_
from sqlalchemy.dialects.postgresql import ARRAY


def is_among(columns: Sequence[Any], keys: Sequence[tuple[Any, ...]], dialect: Dialect) -> Any:
    """For keys in the form that the database returns them in."""
    if dialect.name == "postgresql":
        # A value a column, not thousands: quicker to send, and there is no end to how many keys a statement takes.
        arrays = [_array([key[place] for key in keys], column.type) for place, column in enumerate(columns)]
        if len(columns) == 1:
            return columns[0] == any_(arrays[0])
        listed = func.unnest(*arrays).table_valued(*(f"part_{place}" for place in range(len(columns))))
        return tuple_(*columns).in_(select(listed.render_derived()))
    return is_listed(columns, keys)


def is_listed(columns: Sequence[Any], keys: Sequence[tuple[Any, ...]]) -> Any:
    """For keys as programs give them, of which each may be of another type; some thousands at most."""
    if len(columns) == 1:
        return columns[0].in_([key[0] for key in keys])
    return tuple_(*columns).in_(keys)


def _array(values: list[Any], type_: Any) -> Any:
    # Not every driver says of which type its list is.
    return cast(literal(values, ARRAY(type_)), ARRAY(type_))
