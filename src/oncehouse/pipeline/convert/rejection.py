"""Why a message could not become a row: the words that dead letters carry.

A rejection names the message by its place in the block, and the field by its path; it never repeats the
payload, which the dead letter keeps anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from oncehouse.common.formatting import escape_unprintable

_LONGEST_DETAIL = 200


class Reason(StrEnum):
    NOT_JSON = "not_json"
    NOT_AN_OBJECT = "not_an_object"
    SEVERAL_OBJECTS = "several_objects"
    EMPTY = "empty"
    BAD_UTF8 = "bad_utf8"
    WRONG_TYPE = "wrong_type"
    OUT_OF_RANGE = "out_of_range"
    MISSING_FIELD = "missing_field"
    DUPLICATE_KEY = "duplicate_key"
    TOO_BIG = "too_big"
    TOO_DEEP = "too_deep"
    MALFORMED = "malformed"
    """The bytes do not follow the format or its schema."""
    UNSUPPORTED = "unsupported"
    """The message is sound, but what it says cannot be a row."""
    NOT_TRANSFORMED = "not_shaped"
    """Decoded, but what should be computed from it could not be."""
    SCHEMA_UNKNOWN = "schema_unknown"
    """Its schema is not known, and it cannot wait for it any longer."""


@dataclass(frozen=True, kw_only=True)
class Rejection:
    index: int
    """Place of the message in the block that was decoded."""
    reason: Reason
    detail: str
    """Names the field and what was wrong with it, in a line."""


@dataclass(frozen=True, kw_only=True)
class RejectionCause:
    """A reason that is not yet tied to a message."""

    reason: Reason
    detail: str

    def at(self, index: int) -> Rejection:
        return Rejection(index=index, reason=self.reason, detail=shorten(self.detail))


def shorten(text: str) -> str:
    """One printable line: names come from the message, and may hold anything, half surrogates included."""
    return escape_unprintable(text, longest=_LONGEST_DETAIL - 1)
