"""The lineage drawn: every table and every dependency is in the picture, and names cannot break it."""

import re
from itertools import pairwise
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from oncehouse.etl.lineage.svg import draw_svg
from oncehouse.etl.lineage.svg_layout import BOX_HEIGHT, find_columns, lay_out
from oncehouse.etl.lineage.topic import Template, Topic
from oncehouse.etl.lineage.tree import draw_tree

SVG = "{http://www.w3.org/2000/svg}"
SHOP = (
    Topic(topic="Orders", dst="stage.orders"),
    Topic(topic="Payments", dst="stage.payments"),
    Topic(
        topic="Paid",
        dst="dwh.paid",
        depends_on=("stage.orders", "stage.payments"),
        repeat_seconds=60,
        delay_seconds=10,
    ),
    Topic(topic="Daily", dst="dwh.daily", depends_on=("dwh.paid",), template=Template.RANGE),
    Topic(topic="Returns", dst="dwh.returns", depends_on=("dwh.paid", "stage.orders")),
)


def test_the_tree_shows_what_each_table_is_made_of():
    assert draw_tree(SHOP).splitlines() == [
        "Daily  dwh.daily  (range)",
        "└── Paid  dwh.paid  (step, every 1m, 10s behind)",
        "    ├── Orders  stage.orders  (source)",
        "    └── Payments  stage.payments  (source)",
        "Returns  dwh.returns  (step)",
        "├── Paid  dwh.paid  (shown above)",
        "└── Orders  stage.orders  (source)",
    ]


def test_the_svg_has_a_box_for_each_topic_and_a_line_for_each_dependency():
    picture = ET.fromstring(draw_svg(SHOP))
    assert len(picture.findall(f"{SVG}g")) == 5
    lines = {line.findtext(f"{SVG}title") for line in picture.findall(f"{SVG}path")}
    assert lines == {f"{table} → {topic.dst}" for topic in SHOP for table in topic.depends_on}


def test_only_the_main_source_has_a_thick_line():
    picture = ET.fromstring(draw_svg(SHOP))
    thick = [line.findtext(f"{SVG}title") for line in picture.findall(f"{SVG}path[@class='line main']")]
    assert thick == ["stage.orders → dwh.paid", "dwh.paid → dwh.daily", "dwh.paid → dwh.returns"]


@st.composite
def lineages(draw):
    """Any lineage without a circle: each topic reads some of those before it."""
    topics: list[Topic] = []
    for number in range(draw(st.integers(1, 14))):
        tables = draw(st.lists(st.integers(0, max(0, number - 1)), max_size=3 if number else 0, unique=True))
        sources = tuple(f"db.t{one}" for one in tables)
        topics.append(Topic(topic=f"t{number}", dst=f"db.t{number}", depends_on=sources))
    return draw(st.permutations(topics))


@given(lineages())
def test_data_flows_from_left_to_right_and_nothing_lies_on_a_box(lineage):
    layout = lay_out(lineage, lambda topic: 50 + 10 * len(topic.depends_on))
    by_table = {box.topic.dst: box for box in layout.boxes}
    for box in layout.boxes:
        assert 0 < box.left < box.right < layout.width
        assert 0 < box.top < box.top + BOX_HEIGHT < layout.height
        assert all(by_table[table].right < box.left for table in box.topic.depends_on)
    for column in {box.column for box in layout.boxes}:
        tops = sorted(box.top for box in layout.boxes if box.column == column)
        assert all(below - above >= BOX_HEIGHT for above, below in pairwise(tops))
    assert len(layout.lines) == sum(len(topic.depends_on) for topic in lineage)
    for line in layout.lines:
        passed = line.points[1:-1]
        for (left, y), (right, _) in zip(passed[::2], passed[1::2], strict=True):
            under = [
                box
                for box in layout.boxes
                if left <= box.left < right and box.top <= y <= box.top + BOX_HEIGHT
            ]
            assert not under


def test_a_source_stands_beside_its_first_reader():
    assert find_columns(SHOP) == {"Orders": 0, "Payments": 0, "Paid": 1, "Daily": 2, "Returns": 2}
    goods = Topic(topic="Goods", dst="stage.goods")
    reader = Topic(topic="X", dst="d.x", depends_on=("dwh.daily", "stage.goods"))
    assert find_columns((*SHOP, goods, reader))["Goods"] == 2


def test_fewer_lines_cross_than_in_the_order_of_the_files():
    crossed = [Topic(topic=f"S{one}", dst=f"s.{one}") for one in range(4)]
    crossed += [Topic(topic=f"F{one}", dst=f"f.{one}", depends_on=(f"s.{3 - one}",)) for one in range(4)]
    layout = lay_out(crossed, lambda _topic: 100)
    heights = {box.topic.topic: box.top for box in layout.boxes}
    assert all(heights[f"F{one}"] == heights[f"S{3 - one}"] for one in range(4))


def test_a_state_is_in_the_box_with_its_colour_and_long_names_are_cut_but_kept():
    long = Topic(topic="T" * 90, dst="d." + "t" * 90, depends_on=("stage.orders",))
    picture = ET.fromstring(draw_svg((SHOP[0], long), {"T" * 90: "failed 3×, tried again in 40 s"}))  # noqa: RUF001
    box = picture.find(f"{SVG}g[@class='failed']")
    texts = [text.text for text in box.findall(f"{SVG}text")]
    assert texts[2] == "failed 3×, tried again in 40 s"  # noqa: RUF001
    assert max(len(text) for text in texts) < 50
    assert "T" * 90 in box.findtext(f"{SVG}title")


def test_light_and_dark_have_the_same_colours_to_choose_from():
    style = ET.fromstring(draw_svg(SHOP)).findtext(f"{SVG}style")
    light, _, dark = style.partition("@media (prefers-color-scheme: dark)")
    asked = set(re.findall(r"var\((--\w+)\)", style))
    for colours in (light, dark):
        assert asked == set(re.findall(r"(--\w+):#", colours))


def test_a_tree_that_is_too_wide_takes_more_lines_instead():
    wide = Topic(topic="T" * 50, dst="d." + "t" * 50, depends_on=("stage.orders", "stage.payments"))
    lines = draw_tree((*SHOP[:2], wide), {"T" * 50: "paused"}, width=80).splitlines()
    assert lines == [
        "T" * 50,
        "│   d." + "t" * 50,
        "│   (step)  paused",
        "├── Orders  stage.orders  (source)",
        "└── Payments  stage.payments  (source)",
    ]


@given(st.text(alphabet=st.characters(codec="utf-8", categories=("L", "P", "S", "Zs"))))
def test_names_and_comments_cannot_break_out_of_the_svg(text):
    hostile = Topic(topic="T", dst=f"db.{text}", comment=text)
    picture = ET.fromstring(draw_svg([hostile]))
    assert {element.tag for element in picture.iter()} <= {
        f"{SVG}{tag}" for tag in ("svg", "style", "rect", "g", "text", "title")
    }
