"""The lineage as an SVG: readable alone, in a page, in light and in dark. Pure text in, pure text out.

Names are untrusted: whatever they hold, the SVG stays well-formed and holds no script. Long ones are cut, and stand
in full in the title that a pointer shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from oncehouse.etl.lineage.svg_layout import BOX_HEIGHT, Box, Line, lay_out
from oncehouse.etl.lineage.topic import Topic
from oncehouse.etl.lineage.tree import describe_topic

_LONGEST, _LONGEST_NOTE = 34, 42
_CHARACTER_WIDTH, _NOTE_WIDTH = 7.3, 6.1  # of the 12 px and 10 px monospace below
_LIGHT = {
    "--page": "#ffffff", "--box": "#ffffff", "--source": "#f6f8fa", "--edge": "#57606a", "--text": "#1f2328",
    "--note": "#59636e", "--line": "#8c959f", "--main": "#0969da", "--bad": "#cf222e", "--rest": "#9a6700",
    "--busy": "#1a7f37",
}  # fmt: skip
_DARK = {
    "--page": "#0d1117", "--box": "#161b22", "--source": "#0d1117", "--edge": "#8b949e", "--text": "#e6edf3",
    "--note": "#9da7b3", "--line": "#6e7681", "--main": "#58a6ff", "--bad": "#ff7b72", "--rest": "#d29922",
    "--busy": "#3fb950",
}  # fmt: skip
_RULES = (
    ".page{fill:var(--page)}"
    "text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:var(--text)}"
    ".note{font-size:10px;fill:var(--note)}"
    ".box{fill:var(--box);stroke:var(--edge)}"
    ".source .box{fill:var(--source);stroke-dasharray:4 3}"
    ".line{fill:none;stroke:var(--line);stroke-width:1.3}"
    ".main{stroke:var(--main);stroke-width:2}"
    ".failed .box{stroke:var(--bad);stroke-width:2}.failed .state{fill:var(--bad)}"
    ".paused .box{stroke:var(--rest);stroke-width:2}.paused .state{fill:var(--rest)}"
    ".due .state,.resume .state{fill:var(--busy)}"
)


def draw_svg(
    lineage: Sequence[Topic], states: Mapping[str, str] | None = None, *, styled: bool = True
) -> str:
    """One SVG document. Thick lines lead from the main source, whose rows make the steps.

    `states` are a topic's name and what it does now, of which the first word gives the colour. Not `styled`: it
    stands in a page that has rules for its classes, and lets no style in.
    """
    topic_states = states or {}
    layout = lay_out(lineage, lambda topic: _width(topic, topic_states.get(topic.topic, "")))
    size = f'width="{layout.width:.0f}" height="{layout.height:.0f}"'
    view = f'viewBox="0 0 {layout.width:.0f} {layout.height:.0f}"'
    dark = f"@media (prefers-color-scheme: dark){{svg{{{_colours(_DARK)}}}}}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {view} role="img" aria-label="lineage">',
    ]
    if styled:
        lines += [
            f"<style>svg{{{_colours(_LIGHT)}}}{dark}{_RULES}</style>",
            f'<rect class="page" {size}/>',
        ]
    # Thick lines last: where two cross, the main source is seen.
    lines += [_draw_line(line) for line in sorted(layout.lines, key=lambda line: line.is_main)]
    lines += [_draw_box(box, topic_states.get(box.topic.topic, "")) for box in layout.boxes]
    return "\n".join([*lines, "</svg>\n"])


def _colours(colours: Mapping[str, str]) -> str:
    return ";".join(f"{name}:{value}" for name, value in colours.items())


def _width(topic: Topic, state: str) -> float:
    notes = max(len(_cut(text)) for text in (topic.dst, _note(topic, state)))
    return 26 + max(len(_cut(topic.topic, _LONGEST)) * _CHARACTER_WIDTH, notes * _NOTE_WIDTH)


def _note(topic: Topic, state: str) -> str:
    return state or describe_topic(topic)


def _cut(text: str, longest: int = _LONGEST_NOTE) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _draw_line(line: Line) -> str:
    (x, y), *rest = line.points
    way = f"M{x:.0f},{y:.1f}"
    for at, (to_x, to_y) in enumerate(rest):
        bend = (to_x - x) / 2
        way += (
            f" L{to_x:.0f},{to_y:.1f}"
            if at % 2
            else f" C{x + bend:.0f},{y:.1f} {to_x - bend:.0f},{to_y:.1f} {to_x:.0f},{to_y:.1f}"
        )
        x, y = to_x, to_y
    kind = "line main" if line.is_main else "line"
    title = f"<title>{escape(line.source.dst)} → {escape(line.reader.dst)}</title>"
    return f'<path class="{kind}" d="{way}">{title}</path>'


def _draw_box(box: Box, state: str) -> str:
    topic, x = box.topic, f"{box.left + 12:.0f}"
    full = [topic.topic, topic.dst, describe_topic(topic), state, topic.comment]
    title = "\n".join(dict.fromkeys(text for text in full if text))
    kind = "source" if topic.is_source else state.split(maxsplit=1)[0].strip(":,") if state else ""
    known = kind if kind in {"source", "failed", "paused", "due", "resume", "waiting"} else ""
    return (
        f'<g class="{known}"><title>{escape(title)}</title>'
        f'<rect class="box" x="{box.left:.0f}" y="{box.top:.1f}" width="{box.width:.0f}" height="{BOX_HEIGHT}" rx="6"/>'
        f'<text x="{x}" y="{box.top + 20:.1f}">{escape(_cut(topic.topic, _LONGEST))}</text>'
        f'<text x="{x}" y="{box.top + 35:.1f}" class="note">{escape(_cut(topic.dst))}</text>'
        f'<text x="{x}" y="{box.top + 48:.1f}" class="note state">{escape(_cut(_note(topic, state)))}</text></g>'
    )
