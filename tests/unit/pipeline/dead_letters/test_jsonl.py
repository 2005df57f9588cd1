"""Letters as lines of JSON: whatever the bytes, they come back as they were, and a bad line is named."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.errors import ConfigurationError
from oncehouse.pipeline.dead_letters.jsonl import DeadLetterPosition, Edit, read_lines, write_line

AT = datetime(2026, 1, 1, tzinfo=UTC)


def letter(**changes):
    given_ = {
        "topic": "events",
        "partition": 1,
        "offset": 2,
        "row": 3,
        "timestamp": AT,
        "key": None,
        "value": b"{",
        "reason": "not_json",
        "detail": "why",
    }
    return given_ | changes


@given(st.none() | st.binary(), st.none() | st.binary())
def test_a_letter_comes_back_with_its_bytes(value, key):
    line = write_line(letter(value=value, key=key))
    assert "\n" not in line
    position = DeadLetterPosition(topic="events", partition=1, offset=2, row=3)
    assert list(read_lines([line])) == [Edit(position=position, value=value)]


def test_text_is_written_as_text_and_other_bytes_in_base64():
    assert '"value": "grün"' in write_line(letter(value="grün".encode()))
    assert '"value_base64": "/w=="' in write_line(letter(value=b"\xff"))


def test_json_without_its_quotes_is_understood():
    (edit,) = read_lines(['{"topic": "t", "partition": 0, "offset": 1, "value": {"id": "ä"}}'])
    assert edit.value == '{"id": "ä"}'.encode()
    assert edit.position.row == 0


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "line 2: it is not JSON"),
        ("[]", "line 2: it is not a JSON object"),
        ('{"topic": "t", "partition": 0, "value": "x"}', "line 2: 'offset' is missing"),
        ('{"topic": "t", "partition": 0, "offset": -1, "value": "x"}', "line 2: offset is no whole number"),
        (
            '{"topic": "t", "partition": true, "offset": 1, "value": "x"}',
            "line 2: partition is no whole number",
        ),
        ('{"topic": "t", "partition": 0, "offset": 1}', "line 2: it needs either"),
        (
            '{"topic": "t", "partition": 0, "offset": 1, "value": "", "value_base64": ""}',
            "line 2: it needs either",
        ),
        (
            '{"topic": "t", "partition": 0, "offset": 1, "value_base64": "?"}',
            "line 2: value_base64 is not base64",
        ),
        ('{"topic": "t", "partition": 0, "offset": 1, "value_base64": 1}', "line 2: "),
    ],
)
def test_a_line_that_cannot_be_read_is_named(line, told):
    with pytest.raises(ConfigurationError, match=told):
        list(read_lines(["\n", line]))
