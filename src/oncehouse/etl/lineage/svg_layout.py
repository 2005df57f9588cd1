"""Where topics stand in a picture of the lineage, and which way the lines between them go. Pure geometry.

Data flows from left to right. A topic stands one column to the right of the last of its sources; a source stands as
near to its first reader as it can. A line that passes a column gets a place of its own in it, so no line runs under
a box. The order within columns is swept until fewer lines cross no more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from statistics import fmean

from oncehouse.etl.lineage.graph import makers_by_table, order_topics
from oncehouse.etl.lineage.topic import Topic

BOX_HEIGHT = 58
MARGIN = 20
_SPACE = 18
_LINE_SPACE = 14
_LEAST_GAP, _MOST_GAP = 64, 140
_PORT_SPACE = 9
_SWEEPS = 12


@dataclass(frozen=True, kw_only=True)
class Box:
    """Where a topic stands, in pixels."""

    topic: Topic
    column: int
    left: float
    top: float
    width: float

    @property
    def right(self) -> float:
        return self.left + self.width


@dataclass(frozen=True, kw_only=True)
class Line:
    """From a source to what is made of it. Each pair of points is joined: first by a bend, then straight on, …"""

    source: Topic
    reader: Topic
    is_main: bool
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, kw_only=True)
class Layout:
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    width: float
    height: float


@dataclass(eq=False)
class _GraphNode:
    """A topic, or the place where a line passes a column."""

    column: int
    topic: Topic | None = None
    before: list[_GraphNode] = field(default_factory=list)
    after: list[_GraphNode] = field(default_factory=list)
    middle: float = 0.0

    @property
    def height(self) -> float:
        return BOX_HEIGHT if self.topic else 0.0


def lay_out(lineage: Sequence[Topic], width_of: Callable[[Topic], float]) -> Layout:
    nodes, routes = _make_nodes(lineage)
    columns = _make_columns(nodes)
    _order(columns)
    _settle(columns)
    lefts, widths = _place_columns(columns, routes, width_of)
    top = min((node.middle - BOX_HEIGHT / 2 for node in nodes), default=0.0) - MARGIN
    boxes = tuple(
        Box(
            topic=node.topic,
            column=node.column,
            left=lefts[node.column],
            top=node.middle - BOX_HEIGHT / 2 - top,
            width=widths[node.column],
        )
        for node in nodes
        if node.topic
    )
    ports = _spread_ports(routes)
    lines = tuple(_draw_route(route, ports, lefts, widths, top) for route in routes)
    return Layout(
        boxes=boxes,
        lines=lines,
        width=max((box.right for box in boxes), default=0.0) + MARGIN,
        height=max((box.top + BOX_HEIGHT for box in boxes), default=0.0) + MARGIN,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _LinkRoute:
    nodes: tuple[_GraphNode, ...]
    """From the source's box, through places in columns between, to the reader's."""
    is_main: bool


def find_columns(lineage: Sequence[Topic]) -> dict[str, int]:
    """Topic and its column, counted from the left."""
    makers = makers_by_table(lineage)
    columns: dict[str, int] = {}
    for topic in order_topics(lineage):
        ahead = [columns[makers[table].topic] for table in topic.depends_on if table in makers]
        columns[topic.topic] = max(ahead, default=-1) + 1
    for topic in lineage:
        readers = [columns[one.topic] for one in lineage if topic.dst in one.depends_on]
        if not topic.depends_on and readers:
            columns[topic.topic] = min(readers) - 1
    return columns


def _make_nodes(lineage: Sequence[Topic]) -> tuple[list[_GraphNode], list[_LinkRoute]]:
    columns, makers = find_columns(lineage), makers_by_table(lineage)
    boxes = {topic.topic: _GraphNode(column=columns[topic.topic], topic=topic) for topic in lineage}
    nodes, routes = list(boxes.values()), []
    for topic in lineage:
        for number, table in enumerate(topic.depends_on):
            if table not in makers:
                continue
            start, end = boxes[makers[table].topic], boxes[topic.topic]
            passed = [_GraphNode(column=at) for at in range(start.column + 1, end.column)]
            way = (start, *passed, end)
            for left, right in pairwise(way):
                left.after.append(right)
                right.before.append(left)
            nodes += passed
            routes.append(_LinkRoute(nodes=way, is_main=number == 0))
    return nodes, routes


def _make_columns(nodes: Sequence[_GraphNode]) -> list[list[_GraphNode]]:
    columns: list[list[_GraphNode]] = [
        [] for _ in range(max((node.column for node in nodes), default=-1) + 1)
    ]
    for node in nodes:
        columns[node.column].append(node)
    return columns


def _order(columns: list[list[_GraphNode]]) -> None:
    """Nodes near those they are joined with; the order with the fewest crossings is kept."""
    best, fewest = [list(column) for column in columns], _count_crossings(columns)
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        for column in columns if forward else reversed(columns):
            _sort_column(column, _find_places(columns), forward=forward)
        if (crossings := _count_crossings(columns)) < fewest:
            best, fewest = [list(column) for column in columns], crossings
    columns[:] = best


def _sort_column(column: list[_GraphNode], places: dict[_GraphNode, int], *, forward: bool) -> None:
    """By the mean place of what stands before (or after) each node."""

    def target(node: _GraphNode) -> float:
        joined = node.before if forward else node.after
        return fmean(places[one] for one in joined) if joined else places[node]

    column.sort(key=target)


def _find_places(columns: list[list[_GraphNode]]) -> dict[_GraphNode, int]:
    return {node: at for column in columns for at, node in enumerate(column)}


def _count_crossings(columns: list[list[_GraphNode]]) -> int:
    places = _find_places(columns)
    crossings = 0
    for column in columns:
        ends = [end for node in column for end in sorted(places[one] for one in node.after)]
        crossings += sum(first > second for at, first in enumerate(ends) for second in ends[at + 1 :])
    return crossings


def _settle(columns: list[list[_GraphNode]]) -> None:
    """Heights: each node as near as it can be to those it is joined with, in order and with space between."""
    for column in columns:
        _stack(column, [float(at) * (BOX_HEIGHT + _SPACE) for at in range(len(column))])
    for sweep in range(_SWEEPS):
        for column in columns if sweep % 2 else reversed(columns):
            targets = [
                fmean([*(one.middle for one in (*node.before, *node.after)), *([node.middle] * (sweep < 2))])
                if node.before or node.after
                else node.middle
                for node in column
            ]
            _stack(column, targets)


def _stack(column: list[_GraphNode], targets: list[float]) -> None:
    """Least squares under an order: neighbours that would overlap are pooled around the mean of their targets."""
    offsets, at = [], 0.0
    for number, node in enumerate(column):
        if number:
            above = column[number - 1]
            space = _SPACE if above.topic and node.topic else _LINE_SPACE
            at += above.height / 2 + node.height / 2 + space
        offsets.append(at)
    pools: list[tuple[float, int]] = []
    for target, offset in zip(targets, offsets, strict=True):
        mean, count = target - offset, 1
        while pools and pools[-1][0] > mean:
            other, others = pools.pop()
            mean, count = (mean * count + other * others) / (count + others), count + others
        pools.append((mean, count))
    means = [mean for mean, count in pools for _ in range(count)]
    for node, mean, offset in zip(column, means, offsets, strict=True):
        node.middle = mean + offset


def _place_columns(
    columns: list[list[_GraphNode]], routes: Sequence[_LinkRoute], width_of: Callable[[Topic], float]
) -> tuple[list[float], list[float]]:
    """Left edge and width of each column; where many lines bend there is more room for them."""
    widths = [max((width_of(node.topic) for node in column if node.topic), default=0.0) for column in columns]
    lefts, left = [], float(MARGIN)
    for at, width in enumerate(widths):
        bends = sum(any(node.column == at for node in route.nodes[:-1]) for route in routes)
        lefts.append(left)
        left += width + min(_MOST_GAP, _LEAST_GAP + 3 * bends)
    return lefts, widths


def _spread_ports(routes: Sequence[_LinkRoute]) -> dict[tuple[_LinkRoute, int], float]:
    """(route, end) and how far from the middle of its box it begins or ends: lines of one box do not lie on another."""
    ports: dict[tuple[_LinkRoute, int], float] = {}
    for end, neighbour in ((0, 1), (-1, -2)):
        by_box: dict[_GraphNode, list[tuple[float, _LinkRoute]]] = {}
        for route in routes:
            by_box.setdefault(route.nodes[end], []).append((route.nodes[neighbour].middle, route))
        for joined in by_box.values():
            joined.sort(key=itemgetter(0))
            space = min(_PORT_SPACE, (BOX_HEIGHT - 16) / len(joined))
            for at, (_, route) in enumerate(joined):
                ports[route, end] = (at - (len(joined) - 1) / 2) * space
    return ports


def _draw_route(
    route: _LinkRoute,
    ports: dict[tuple[_LinkRoute, int], float],
    lefts: list[float],
    widths: list[float],
    top: float,
) -> Line:
    start, *passed, end = route.nodes
    points = [(lefts[start.column] + widths[start.column], start.middle + ports[route, 0] - top)]
    for node in passed:
        left = lefts[node.column]
        points += [(left, node.middle - top), (left + widths[node.column], node.middle - top)]
    points.append((lefts[end.column], end.middle + ports[route, -1] - top))
    if start.topic is None or end.topic is None:
        raise AssertionError("a line begins and ends at boxes")
    return Line(source=start.topic, reader=end.topic, is_main=route.is_main, points=tuple(points))
