"""The sections of the pipeline file that belong to one format each.

What a section says is checked here; whether it stands with its format is `pipeline.py`, what is made of it are the
formats themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from oncehouse.config.base import Section
from oncehouse.config.field_types import (
    Name,
    RegistryUrl,
    Seconds,
    check_mark,
    check_pattern,
    refuse_needless_ca,
    refuse_repeats,
)

Mark = Annotated[str, AfterValidator(check_mark)]
Pattern = Annotated[str, AfterValidator(check_pattern)]


class Registry(Section):
    url: RegistryUrl
    """Address of a registry with Confluent's interface, such as https://registry:8081."""
    user: Name | None = None
    """User for basic authentication."""
    password: SecretStr = SecretStr("")
    """The user's password; take it from the environment or a file."""
    verify_tls: bool = True
    """Whether the server's certificate is checked when the address begins with https."""
    ca_file: str | None = None
    """Certificates to trust (PEM) instead of the system's; relative to the pipeline file."""
    timeout: Seconds = Field(default=10.0, gt=0)
    """How long to wait for an answer."""

    @model_validator(mode="after")
    def _certificates_are_used(self) -> Self:
        refuse_needless_ca(self.url, self.ca_file)
        return self


class Avro(Section):
    version: Literal["prefix", "header", "none"] = "prefix"
    """Where a record names its schema: a registry's wire prefix, a header, or nowhere (one schema for all)."""
    header: Name = "schema-version"
    """The header that holds the schema's version, for `version: header`."""
    schemas: dict[Name, str] = Field(default_factory=dict)
    """Version and schema file (.avsc), oldest first; relative to the pipeline file."""
    registry: Registry | None = None
    """Where schemas come from that are not listed; what was found once is kept in the ledger."""
    aliases: dict[Name, tuple[Name, ...]] = Field(default_factory=dict)
    """Declared field and the names that it has in other versions, such as `id: [event_id]`; they count in
    addition to the aliases of the schemas. Of a path the last step: `user.id: [uid]`."""

    @model_validator(mode="after")
    def _schemas_can_be_had(self) -> Self:
        if self.version == "none" and (len(self.schemas) != 1 or self.registry):
            raise ValueError("`version: none` needs exactly one entry in `schemas`, and no registry")
        if not self.schemas and self.registry is None:
            raise ValueError("list `schemas`, or name a `registry` that has them")
        return self


class Csv(Section):
    delimiter: Mark = ","
    """What stands between two columns: one character."""
    quote: Mark | None = '"'
    """What may stand around a value, doubled inside it; null when nothing does."""
    columns: tuple[Name, ...] | None = Field(default=None, min_length=1)
    """Names of the columns in their order; the declared fields when left out."""
    header: bool = False
    """Whether each record begins with a line of names, which is passed over."""
    null: str = ""
    """The text that means null, where it stands without quotes and the field is Nullable."""

    @model_validator(mode="after")
    def _marks_differ(self) -> Self:
        if self.delimiter == self.quote:
            raise ValueError("`delimiter` and `quote` are the same")
        refuse_repeats(self.columns or ())
        return self


class Text(Section):
    pattern: Pattern | None = None
    """Regular expression (RE2) whose named groups are the fields; without one, the one field is the whole text."""
    lines: bool = False
    """Whether each line of a record is an event of its own."""


class Debezium(Section):
    decimals: Literal["precise", "text"] = "precise"
    """How decimals are written where the envelope has no schema; see the connector's decimal.handling.mode."""


# The table, the row's key and the place in the database's log: what makes a change the same change.
DEBEZIUM_IDENTITY = {"_table": "String", "_key": "String", "_position": "String"}


def check_format_fields(format_: str, fields: Mapping[str, str], csv: Csv | None, text: Text | None) -> None:
    """What declared fields a line can fill: scalars that its columns or groups name."""
    from oncehouse.column_types.parser import parse_type  # Arrow comes with it
    from oncehouse.column_types.types import Array, Map, Tuple, bare  # Arrow comes with it

    if format_ not in {"csv", "text"}:
        return
    for name, type_ in fields.items():
        if isinstance(bare(parse_type(type_)), Array | Map | Tuple):
            raise ValueError(f"field {name!r} is {type_}; {format_} has scalar fields only")  # noqa: TRY004
    if format_ == "csv":
        _require_known(fields, csv.columns if csv else None, "source.csv.columns")
    elif text is not None and text.pattern is not None:
        _require_known(fields, name_groups(text.pattern), "a named group of source.text.pattern")
    elif len(fields) > 1:
        raise ValueError("a text without a pattern fills one field; declare one, or give text.pattern")


def _require_known(fields: Mapping[str, str], known: Iterable[str] | None, where: str) -> None:
    names = set(fields) if known is None else set(known)
    for name in fields:
        if name not in names:
            raise ValueError(f"field {name!r} is not in {where}")


def name_groups(pattern: str) -> tuple[str, ...]:
    """The named groups of a regular expression."""
    import pyarrow as pa  # few commands need it
    import pyarrow.compute as pc

    found = pc.extract_regex(pa.array([], pa.string()), pattern)
    return tuple(field.name for field in found.type)
