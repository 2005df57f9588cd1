"""Events that fit a pipeline: every one made from its number alone, so that a repeated number is a repeated event.

Fields of the identity are enumerated, so that it is known how many different events there are; fields that routes and
expressions ask for get the values that they ask for; all else is chance under the seed.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oncehouse.column_types import types as c
from oncehouse.devstack.chaos.generators.factory import (
    SAMPLE_ADVICE,
    GeneratedRecord,
    RecordWriter,
    writer_of,
)
from oncehouse.devstack.chaos.generators.values import capacity, nth_value, some_value
from oncehouse.errors import ConfigurationError
from oncehouse.pipeline.dedup.identity_rule import Rule, rule_of
from oncehouse.pipeline.schema.discovery import declared_schemas

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline

_FEW = 3
_OTHER_NUMBER = 7
_LITERAL = re.compile(r"'((?:[^'\\]|'')*)'")

Steps = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class EventMaker:
    """Makes records out of the numbers of events."""

    writer: RecordWriter
    rule: Rule
    choices: Mapping[str, tuple[Any, ...]]
    """Values of a field that decide about routes and filters."""
    radices: Mapping[Steps, int]
    """How many values each field of the identity takes, in the order in which numbers are taken apart."""
    events: int
    """How many different events there are."""
    seed: int
    moderate: bool

    def record(self, numbers: Sequence[int]) -> GeneratedRecord:
        """One record with the events of these numbers; key and headers are those of the first."""
        text = f"event-{numbers[0]}".encode()
        headers = tuple((name, text) for name in self.rule.headers)
        return GeneratedRecord(
            value=self.writer.write([self.values(number) for number in numbers]),
            key=text,
            headers=(*self.writer.headers, *headers),
        )

    def values(self, number: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        awkward = self.writer.awkward and not self.moderate
        for name, type_ in self.writer.types.items():
            rng = random.Random(f"{self.seed} {number} {name}")  # noqa: S311 - made to be repeated
            if name in self.choices:
                made[name] = rng.choice(self.choices[name])
            else:
                made[name] = some_value(type_, rng, awkward=awkward)
        for steps, value in self.identity(number).items():
            holder = made
            for step in steps[:-1]:
                holder = holder[step]
            holder[steps[-1]] = value
        return made

    def identity(self, number: int) -> dict[Steps, Any]:
        """The values of the identity's fields, which no other event has together."""
        found = {}
        for steps, radix in self.radices.items():
            number, digit = divmod(number, radix)
            chosen = self.choices.get(steps[0]) if len(steps) == 1 else None
            found[steps] = chosen[digit] if chosen else nth_value(_type_at(steps, self.writer.types), digit)
        return found


def event_maker(pipeline: Pipeline, *, wanted: int, seed: int) -> EventMaker:
    """A maker of `wanted` different events, or of as many as the fields of the identity allow."""
    writer = writer_of(pipeline)
    rule = rule_of(pipeline, declared_schemas(pipeline))
    _require_fields(rule, writer)
    choices = find_choices(pipeline, writer.types)
    radices = _share_out(_capacities(rule, writer, choices), wanted)
    if math.prod(radices.values()) < wanted:
        # What a filter asks for is of no use where it leaves too few different events.
        choices = {name: values for name, values in choices.items() if (name,) not in rule.fields}
        radices = _share_out(_capacities(rule, writer, choices), wanted)
    events = wanted
    if not (rule.key or rule.headers):
        events = min(wanted, math.prod(radices.values()))
    elif writer.several > 1:
        # Events of one record share its key, so that a record is to hold one of them.
        writer = _one_by_one(writer)
    return EventMaker(
        writer=writer,
        rule=rule,
        choices=choices,
        radices=radices,
        events=events,
        seed=seed,
        moderate=bool(pipeline.shape.model_fields_set) or any(table.route for table in pipeline.tables),
    )


def _capacities(rule: Rule, writer: RecordWriter, choices: Mapping[str, tuple[Any, ...]]) -> dict[Steps, int]:
    return {
        steps: len(choices[steps[0]])
        if len(steps) == 1 and steps[0] in choices
        else capacity(_type_at(steps, writer.types))
        for steps in rule.fields
    }


def _one_by_one(writer: RecordWriter) -> RecordWriter:
    return RecordWriter(
        types=writer.types, write=writer.write, headers=writer.headers, awkward=writer.awkward
    )


def _require_fields(rule: Rule, writer: RecordWriter) -> None:
    for steps in rule.fields:
        if steps[0] not in writer.types:
            raise ConfigurationError(
                f"identity.fields names {'.'.join(steps)!r}, which the newest schema does not have; {SAMPLE_ADVICE}"
            )


def _type_at(steps: Steps, types: Mapping[str, c.ColumnType]) -> c.ColumnType:
    type_ = types[steps[0]]
    for step in steps[1:]:
        holder = c.bare(type_)
        if not isinstance(holder, c.Tuple):
            raise AssertionError(steps)  # noqa: TRY004 - the rule was resolved over these very types
        type_ = dict(holder.fields)[step]
    return type_


def _share_out(capacities: Mapping[Steps, int], wanted: int) -> dict[Steps, int]:
    """Few values for all fields but the widest; all that they have where even that is too few."""
    if not capacities:
        return {}
    widest = max(capacities, key=lambda steps: capacities[steps])
    few = {steps: min(found, _FEW) for steps, found in capacities.items() if steps != widest}
    if math.prod([*few.values(), capacities[widest]]) < wanted:
        few = {steps: capacities[steps] for steps in few}
    return {**few, widest: capacities[widest]}


def find_choices(pipeline: Pipeline, types: Mapping[str, c.ColumnType]) -> dict[str, tuple[Any, ...]]:
    """For fields that routes and expressions look at: the values that stand there, and one that does not."""
    found: dict[str, list[Any]] = {}
    for table in pipeline.tables:
        if table.route is not None and table.route.field in types:
            found.setdefault(str(table.route.field), []).extend(table.route.values or ())
    for text in _expressions(pipeline):
        literals = [literal.replace("''", "'") for literal in _LITERAL.findall(text)]
        for name in types:
            if literals and re.search(rf"\b{re.escape(name)}\b", _LITERAL.sub("", text)):
                found.setdefault(name, []).extend(literals)
    chosen = {name: _keep_valid(types[name], values) for name, values in found.items()}
    return {name: values for name, values in chosen.items() if values}


def _expressions(pipeline: Pipeline) -> Iterator[str]:
    shape = pipeline.shape
    texts = (shape.where, *(column.sql for column in shape.columns.values()))
    routes = (table.route.where for table in pipeline.tables if table.route is not None)
    return (text for text in (*texts, *routes) if text)


def _keep_valid(type_: c.ColumnType, values: Sequence[Any]) -> tuple[Any, ...]:
    match c.bare(type_):
        case c.String():
            return tuple(dict.fromkeys([*(str(value) for value in values), "other"]))
        case c.Enum(members=members):
            known = [name for name, _ in members]
            return tuple(dict.fromkeys([*(value for value in values if value in known), known[-1]]))
        case c.Integer(least=least, greatest=greatest):
            numbers = [value for value in values if type(value) is int and least <= value <= greatest]
            return tuple(dict.fromkeys([*numbers, _OTHER_NUMBER])) if numbers else ()
        case _:
            return ()
