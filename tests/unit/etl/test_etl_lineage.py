"""Lineage files and settings: what is wrong is told with file, line, key and the nearest right word."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.errors import ConfigurationError
from oncehouse.etl.lineage.files import TopicSection, load_lineage
from oncehouse.etl.lineage.graph import (
    LineageChange,
    check_lineage,
    compare_lineage,
    order_topics,
)
from oncehouse.etl.lineage.topic import Expectation, ExpectationKind, Otherwise, Template, Topic
from oncehouse.etl.settings import EtlSettings, Offsets, load_settings, parse_settings

REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "etl.md"

SHOP = """\
topics:
  - topic: Orders
    dst: stage.orders
  - topic: Payments
    dst: stage.payments
  - topic: PaidOrders
    dst: dwh.paid_orders
    depends_on: [stage.orders, stage.payments]
    delay: 10s
    repeat: 1m
    maxstep: 5000
    comment: Orders with what was paid
    before: SYSTEM RELOAD DICTIONARY countries
    after: [OPTIMIZE TABLE dwh.totals, SELECT 1]
"""


def folder_with(tmp_path, **files):
    for name, text in files.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


def refusal(folder) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load_lineage(folder)
    return str(caught.value).replace(f"{folder}/", "").splitlines()


def step(name: str, *sources: str) -> Topic:
    return Topic(topic=name, dst=f"db.{name}", depends_on=tuple(f"db.{source}" for source in sources))


def test_every_key_of_a_line_arrives(tmp_path):
    orders, _payments, paid = load_lineage(folder_with(tmp_path, shop=SHOP))
    assert orders.is_source
    assert paid == Topic(
        topic="PaidOrders",
        dst="dwh.paid_orders",
        depends_on=("stage.orders", "stage.payments"),
        delay_seconds=10,
        repeat_seconds=60,
        maxstep_rows=5000,
        comment="Orders with what was paid",
        before=("SYSTEM RELOAD DICTIONARY countries",),
        after=("OPTIMIZE TABLE dwh.totals", "SELECT 1"),
    )


OWN = """\
topics:
  - {topic: Orders, dst: stage.orders}
  - topic: Latest
    dst: dwh.latest
    depends_on: [stage.orders]
    template: latest.sql.j2
    like: range
    range_column: day
    gate: 80%
    parameters: {key: customer, most: 5, share: 0.5, also: [a, b], fine: true}
    expect:
      - {check: rows, at_least: 1}
      - {check: unique, column: [id, day], otherwise: warn}
