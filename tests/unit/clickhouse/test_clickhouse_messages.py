"""A failure of ClickHouse is told in its own words, without what the driver and the server put around them."""

import pytest

from oncehouse.clickhouse.client import essence


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "Received ClickHouse exception, code: 81, server response: Code: 81. No x. (UNKNOWN) (for url http://h:1)",
            "Code: 81. No x. (UNKNOWN)",
        ),
        (
            "Code: 194. Authentication failed\n\nIf you use another product, go there.\n\n. (REQUIRED_PASSWORD)",
            "Code: 194. Authentication failed",
        ),
        (
            "NewConnectionError: HTTPConnection(host='h', port=1): Failed to establish a new connection: [Errno 111]",
            "NewConnectionError: Failed to establish a new connection: [Errno 111]",
        ),
        ("anything else (for people)\nwith a second line", "anything else (for people)\nwith a second line"),
        ("\n\n", "\n\n"),
    ],
)
def test_only_what_happened_is_told(said, told):
    assert essence(said) == told
