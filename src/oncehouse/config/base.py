"""What all sections of a file of settings have in common: frozen, strict about keys, and careful with secrets.

Building a section by hand raises ConfigurationError with the same wording as the file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic._internal._model_construction import ModelMetaclass

from oncehouse.common.redaction import hide_credentials, remember_section
from oncehouse.config.problems import explain, format_problems
from oncehouse.errors import ConfigurationError

SectionT = TypeVar("SectionT", bound="Section")


class SectionType(ModelMetaclass):
    """Words the problems of a section that is built by hand; pydantic builds nested ones without this."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except ValidationError as error:
            problems = explain(error, section=self)
        raise ConfigurationError(format_problems(problems, where=self.__name__))


class Section(BaseModel, metaclass=SectionType):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    def model_post_init(self, _context: Any, /) -> None:
        remember_section(self)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, hide_credentials(value) if isinstance(value, str) else value
