"""Delimited text next to Python's `csv`, on any text: the same rows, but for rules in which the two differ on purpose.

The library takes a return alone for a line end, never refuses a quote inside of a value, and has no byte order marks.
For us a return is a line end only before a newline or the end, a quote that neither begins nor ends a value refuses its
line (and what its open quote reaches into is no longer compared), a mark at the begin is passed over, blank lines do
not count, and a line of another number of columns is refused.
"""

from __future__ import annotations

import csv
import io
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import examples
from lines_examples import decode, unfold
from oncehouse.config.formats import Csv
from oncehouse.pipeline.formats.csv.decoder import make_csv_format
from reference_readers import REJECTED, kept_cases

DIALECTS = st.builds(
    Csv,
    delimiter=st.sampled_from([",", ";", "\t", "|", " ", "x", "\\", "0"]),
    quote=st.sampled_from(['"', '"', "'", "`", "a", None]),
    header=st.booleans(),
)
VALUES = st.text("ab0x,;|\t '\"`\\\r\né\ufeff\0", max_size=4)
MARK, RETURN = "\ufeff", "\ue000"


@st.composite
def messages(draw, dialect: Csv) -> str:
    """Lines that mostly follow the rules, of mostly two columns, or any text out of the marks."""
    delimiter, quote = dialect.delimiter, dialect.quote or '"'
    if draw(st.integers(0, 3)) == 0:
        marks = st.sampled_from([delimiter, quote, quote * 2, "\n", "\r", "\r\n", "b", "é", MARK, "\0"])
        return "".join(draw(st.lists(marks, max_size=16)))
    lines = []
    for _ in range(draw(st.integers(0, 5))):
        values = draw(st.lists(VALUES, min_size=1, max_size=3) | st.tuples(VALUES, VALUES))
        written = [
            f"{quote}{value.replace(quote, quote * 2)}{quote}"
            if draw(st.integers(0, 5)) and (quote in value or delimiter in value or draw(st.booleans()))
            else value
            for value in values
        ]
        lines.append(delimiter.join(written) + draw(st.sampled_from(["\n", "\n", "\r\n", "\n\n", "", "\r"])))
    return draw(st.sampled_from(["", "", MARK])) + "".join(lines)


def ours(dialect: Csv, columns: int, message: bytes) -> list[Any]:
    """A row or REJECTED for each line."""
    fields = {f"c{number}": "String" for number in range(columns)}
    format_ = make_csv_format(dialect, tuple(fields))
    decoded = decode(format_, fields, [message])
    rows: list[Any] = [REJECTED] * unfold(format_, [message]).num_rows
    for place, row in zip(decoded.taken.tolist(), decoded.rows.to_pylist(), strict=True):
        rows[place] = list(row.values())
    assert len(decoded.taken) + len(decoded.rejected) == len(rows)
    return rows


def cut(dialect: Csv, text: str) -> tuple[list[str], bool]:
    """Lines without their ends, up to the first one with a wrong quote, and whether there is such a line."""
    delimiter = re.escape(dialect.delimiter)
    if dialect.quote is None:
        value = rf"[^{delimiter}\n]*"
    else:
        quote = re.escape(dialect.quote)
        value = rf"(?:{quote}(?:[^{quote}]|{quote}{quote})*{quote}(?!{quote})|[^{quote}{delimiter}\n]*)"
    line = re.compile(rf"({value}(?:{delimiter}{value})*)\r?(?:\n|\Z)")
    lines, at = [], 0
    while at < len(text):
        found = line.match(text, at)
        if found is None:
            return lines, True
        lines.append(found[1].removesuffix("\r"))
        at = found.end()
    return lines, False


def read(dialect: Csv, line: str) -> list[str]:
    quoting = csv.QUOTE_NONE if dialect.quote is None else csv.QUOTE_MINIMAL
    text = io.StringIO(line.replace("\r", RETURN), newline="")
    reader = csv.reader(
        text, delimiter=dialect.delimiter, quotechar=dialect.quote, quoting=quoting, strict=True
    )
    (row,) = reader
    return [value.replace(RETURN, "\r") for value in row]


def compare(dialect: Csv, columns: int, text: str) -> None:
    rows = ours(dialect, columns, text.encode())
    lines, broken = cut(dialect, text.removeprefix(MARK))
    named = lines[1:] if dialect.header else lines
    found = [read(dialect, line) for line in named if line]
    theirs: list[Any] = [row if len(row) == columns else REJECTED for row in found]
    if not broken:
        assert rows == (theirs or [REJECTED]), (dialect, text)
    elif lines or not dialect.header:
        assert rows[: len(theirs) + 1] == [*theirs, REJECTED], (dialect, text)


@given(st.data(), DIALECTS.filter(lambda dialect: dialect.delimiter != dialect.quote), st.integers(1, 3))
@examples(200)
def test_every_line_is_the_row_that_the_library_makes_of_it(data, dialect, columns):
    compare(dialect, columns, data.draw(messages(dialect)))


@pytest.mark.parametrize("case", kept_cases("csv.jsonl"), ids=lambda case: case["why"])
def test_what_the_library_once_read_otherwise(case):
    compare(Csv(**case["csv"]), case["columns"], case["message"])
