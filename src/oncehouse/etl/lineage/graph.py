"""The lineage as a whole: who is made of whom, in which order, and what cannot be. Pure.

A topic without `depends_on` declares a source: a Stage table that another program fills. Every table in a
`depends_on` must be the `dst` of a topic, so that a misspelt name is found before any data moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from graphlib import CycleError, TopologicalSorter

from oncehouse.config.problems import nearest
from oncehouse.etl.lineage.topic import GATE_SHARE, ExpectationKind, Template, Topic


@dataclass(frozen=True, kw_only=True)
class LineageProblem:
    topic: str
    """The topic whose line is wrong."""
    key: str
    """The key of that line."""
    text: str


@dataclass(frozen=True, kw_only=True)
class LineageChange:
    """How one topic of the folder differs from the table in ClickHouse."""

    topic: str
    kind: str
    """`added`, `removed` or `changed`."""
    keys: tuple[str, ...] = ()
    """For `changed`: which keys."""


def check_lineage(lineage: Sequence[Topic]) -> tuple[LineageProblem, ...]:
    """Everything wrong with the lineage itself; empty when it is sound."""
    problems = [*_find_repeats(lineage), *_find_unknown_sources(lineage), *_find_wrong_keys(lineage)]
    # Cycles are looked for last and only in what is otherwise sound: a repeated dst would make false ones.
    return tuple(problems or _find_cycle(lineage))


def makers_by_table(lineage: Iterable[Topic]) -> dict[str, Topic]:
    """Table and the topic whose `dst` it is."""
    return {topic.dst: topic for topic in lineage}


def order_topics(lineage: Sequence[Topic]) -> tuple[Topic, ...]:
    """Every topic after all that it depends on; otherwise as in the files. The lineage has no cycle."""
    makers = makers_by_table(lineage)
    done: dict[str, Topic] = {}

    def visit(topic: Topic) -> None:
        if topic.topic in done:
            return
        for table in topic.depends_on:
            if table in makers:
                visit(makers[table])
        done[topic.topic] = topic

    for topic in lineage:
        visit(topic)
    return tuple(done.values())


def compare_lineage(wanted: Sequence[Topic], stored: Sequence[Topic]) -> tuple[LineageChange, ...]:
    """What has to change in the stored lineage to become the wanted one, by topic name."""
    new, old = ({topic.topic: topic for topic in lines} for lines in (wanted, stored))
    changes = [LineageChange(topic=name, kind="added") for name in new.keys() - old.keys()]
    changes += [LineageChange(topic=name, kind="removed") for name in old.keys() - new.keys()]
    for name in new.keys() & old.keys():
        if keys := _different_keys(new[name], old[name]):
            changes.append(LineageChange(topic=name, kind="changed", keys=keys))
    return tuple(sorted(changes, key=lambda change: change.topic))


def _different_keys(new: Topic, old: Topic) -> tuple[str, ...]:
    return tuple(key.name for key in fields(Topic) if getattr(new, key.name) != getattr(old, key.name))


def _find_repeats(lineage: Sequence[Topic]) -> Iterable[LineageProblem]:
    makers: dict[str, str] = {}
    names: set[str] = set()
    for topic in lineage:
        if topic.topic in names:
            yield LineageProblem(
                topic=topic.topic, key="topic", text=f"the topic {topic.topic!r} stands in the lineage twice"
            )
        elif topic.dst in makers:
            yield LineageProblem(
                topic=topic.topic,
                key="dst",
                text=f"{topic.dst} is already built by the topic {makers[topic.dst]!r}; "
                "one table has one topic, else neither knows which rows are its own",
            )
        names.add(topic.topic)
        makers.setdefault(topic.dst, topic.topic)


def _find_unknown_sources(lineage: Sequence[Topic]) -> Iterable[LineageProblem]:
    known = makers_by_table(lineage)
    for topic in lineage:
        for table in topic.depends_on:
            if table == topic.dst:
                yield LineageProblem(
                    topic=topic.topic, key="depends_on", text=f"{table} would be made of itself; remove it"
                )
            elif table not in known:
                yield LineageProblem(topic=topic.topic, key="depends_on", text=_advise_unknown(table, known))
        for table in sorted({table for table in topic.depends_on if topic.depends_on.count(table) > 1}):
            yield LineageProblem(
                topic=topic.topic, key="depends_on", text=f"{table} stands in the list more than once"
            )


def _advise_unknown(table: str, known: Mapping[str, Topic]) -> str:
    lowered = {name.lower(): name for name in known}
    meant = nearest(table, lowered)
    if meant is not None:
        return f'no topic has the dst {table}; did you mean "{lowered[meant]}"?'
    return (
        f"no topic has the dst {table}; declare the source with a line `topic:` and `dst: {table}` of its own"
    )


def _find_wrong_keys(lineage: Sequence[Topic]) -> Iterable[LineageProblem]:
    for topic in lineage:
        for key, text in (*_find_misplaced(topic), *_find_vain_expectations(topic)):
            yield LineageProblem(topic=topic.topic, key=key, text=text)


def _find_misplaced(topic: Topic) -> Iterable[tuple[str, str]]:
    """Keys that the topic's template needs, or has no use for."""
    template = topic.template
    if template == Template.RANGE and topic.range_column is None:
        yield "range_column", "a range replaces partitions by time; name the DateTime column of the dst"
    if template != Template.RANGE and topic.range_column is not None:
        yield "range_column", f"has no meaning with the template {template!r}"
    if template == Template.STEP and topic.gate_share != GATE_SHARE:
        yield "gate", "has no meaning with a step, which replaces nothing; `expect` looks at its rows"
    if topic.parameters and topic.template_file is None:
        yield "parameters", "are for a template of your own; name its file as `template`"
    has_work = topic.transform is not None or topic.template_file is not None or topic.expect
    if topic.is_source and (has_work or template != Template.STEP):
        yield (
            "depends_on",
            "is missing: a line without it only declares a source, and this one has work to do",
        )


def _find_vain_expectations(topic: Topic) -> Iterable[tuple[str, str]]:
    for expectation in topic.expect:
        if expectation.check != ExpectationKind.ROWS_PER_SOURCE_ROW:
            continue
        if topic.template == Template.RANGE:
            yield "expect", "rows_per_source_row: a range covers whole partitions, not the source's new rows"
        elif not topic.depends_on:
            yield "expect", "rows_per_source_row: there is no `depends_on`, so no source to count"


def _find_cycle(lineage: Sequence[Topic]) -> Iterable[LineageProblem]:
    makers = makers_by_table(lineage)
    graph = {topic.topic: [makers[table].topic for table in topic.depends_on] for topic in lineage}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = error.args[1]  # in the direction of the data: each feeds the next
        first = min(circle[:-1])
        at = circle.index(first)
        turned = [*circle[at:-1], *circle[:at], first]
        yield LineageProblem(
            topic=first,
            key="depends_on",
            text=f"goes round in a circle: {' → '.join(turned)}; no step of it could ever be the first",
        )