"""


def test_a_template_of_ones_own_arrives_with_its_parameters_and_expectations(tmp_path):
    (tmp_path / "latest.sql.j2").write_text("SELECT {{ parameters.key | identifier }} WHERE {{ in_range() }}")
    _, latest = load_lineage(folder_with(tmp_path, shop=OWN))
    assert latest == Topic(
        topic="Latest",
        dst="dwh.latest",
        depends_on=("stage.orders",),
        template=Template.RANGE,
        range_column="day",
        gate_share=0.8,
        template_file=str(tmp_path / "latest.sql.j2"),
        parameters=(("key", "customer"), ("most", 5), ("share", 0.5), ("also", ("a", "b")), ("fine", True)),
        expect=(
            Expectation(check=ExpectationKind.ROWS, at_least=1),
            Expectation(check=ExpectationKind.UNIQUE, columns=("id", "day"), otherwise=Otherwise.WARN),
        ),
    )


def test_a_wrong_template_is_told_with_both_files_and_lines(tmp_path):
    (tmp_path / "latest.sql.j2").write_text("SELECT 1\nWHERE {{ in_rnge() }}")
    (told,) = refusal(folder_with(tmp_path, shop=OWN))
    assert told.startswith(
        "shop.yaml:6: topics[1].template: latest.sql.j2:2: 'in_rnge' is undefined; a template"
    )


@pytest.mark.parametrize(
    ("line", "told"),
    [("template: range\n    range_column: day", "a range covers whole partitions"), ("template: step", None)],
)
def test_rows_per_source_row_needs_rows_of_a_source(tmp_path, line, told):
    lines = [*SHOP.splitlines()[:8], f"    {line}", "    expect: [{check: rows_per_source_row, at_least: 1}]"]
    folder = folder_with(tmp_path, shop="\n".join(lines))
    if told is None:
        assert len(load_lineage(folder)[2].expect) == 1
    else:
        assert told in refusal(folder)[0]


def test_the_files_of_a_folder_are_one_lineage_and_depends_on_may_have_commas(tmp_path):
    sources = "topics:\n  - {topic: A, dst: db.a}\n  - {topic: B, dst: db.b}\n"
    facts = "topics:\n  - {topic: C, dst: db.c, depends_on: 'db.a, db.b'}\n"
    topics = load_lineage(folder_with(tmp_path, facts=facts, sources=sources))
    assert [topic.topic for topic in topics] == ["C", "A", "B"]
    assert topics[0].depends_on == ("db.a", "db.b")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("    dely: 10s", 'shop.yaml:9: topics[2].dely: unknown key; did you mean "delay"?'),
        (
            "    template: reloda",
            "shop.yaml:9: topics[2].template: must be step, reload, range, or a file of your own ending in .sql.j2;",
        ),
        ("    delay: soon", "shop.yaml:9: topics[2].delay: 'soon' is not a duration"),
        ("    transform: gone.sql", "shop.yaml:9: topics[2].transform: there is no file gone.sql next to"),
        ("    maxstep: 0", "shop.yaml:9: topics[2].maxstep: "),
        ("    template: range", "shop.yaml:6: topics[2].range_column: a range replaces partitions by time"),
        (
            "    template: gone.sql.j2",
            "shop.yaml:9: topics[2].template: there is no file gone.sql.j2 next to",
        ),
        ("    like: reload", "shop.yaml:6: topics[2]: `like` is for a template of your own"),
        ("    gate: 80%", "shop.yaml:9: topics[2].gate: has no meaning with a step"),
        ("    gate: 2", "shop.yaml:9: topics[2].gate: must be less than or equal to 1"),
        ("    parameters: {a: 1}", "shop.yaml:9: topics[2].parameters: are for a template of your own"),
        (
            "    parameters: {a: [1, b]}",
            "shop.yaml:9: topics[2].parameters.a: a list must hold texts or numbers",
        ),
        ("    expect: [{check: rows}]", "shop.yaml:9: topics[2].expect[0]: rows needs at_least"),
        ("    range_column: day", "shop.yaml:9: topics[2].range_column: has no meaning with the template"),
    ],
)
def test_a_wrong_line_is_told_with_its_line_and_what_to_do(tmp_path, line, told):
    lines = SHOP.splitlines()[:8]
    (message,) = refusal(folder_with(tmp_path, shop="\n".join([*lines, line])))
    assert message.startswith(told)


def test_a_misspelt_template_is_told_with_the_nearest_one(tmp_path):
    (message,) = refusal(folder_with(tmp_path, shop=SHOP + "    template: reloda\n"))
    assert message.endswith('did you mean "reload"?')


def test_a_source_that_no_topic_declares_is_told_with_the_nearest_table(tmp_path):
    text = SHOP.replace("[stage.orders, stage.payments]", "[stage.orders, stage.payment, other.thing]")
    near, far = refusal(folder_with(tmp_path, shop=text))
    place = "shop.yaml:8: topics[2].depends_on: no topic has the dst"
    assert near == f'{place} stage.payment; did you mean "stage.payments"?'
    assert far.startswith(f"{place} other.thing; declare the source with a line")


def test_problems_of_all_files_are_told_together(tmp_path):
    folder = folder_with(tmp_path, a="topics:\n  - {topic: A}\n", b="- 1\n", c="topics: [\n")
    told = refusal(folder)
    assert told[:2] == [
        "a.yaml:2: topics[0].dst: is missing",
        "b.yaml:1: must be `topics:` with a list of topics under it",
    ]
    assert told[2].startswith("c.yaml:2: is not valid YAML")


def test_a_topic_of_two_files_and_a_table_of_two_topics_are_refused(tmp_path):
    told = refusal(
        folder_with(
            tmp_path,
            a="topics:\n  - {topic: A, dst: db.a}\n  - {topic: B, dst: db.b}\n",
            b="topics:\n  - {topic: A, dst: db.c}\n  - {topic: C, dst: db.b}\n",
        )
    )
    assert told[0] == "b.yaml:2: topics[0].topic: the topic 'A' stands in the lineage twice"
    assert told[1].startswith("b.yaml:3: topics[1].dst: db.b is already built by the topic 'B'")


def test_sql_files_are_found_beside_the_file_that_names_them(tmp_path):
    (tmp_path / "paid.sql").write_text("SELECT 1")
    topic = load_lineage(folder_with(tmp_path, shop=SHOP + "    transform: paid.sql\n"))[2]
    assert topic.transform == str(tmp_path / "paid.sql")


def test_an_empty_folder_says_where_lineage_is_set(tmp_path):
    assert refusal(tmp_path) == [
        f"{tmp_path}: no lineage file (*.yaml) there; set `lineage` in the settings to the folder that has them"
    ]


@pytest.mark.parametrize("name", ["a b", "1a", "a.b", "a`b", "", "a" * 101])
def test_a_topic_that_no_view_could_be_named_after_is_refused(tmp_path, name):
    text = f"topics:\n  - topic: {json.dumps(name)}\n    dst: db.a\n"
    assert refusal(folder_with(tmp_path, a=text))[0].startswith("a.yaml:2: topics[0].topic: ")


def test_a_circle_is_told_in_the_direction_of_the_data():
    lineage = [step("S"), step("C", "B", "S"), step("A", "C"), step("B", "A")]
    (problem,) = check_lineage(lineage)
    assert (problem.topic, problem.key) == ("A", "depends_on")
    assert problem.text.startswith("goes round in a circle: A → B → C → A;")


def test_a_table_made_of_itself_is_refused():
    (problem,) = check_lineage([step("A", "A")])
    assert problem.text == "db.A would be made of itself; remove it"


@given(st.data())
def test_any_lineage_whose_topics_depend_on_earlier_ones_is_sound_and_ordered(data):
    lineage = [
        step(f"t{at}", *data.draw(st.lists(st.sampled_from([f"t{n}" for n in range(at)]), unique=True)))
        if at
        else step("t0")
        for at in range(data.draw(st.integers(1, 8)))
    ]
    shuffled = data.draw(st.permutations(lineage))
    assert check_lineage(shuffled) == ()
    place = {topic.dst: at for at, topic in enumerate(order_topics(shuffled))}
    assert len(place) == len(lineage)
    assert all(place[table] < place[topic.dst] for topic in lineage for table in topic.depends_on)


def test_what_differs_from_the_stored_lineage_is_named_by_topic_and_key():
    old = [step("A"), step("B", "A"), step("Gone")]
    new = [step("A"), Topic(topic="B", dst="db.B", depends_on=("db.A",), delay_seconds=5), step("New")]
    assert compare_lineage(new, old) == (
        LineageChange(topic="B", kind="changed", keys=("delay_seconds",)),
        LineageChange(topic="Gone", kind="removed"),
        LineageChange(topic="New", kind="added"),
    )
    assert compare_lineage(new, new) == ()


def test_settings_have_defaults_and_paths_from_their_own_folder(tmp_path):
    file = tmp_path / "etl.yaml"
    file.write_text(
        "clickhouse: {url: 'http://localhost:8123'}\noffsets: {store: catalog, catalog: 'sqlite:///o.db'}\n"
    )
    settings = load_settings(file)
    assert (settings.database, settings.lease, settings.parallel) == ("ETL", 60.0, 4)
    assert settings.lineage == str(tmp_path / "lineage")
    assert settings.offsets.catalog is not None
    assert settings.offsets.catalog.get_secret_value() == f"sqlite:///{tmp_path}/o.db"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("offsets: {store: rocks}", "e.yaml:2: offsets.store: must be 'keepermap', 'rocksdb' or 'catalog'"),
        ("offsets: {store: catalog}", 'e.yaml:2: offsets: store "catalog" needs `catalog`'),
        ("offsets: {path: \"/a', 'b\"}", "e.yaml:2: offsets.path: must be letters, digits"),
        ("database: a.b", "e.yaml:2: database: must be one name, without a dot"),
        ("paralel: 3", 'e.yaml:2: paralel: unknown key; did you mean "parallel"?'),
        ("lease: 10ms", "e.yaml:2: lease: "),
    ],
)
def test_wrong_settings_are_told_with_their_line(text, told):
    with pytest.raises(ConfigurationError) as caught:
        parse_settings(f"clickhouse: {{url: 'http://localhost:8123'}}\n{text}\n", "e.yaml")
    assert str(caught.value).startswith(told)


def test_every_key_is_in_the_reference():
    text = REFERENCE.read_text()
    sections = (EtlSettings, Offsets, TopicSection)
    assert [key for section in sections for key in section.model_fields if f"`{key}`" not in text] == []
