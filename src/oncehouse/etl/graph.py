"""The lineage as a picture: a tree for terminals, an SVG for everything else. Pure text in, pure text out.

Data flows from left to right in the SVG: a table stands one column to the right of the last of its sources.
Names are untrusted: whatever they hold, the SVG stays well-formed and holds no script.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from oncehouse.config_values import format_duration
from oncehouse.etl.lineage import is_source, makers_by_table, order_topics
from oncehouse.etl.records import Topic

_BOX_HEIGHT = 52
_ROW_HEIGHT = 72
_GAP = 70
_MARGIN = 20
_CHARACTER_WIDTH = 7.4  # of the 12 px monospace below, with a little air

_STYLE = (
    "text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#1f2328}"
    ".note{fill:#656d76;font-size:10px}"
    "rect{fill:#ffffff;stroke:#57606a;rx:6}"
    ".source rect{fill:#f6f8fa;stroke-dasharray:4 3}"
    "path{fill:none;stroke:#8c959f;stroke-width:1.3}"
    ".main{stroke:#0969da;stroke-width:2}"
)


@dataclass(frozen=True, kw_only=True)
class Box:
    """Where a topic stands in the SVG, in pixels."""

    topic: Topic
    column: int
    left: float
    top: float
    width: float


def describe_topic(topic: Topic) -> str:
    """What a topic is, in a few words."""
    if is_source(topic):
        return "source"
    words = [topic.template.rsplit("/", 1)[-1]]
    if topic.repeat_seconds:
        words.append(f"every {format_duration(topic.repeat_seconds)}")
    if topic.delay_seconds:
        words.append(f"{format_duration(topic.delay_seconds)} behind")
    return ", ".join(words)


def draw_tree(lineage: Sequence[Topic]) -> str:
    """Each table that nobody reads, and under it what it is made of; the main source stands first."""
    makers = makers_by_table(lineage)
    used = {table for topic in lineage for table in topic.depends_on}
    shown: set[str] = set()
    lines: list[str] = []
    for topic in lineage:
        if topic.dst not in used:
            _draw(topic, makers, shown, lines, ("", ""))
    return "\n".join(lines)


def _draw(
    topic: Topic, makers: Mapping[str, Topic], shown: set[str], lines: list[str], lead: tuple[str, str]
) -> None:
    """`lead` stands before the topic's own line, and before those under it."""
    again = topic.topic in shown and topic.depends_on
    note = "shown above" if again else describe_topic(topic)
    lines.append(f"{lead[0]}{topic.topic}  {topic.dst}  ({note})")
    shown.add(topic.topic)
    children = [makers[table] for table in topic.depends_on if table in makers]
    for child in () if again else children:
        last = child is children[-1]
        branch, below = ("└── ", "    ") if last else ("├── ", "│   ")
        _draw(child, makers, shown, lines, (lead[1] + branch, lead[1] + below))


def place_boxes(lineage: Sequence[Topic]) -> tuple[Box, ...]:
    """Columns by the longest way from a source, rows in the order of the files."""
    makers = makers_by_table(lineage)
    columns: dict[str, int] = {}
    for topic in order_topics(lineage):
        ahead = [columns[makers[table].topic] for table in topic.depends_on if table in makers]
        columns[topic.topic] = max(ahead, default=-1) + 1
    widths = {
        column: max(_width(topic) for topic in lineage if columns[topic.topic] == column)
        for column in set(columns.values())
    }
    boxes, rows = [], dict.fromkeys(widths, 0)
    for topic in lineage:
        column = columns[topic.topic]
        left = _MARGIN + sum(widths[at] + _GAP for at in range(column))
        top = _MARGIN + rows[column] * _ROW_HEIGHT
        boxes.append(Box(topic=topic, column=column, left=left, top=top, width=widths[column]))
        rows[column] += 1
    return tuple(boxes)


def _width(topic: Topic) -> float:
    longest = max(len(topic.topic), len(topic.dst), len(describe_topic(topic)))
    return 24 + longest * _CHARACTER_WIDTH


def draw_svg(lineage: Sequence[Topic]) -> str:
    """One SVG document. Thick lines lead from the main source, whose rows make the steps."""
    boxes = place_boxes(lineage)
    by_table = {box.topic.dst: box for box in boxes}
    width = max((box.left + box.width for box in boxes), default=0) + _MARGIN
    height = max((box.top + _BOX_HEIGHT for box in boxes), default=0) + _MARGIN
    size = f'width="{width:.0f}" height="{height:.0f}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="lineage">',
        f"<style>{_STYLE}</style>",
        f'<rect {size} style="fill:#ffffff;stroke:none"/>',
    ]
    for box in boxes:
        lines += [
            _draw_line(by_table[table], box, is_main=at == 0)
            for at, table in enumerate(box.topic.depends_on)
            if table in by_table
        ]
    lines += [_draw_box(box) for box in boxes]
    return "\n".join([*lines, "</svg>\n"])


def _draw_line(start: Box, end: Box, *, is_main: bool) -> str:
    x1, y1 = start.left + start.width, start.top + _BOX_HEIGHT / 2
    x2, y2 = end.left, end.top + _BOX_HEIGHT / 2
    bend = x1 + _GAP / 2, x2 - _GAP / 2
    kind = ' class="main"' if is_main else ""
    title = f"<title>{escape(start.topic.dst)} → {escape(end.topic.dst)}</title>"
    curve = f"M{x1:.0f},{y1:.0f} C{bend[0]:.0f},{y1:.0f} {bend[1]:.0f},{y2:.0f} {x2:.0f},{y2:.0f}"
    return f'<path{kind} d="{curve}">{title}</path>'


def _draw_box(box: Box) -> str:
    topic, x = box.topic, f"{box.left + 12:.0f}"
    comment = f"<title>{escape(topic.comment)}</title>" if topic.comment else ""
    kind = ' class="source"' if is_source(topic) else ""
    return (
        f"<g{kind}>{comment}"
        f'<rect x="{box.left:.0f}" y="{box.top:.0f}" width="{box.width:.0f}" height="{_BOX_HEIGHT}"/>'
        f'<text x="{x}" y="{box.top + 18:.0f}">{escape(topic.topic)}</text>'
        f'<text x="{x}" y="{box.top + 32:.0f}" class="note">{escape(topic.dst)}</text>'
        f'<text x="{x}" y="{box.top + 44:.0f}" class="note">{escape(describe_topic(topic))}</text></g>'
    )
