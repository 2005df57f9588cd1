"""Where statements end: at semicolons, but not at those inside of what ClickHouse quotes or leaves out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.etl.lineage.sql_text import UnclosedError, split_statements

WHOLE = (
    "SELECT 'a;b', 'it''s;', 'x\\';', \"c;\", `d``;`",
    "SELECT 1 /* a; /* b; */ c; */ + 1",
    "SELECT 1 -- x;\n+ 1",
    "SELECT 1 // x;\n+ 1",
    "SELECT 1 # x;\n+ 1",
    "SELECT 1 #! x;\n+ 1",
    "SELECT $tag$ ' ; -- $tag$, $$;`$$",
    "SELECT a$b$ FROM (SELECT 1 AS a$b$)",
    "SELECT “x;”, ‘y;’",  # noqa: RUF001 - ClickHouse reads them as quotes
    "SELECT '/* ;', '-- ;'",
)


@pytest.mark.parametrize("sql", WHOLE)
def test_a_semicolon_that_is_quoted_or_commented_out_ends_nothing(sql):
    assert [one.text for one in split_statements(f"{sql};\n {sql} ; ;")] == [sql, sql]


@given(st.lists(st.sampled_from(WHOLE), max_size=6), st.sampled_from([";", " ;\n", ";;", "; /* ; */ ;"]))
def test_what_was_joined_is_split_again(statements, between):
    assert [one.text for one in split_statements(between.join(statements))] == statements


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT 1;\nSELECT 'a; SELECT 2", "the quote ' in line 2 is not closed"),
        ("SELECT `a;", "the quote ` in line 1 is not closed"),
        ("SELECT 1 /* /* */ ;", "the comment /* in line 1 is not closed"),
    ],
)
def test_a_quote_or_comment_that_is_not_closed_is_refused_with_its_line(sql, said):
    with pytest.raises(UnclosedError, match=said.replace("*", r"\*")):
        split_statements(sql)


@given(st.text(alphabet=";'\"`$a /*-#\n“”", max_size=30))
def test_no_text_breaks_it_and_nothing_but_semicolons_and_comments_is_lost(text):
    try:
        found = split_statements(text)
    except UnclosedError:
        return
    assert all(one.text in text and one.words and one.line >= 1 for one in found)
