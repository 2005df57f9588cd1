"""The lineage drawn: every table and every dependency is in the picture, and names cannot break it."""

from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from oncehouse.etl.graph import draw_svg, draw_tree, place_boxes
from oncehouse.etl.records import Template, Topic

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
    thick = [line.findtext(f"{SVG}title") for line in picture.findall(f"{SVG}path[@class='main']")]
    assert thick == ["stage.orders → dwh.paid", "dwh.paid → dwh.daily", "dwh.paid → dwh.returns"]


def test_data_flows_from_left_to_right_and_no_boxes_overlap():
    boxes = place_boxes(SHOP)
    by_table = {box.topic.dst: box for box in boxes}
    for box in boxes:
        for table in box.topic.depends_on:
            assert by_table[table].left + by_table[table].width < box.left
    places = {(box.left, box.top) for box in boxes}
    assert len(places) == len(boxes)


@given(st.text(alphabet=st.characters(codec="utf-8", categories=("L", "P", "S", "Zs"))))
def test_names_and_comments_cannot_break_out_of_the_svg(text):
    hostile = Topic(topic="T", dst=f"db.{text}", comment=text)
    picture = ET.fromstring(draw_svg([hostile]))
    assert {element.tag for element in picture.iter()} <= {
        f"{SVG}{tag}" for tag in ("svg", "style", "rect", "g", "text", "title")
    }
