"""An expectation as it is written in a lineage file, and as the table `Lineage` keeps it: checked, then frozen.

Each kind of check has its own keys; one that has no meaning is refused, so that no one relies on it in vain.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, StrictFloat, StrictInt, StrictStr, model_validator

from oncehouse.config.field_types import Name, refuse_repeats
from oncehouse.config.pipeline import Section
from oncehouse.config.problems import nearest
from oncehouse.etl.lineage.topic import Expectation, ExpectationKind, Otherwise

_PERCENT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*")
_NUMBERS = (ExpectationKind.ROWS, ExpectationKind.ROWS_PER_SOURCE_ROW, ExpectationKind.NULL_SHARE)


def parse_share(value: object) -> object:
    """A share from "5%" or 0.05."""
    if isinstance(value, bool):
        raise ValueError("must be a share, such as 0.05 or 5%")  # noqa: TRY004 - pydantic collects ValueErrors
    found = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    return float(found[1]) / 100 if found else value


def _refuse_switch(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number or a text, not true or false")  # noqa: TRY004
    return parse_share(value)


def _one_or_more(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _known(word: type[ExpectationKind | Otherwise]) -> BeforeValidator:
    def check(value: object) -> object:
        known = [one.value for one in word]
        if value in known:
            return value
        meant = nearest(value, known) if isinstance(value, str) else None
        raise ValueError(f"must be {', '.join(known)}" + (f'; did you mean "{meant}"?' if meant else ""))

    return BeforeValidator(check)


Share = Annotated[float, BeforeValidator(parse_share), Field(ge=0, le=1)]
Bound = Annotated[StrictInt | StrictFloat | StrictStr, BeforeValidator(_refuse_switch)]


class ExpectationSection(Section):
    check: Annotated[ExpectationKind, _known(ExpectationKind)]
    """`rows`, `rows_per_source_row`, `null_share`, `value` or `unique`."""
    column: Annotated[tuple[Name, ...], BeforeValidator(_one_or_more)] = ()
    """For `null_share` and `value`: the column. For `unique`: one, or a list of those that are unique together."""
    at_least: Bound | None = None
    """The least that is right: a number, a share such as 5%, or for `value` a text or time."""
    at_most: Bound | None = None
    """The most that is right."""
    otherwise: Annotated[Otherwise, _known(Otherwise)] = Otherwise.STOP
    """`stop`: the rows do not go in. `warn`: they do, and a warning says so."""

    @model_validator(mode="after")
    def _require_keys_of_the_check(self) -> Self:
        refuse_repeats(self.column)
        self._check_columns()
        self._check_bounds()
        return self

    def _check_columns(self) -> None:
        if self.check in (ExpectationKind.ROWS, ExpectationKind.ROWS_PER_SOURCE_ROW) and self.column:
            raise ValueError(f"{self.check} counts rows and looks at no column; remove `column`")
        if self.check in (ExpectationKind.NULL_SHARE, ExpectationKind.VALUE) and len(self.column) != 1:
            raise ValueError(f"{self.check} looks at one column; name it as `column`")
        if self.check == ExpectationKind.UNIQUE and not self.column:
            raise ValueError("unique needs `column`: one, or a list of those that are unique together")

    def _check_bounds(self) -> None:
        bounds = [bound for bound in (self.at_least, self.at_most) if bound is not None]
        if self.check == ExpectationKind.UNIQUE:
            if bounds:
                raise ValueError("unique has no bounds; remove at_least and at_most")
            return
        if not bounds:
            raise ValueError(f"{self.check} needs at_least, at_most or both")
        if self.check in _NUMBERS and any(isinstance(bound, str) or bound < 0 for bound in bounds):
            raise ValueError(f"{self.check} is compared with numbers from 0 on")
        if self.check == ExpectationKind.NULL_SHARE and any(
            bound > 1 for bound in bounds if not isinstance(bound, str)
        ):
            raise ValueError("null_share is between 0 and 1, or 0% and 100%")
        least, most = self.at_least, self.at_most
        if isinstance(least, str) != isinstance(most, str):
            if least is not None and most is not None:
                raise ValueError("at_least and at_most must be of one kind, both numbers or both texts")
        elif least is not None and most is not None and least > most:  # type: ignore[operator]
            raise ValueError(f"at_least ({least}) must not be greater than at_most ({most})")


def make_expectation(section: ExpectationSection) -> Expectation:
    return Expectation(
        check=section.check,
        columns=section.column,
        at_least=section.at_least,
        at_most=section.at_most,
        otherwise=section.otherwise,
    )


def write_expectation(expectation: Expectation) -> str:
    """As the table keeps it: the keys of the file, without those that say nothing."""
    keys = {
        "check": expectation.check,
        "column": list(expectation.columns) or None,
        "at_least": expectation.at_least,
        "at_most": expectation.at_most,
        "otherwise": expectation.otherwise,
    }
    return json.dumps({key: value for key, value in keys.items() if value is not None}, ensure_ascii=False)


def read_expectation(text: str) -> Expectation:
    return make_expectation(ExpectationSection.model_validate(json.loads(text)))
