"""Types next to ClickHouse's own reading of them: what is taken here, it takes and writes back as the same type.

ClickHouse takes more (names without regard to case, aliases, comments, numbers in hexadecimal); those are refused here,
always with an error that says where. Here members of an enum may be numbered on from any member, not from the first
alone; ClickHouse gets the canonical name, which numbers all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from zoneinfo import available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clickhouse_engine import Engine, RefusedError, open_engine
from fuzzing import examples
from oncehouse.column_types.parser import parse_type
from oncehouse.column_types.types import ColumnType, clickhouse_name, quote_text
from oncehouse.errors import ConfigurationError
from reference_readers import kept_cases

SPACE = st.sampled_from(["", "", "", " ", "\n", "\t", "  ", "\x0b", "\xa0", "\u2003", "\u3000"])
LETTERS = st.text("ab`'\"\\/ ,()=nxN0é\n\x01.", max_size=4)
NAMES = (
    st.sampled_from(["a", "b", "_", "A", "null", "NULL", "select", "true", "Array", "not", "a1", "id"])
    | LETTERS.filter(bool).map(lambda name: "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`")
    | LETTERS.map(lambda name: "`" + name.replace("`", "``") + "`")
)
MEMBERS = LETTERS.map(quote_text) | LETTERS.map(lambda name: "'" + name.replace("'", "''") + "'")
ZONES = st.sampled_from(
    [*sorted(available_timezones()), "right/UTC", "posix/UTC", "posixrules", "+02:00", "UTC+3", ""]
)
NUMBERS = st.integers(-3, 80).map(str) | st.sampled_from(
    ["+3", "007", "-0", "256", "1048577", "9" * 5000, "0x1", "1.0"]
)
PLAIN = [
    *(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64, 128, 256, 512)),
    *("Float32", "Float64", "Bool", "String", "Date", "Date32", "DateTime", "UUID", "int8", "Text", "JSON"),
]  # fmt: skip


@st.composite
def numbered(draw) -> str:
    name = draw(
        st.sampled_from(["Decimal", "Decimal32", "Decimal64", "Decimal128", "Decimal256", "FixedString"])
    )
    count = draw(st.sampled_from([1, 1, 2]))
    return f"{name}{draw(SPACE)}({f'{draw(SPACE)},{draw(SPACE)}'.join(draw(NUMBERS) for _ in range(count))})"


@st.composite
def times(draw) -> str:
    zone = quote_text(draw(ZONES))
    return draw(
        st.sampled_from(
            [
                f"DateTime({zone})",
                f"DateTime64({draw(NUMBERS)})",
                f"DateTime64({draw(SPACE)}3,{draw(SPACE)}{zone})",
            ]
        )
    )


@st.composite
def enums(draw) -> str:
    members = [
        draw(MEMBERS)
        + draw(st.just("") | st.integers(-130, 130).map(lambda number: f"{draw(SPACE)}={number}"))
        for _ in range(draw(st.integers(1, 3)))
    ]
    return f"Enum{draw(st.sampled_from([8, 16]))}({f'{draw(SPACE)},'.join(members)})"


@st.composite
def tuples(draw, inner: st.SearchStrategy[str]) -> str:
    fields = [f"{draw(NAMES)} {draw(SPACE)}{draw(inner)}" for _ in range(draw(st.integers(1, 3)))]
    return f"{draw(st.sampled_from(['Tuple', 'Tuple', 'Nested']))}({', '.join(fields)})"


def around(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    wrapped = st.builds(
        "{}{}({}{})".format, st.sampled_from(["Nullable", "LowCardinality", "Array"]), SPACE, SPACE, inner
    )
    return wrapped | tuples(inner) | st.builds("Map({}{},{}{})".format, inner, SPACE, SPACE, inner)


TYPES = st.recursive(st.sampled_from(PLAIN) | numbered() | times() | enums(), around, max_leaves=4)


@st.composite
def damaged(draw) -> str:
    text = draw(TYPES)
    place = draw(st.integers(0, len(text)))
    pieces = st.sampled_from(
        ["", "(", ")", ",", "'", "`", '"', "\\", " ", "=", "\x1c", "\x85", "\0", "1", "-", "--", "/*"]
    )
    return text[:place] + draw(pieces) + text[place + draw(st.integers(0, 2)) :]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    pytest.importorskip("chdb")
    with open_engine() as engine:
        yield engine


def parsed(text: str) -> ColumnType | None:
    try:
        return parse_type(text)
    except ConfigurationError as error:
        assert "at character" in str(error)  # noqa: PT017 - a refusal is one of two right answers
        return None


def compare(engine: Engine, texts: list[str]) -> None:
    """ClickHouse names what it takes; of an Array of a Tuple and of Nested it makes the same column."""
    taken = [(text, type_) for text in texts if (type_ := parsed(text)) is not None]
    if not taken:
        return
    written = [text for text, _ in taken] + [clickhouse_name(type_) for _, type_ in taken]
    answers = engine.ask(
        [
            f"DESCRIBE TABLE format(JSONEachRow, {quote_text('x Tuple(y ' + text + ')')}, '')"
            for text in written
        ]
    )
    for text, type_, answer in zip(written, [type_ for _, type_ in taken] * 2, answers, strict=True):
        if isinstance(answer, RefusedError):
            assert "All elements of Enum data type must be of form" in str(answer), (text, answer)
            assert text != clickhouse_name(type_)
        else:
            whole = parse_type(f"Tuple(y {clickhouse_name(type_)})")
            assert parse_type(json.loads(answer)[1]) == whole, (text, answer)


@given(st.lists(TYPES | damaged(), min_size=1, max_size=8))
@examples(40)
def test_what_is_taken_clickhouse_reads_as_the_same_type(engine, texts):
    compare(engine, texts)


@pytest.mark.parametrize("case", kept_cases("types.jsonl"), ids=lambda case: case["why"])
def test_what_clickhouse_once_read_otherwise(engine, case):
    compare(engine, [case["type"]])
