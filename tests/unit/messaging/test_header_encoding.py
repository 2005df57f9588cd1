import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.messaging.header_encoding import decode_headers, encode_headers

PAIRS = st.lists(
    st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.none() | st.binary()), max_size=5
)


@given(PAIRS)
def test_headers_come_back_as_they_were(headers):
    assert decode_headers(encode_headers(headers)) == headers


def test_text_stays_readable_and_no_headers_are_nothing():
    assert encode_headers([("trace", "größe".encode()), ("raw", b"\xff")]) == (
        '[["trace","größe"],["raw",{"base64":"/w=="}]]'
    )
    assert encode_headers([]) is None
    assert decode_headers(None) == []


@pytest.mark.parametrize("text", ["{", "{}", "[1]", '[["a"]]', '[["a",1]]', '[["a",{"base64":"?"}]]'])
def test_what_is_no_list_of_headers_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        decode_headers(text)
