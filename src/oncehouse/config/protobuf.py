"""The section `source.protobuf`: where schemas come from, and how a record names the one it was written with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from oncehouse.config.base import Section
from oncehouse.config.field_types import FieldNumbers, Name
from oncehouse.config.formats import Registry
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from oncehouse.protobuf.definition import Definition


class ProtobufSchema(Section):
    files: tuple[str, ...] = ()
    """`.proto` files, relative to the pipeline file; what they import is found next to them or under `include`."""
    descriptor_set: str | None = None
    """A file of descriptors that protoc has written with --include_imports, instead of `files`."""
    message: Name | None = None
    """Full name of the message, with its package; `message` of the section when left out."""

    @model_validator(mode="after")
    def _has_one_place(self) -> Self:
        if bool(self.files) == (self.descriptor_set is not None):
            raise ValueError("give either `files` or `descriptor_set`")
        return self


class ProtobufEnvelope(ProtobufSchema):
    field: Name
    """Field that holds the version: a number or a text; a path through nested messages."""
    body: Name | None = None
    """Field with the bytes of the actual message; the record itself is that message when left out."""


class Protobuf(Section):
    message: Name | None = None
    """Full name of the message, with its package, where a schema names none."""
    include: tuple[str, ...] = ()
    """Folders in which imports are looked for, relative to the pipeline file; each file's own when left out."""
    schemas: dict[Name, ProtobufSchema] = Field(default_factory=dict)
    """Version and where its schema stands, oldest first."""
    version: Literal["none", "header", "prefix", "field"] = "none"
    """Where a record names its version: nowhere (one schema), a header, a registry's wire prefix, a field."""
    header: Name = "schema-version"
    """The header that holds the version, for `version: header`."""
    without_header: Name | None = None
    """The version of records that have no such header; they are dead letters when left out."""
    envelope: ProtobufEnvelope | None = None
    """The message that every version can be read as, for `version: field`."""
    registry: Registry | None = None
    """Where schemas come from that are not listed, for `version: prefix`; the ledger keeps what was found."""
    match: Literal["name", "number"] = "name"
    """How a version's field is found: by the declared name, or by the number that this name has in the versions that
    know it. By number where fields are renamed and numbers are never used for anything else."""
    numbers: dict[Name, FieldNumbers] = Field(default_factory=dict)
    """Declared fields that are found by number, whatever `match` says: `id: 1`, or a step each: `user.id: [4, 1]`."""

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def _problems(self) -> list[str]:
        found = []
        if self.version == "none" and len(self.schemas) != 1:
            found.append("`version: none` needs exactly one entry in `schemas`")
        if (self.version == "field") != (self.envelope is not None):
            found.append("`version: field` and the section `envelope` stand together")
        if self.registry is not None and self.version != "prefix":
            found.append("`registry` stands only with `version: prefix`")
        if self.without_header is not None and self.version != "header":
            found.append("`without_header` stands only with `version: header`")
        found += [
            f"schemas.{version} names no message; name it there, or `message` for all"
            for version, schema in self.schemas.items()
            if schema.message is None and self.message is None
        ]
        if self.envelope is not None and self.envelope.message is None:
            found.append("`envelope` needs its own `message`")
        found += [
            f"numbers.{name} needs {name.count('.') + 1} numbers, one for each step of the path"
            for name, path in self.numbers.items()
            if len(path) != name.count(".") + 1
        ]
        return found

    def load(self, version: str) -> Definition:
        return self._load(self.schemas[version], f"schemas.{version}")

    def load_envelope(self) -> Definition:
        if self.envelope is None:
            raise AssertionError("there is no envelope")
        return self._load(self.envelope, "envelope")

    def _load(self, schema: ProtobufSchema, place: str) -> Definition:
        from oncehouse.protobuf.definition import (
            load_definition,
        )  # other formats need not wait for its library

        try:
            return load_definition(
                files=schema.files,
                include=self.include,
                descriptor_set=schema.descriptor_set,
                message=schema.message or self.message or "",
            )
        except ConfigurationError as error:
            raise ConfigurationError(f"source.protobuf.{place}: {error}") from None

    def derive(self) -> dict[str, str]:
        """Fields with their types as the newest listed version has them."""
        from oncehouse.protobuf.definition import describe
        from oncehouse.protobuf.fields import derive_fields  # Arrow comes with it

        return derive_fields(describe(self.load(list(self.schemas)[-1])))


def derive_missing_fields(data: Any) -> Any:
    """What `source` says, with fields taken from the schema where none are declared."""
    if not isinstance(data, dict) or data.get("format") != "protobuf" or data.get("fields") is not None:
        return data
    section = data.get("protobuf")
    try:
        section = Protobuf.model_validate(section)
    except ValidationError:
        return data  # the section itself reports it
    try:
        return {**data, "fields": section.derive()} if section.schemas else data
    except ConfigurationError as error:
        raise ValueError(str(error)) from None
