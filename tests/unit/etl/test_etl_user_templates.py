"""Templates of the user's own: values are bound, names quoted, the sandbox holds, and mistakes have a line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.errors import ConfigurationError
from oncehouse.etl.lineage.sql_text import split_statements
from oncehouse.etl.lineage.topic import Topic
from oncehouse.etl.lineage.user_templates import Sql, in_range, render_template

TOPIC = Topic(
    topic="Orders",
    dst="dwh.orders",
    depends_on=("stage.orders", "stage.customers"),
    template_file="own.sql.j2",
    parameters=(("key", "customer"), ("keys", ("a", "b`")), ("most", 5), ("word", "x'; DROP TABLE y; --")),
)


@pytest.fixture
def render(tmp_path):
    def render(text: str, *, transform: Sql | None = None):
        file = tmp_path / "own.sql.j2"
        file.write_text(text)
        return render_template(TOPIC, file, transform=transform)

    return render


def test_a_template_is_the_statements_around_the_one_that_yields_rows(render):
    filled = render(
        "-- ahead; of all\nTRUNCATE TABLE {{ 'ETL.keys' | table }};\n"
        "WITH ';' AS x SELECT * FROM {{ source | table }} WHERE {{ in_range() }};\n"
        "/* ; */ OPTIMIZE TABLE {{ dst | table }};\n"
    )
    assert filled.before == ("-- ahead; of all\nTRUNCATE TABLE `ETL`.`keys`",)
    assert filled.select == f"WITH ';' AS x SELECT * FROM `stage`.`orders` WHERE {in_range()}"
    assert filled.after == ("/* ; */ OPTIMIZE TABLE `dwh`.`orders`",)
    assert filled.bound == {}


def test_values_are_bound_and_names_are_quoted(render):
    filled = render(
        "SELECT {{ parameters['keys'] | identifier }} FROM {{ depends_on[1] | table }} "
        "WHERE a = {{ parameters.word }} AND b < {{ parameters.most }} AND c IN {{ parameters['keys'] }} "
        "AND d = {{ parameters.word }} AND t > {{ last_time }}"
    )
    assert filled.select == (
        "SELECT `a`, `b\\`` FROM `stage`.`customers` WHERE a = {value_0:String} AND b < {value_1:Int64} "
        "AND c IN {value_2:Array(String)} AND d = {value_0:String} AND t > {last_time:DateTime64(3)}"
    )
    assert filled.bound == {"value_0": "x'; DROP TABLE y; --", "value_1": 5, "value_2": ("a", "b`")}


@pytest.mark.parametrize(
    "expression",
    ["topic ~ in_range()", "in_range() | upper", "'now()'", "transform ~ ''", "transform | trim"],
)
def test_text_that_was_put_together_is_a_value_and_not_sql(render, expression):
    filled = render(f"SELECT {{{{ {expression} }}}}", transform=Sql("(SELECT 1)"))
    assert filled.select == "SELECT {value_0:String}"


def test_a_template_may_read_from_the_topics_transform(render):
    filled = render("SELECT * FROM {{ transform }} LIMIT 1 BY {{ parameters.key | identifier }}",
                    transform=Sql("(SELECT * FROM v(last_id = {last_id:UInt64}))"))  # fmt: skip
    assert (
        filled.select == "SELECT * FROM (SELECT * FROM v(last_id = {last_id:UInt64})) LIMIT 1 BY `customer`"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("SELECT\n{{ sorce }}", "2: 'sorce' is undefined; a template knows topic, dst, source"),
        ("SELECT\n\n{{ parameters.kee }}", "3: parameters have no 'kee'"),
        ("SELECT 1\n{{ transform }}", "2: 'transform' is undefined"),
        ("SELECT {% if %}", "1: Expected an expression"),
        ("SELECT 1\n{% for", "2: "),
        ("\n\nOPTIMIZE TABLE x", "1: no SELECT that yields the rows"),
        ("SELECT 1;\n\nSELECT 2", "3: a second SELECT"),
        ("INSERT INTO `dwh`.orders SELECT 1;\nSELECT 2", "1: rows go into dwh.orders by the SELECT alone"),
        ("SELECT 1\n{% macro x() %}{% endmacro %}", "2: `macro` is not available"),
        ("{% include 'other' %}", "1: `include` is not available"),
        ("SELECT\n{% set x %}a{% endset %}", "2: `set … endset` is not available"),
        ("SELECT {{ 'a\\nb' | identifier }}", "1: the name 'a\\nb' holds an invisible or control character"),
        ("SELECT {{ 5 | table }}", "1: the filter `table` takes a name or a list of names"),
        ("SELECT {{ parameters }}", "1: dict cannot be bound"),
        ("SELECT {{ none }}", "1: NoneType cannot be bound"),
        ("SELECT {{ 1 / 0 }}", "1: division by zero"),
        ("SELECT {{ topic() }}", "1: 'str' object is not callable"),
    ],
)
def test_mistakes_are_told_with_their_line(render, tmp_path, text, told):
    with pytest.raises(ConfigurationError) as caught:
        render(text)
    assert str(caught.value).startswith(f"{tmp_path / 'own.sql.j2'}:{told}")


@pytest.mark.parametrize(
    "expression",
    [
        "''.__class__.__mro__",
        "topic.__class__",
        "in_range.__globals__",
        "in_range.__code__",
        "parameters.__init__",
        "'{0.__class__}'.format(topic)",
        "parameters.update(key=1)",
        "parameters['keys'].__class__",
        "self.__init__.__globals__",
        "lipsum.__globals__",
        "cycler.__init__",
        "topic | attr('__class__')",
        "[1, 2] | random",
        "range(10000000) | list",
    ],
)
def test_the_sandbox_lets_nothing_out(render, expression):
    with pytest.raises(ConfigurationError, match=r"unsafe|undefined|No filter|Range too big|not callable"):
        render(f"SELECT {{{{ {expression} }}}}")


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=30))
def test_no_text_comes_out_of_its_parameter(text):
    topic = Topic(topic="T", dst="d.f", depends_on=("d.s",), parameters=(("word", text),))
    file = Path(__file__).with_name("word.sql.j2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "oncehouse.etl.lineage.user_templates.read_text", lambda *_, **__: "SELECT {{ parameters.word }}"
        )
        filled = render_template(topic, file, transform=None)
    assert (filled.select, filled.bound) == ("SELECT {value_0:String}", {"value_0": text})


def test_statements_end_at_semicolons_outside_of_quotes_and_comments():
    text = "A ';' `;` \";\";\n-- ;\n\nB /* ; */ 'it\\'s;' ;;\n# ; \n"
    found = split_statements(text)
    assert [(one.words.split()[0], one.line) for one in found] == [("A", 1), ("B", 4)]
