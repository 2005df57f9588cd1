"""The lineage as a tree for terminals: each table that no topic reads, and under it what it is made of. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from oncehouse.config.field_types import format_duration
from oncehouse.etl.lineage.graph import makers_by_table
from oncehouse.etl.lineage.topic import Topic


def describe_topic(topic: Topic) -> str:
    """What a topic is, in a few words."""
    if topic.is_source:
        return "source"
    words = [str(topic.template)]
    if topic.template_file is not None:
        words = [f"{topic.template} by {PurePath(topic.template_file).name}"]
    if topic.repeat_seconds:
        words.append(f"every {format_duration(topic.repeat_seconds)}")
    if topic.delay_seconds:
        words.append(f"{format_duration(topic.delay_seconds)} behind")
    return ", ".join(words)


def draw_tree(lineage: Sequence[Topic], states: Mapping[str, str] | None = None, *, width: int = 1000) -> str:
    """Each table that no topic reads, and under it what it is made of; the main source stands first.

    `states` are a topic's name and what it does now. A line that is longer than `width` becomes two.
    """
    makers = makers_by_table(lineage)
    used = {table for topic in lineage for table in topic.depends_on}
    tree = _Tree(makers=makers, states=states or {}, width=width)
    for topic in lineage:
        if topic.dst not in used:
            tree.draw(topic, "", "")
    return "\n".join(tree.lines)


@dataclass(frozen=True, kw_only=True)
class _Tree:
    makers: Mapping[str, Topic]
    states: Mapping[str, str]
    width: int
    shown: set[str] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)

    def draw(self, topic: Topic, lead: str, below: str) -> None:
        """`lead` stands before the topic's own line, `below` before those under it."""
        children = [self.makers[table] for table in topic.depends_on if table in self.makers]
        is_repeat = topic.topic in self.shown and bool(children)
        under = below + ("│   " if children and not is_repeat else "    ")
        self.lines.extend(self._format(topic, lead, under, is_repeat=is_repeat))
        self.shown.add(topic.topic)
        for child in () if is_repeat else children:
            branch, under = ("└── ", "    ") if child is children[-1] else ("├── ", "│   ")
            self.draw(child, below + branch, below + under)

    def _format(self, topic: Topic, lead: str, under: str, *, is_repeat: bool) -> list[str]:
        note = f"({'shown above' if is_repeat else describe_topic(topic)})"
        state = self.states.get(topic.topic, "") if not is_repeat else ""
        line = "  ".join(part for part in (f"{lead}{topic.topic}", topic.dst, note, state) if part)
        if len(line) <= self.width:
            return [line]
        return [
            f"{lead}{topic.topic}",
            f"{under}{topic.dst}",
            "  ".join(filter(None, (f"{under}{note}", state))),
        ]
