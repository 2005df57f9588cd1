from hypothesis import given
from hypothesis import strategies as st

from oncehouse.common.backoff import Backoff

BACKOFF = Backoff(base_seconds=0.5, longest_seconds=60)


def test_the_wait_doubles_until_the_longest():
    assert [BACKOFF.wait_seconds(attempt, jitter=1) for attempt in (1, 2, 3, 7, 8, 9)] == [
        0.5,
        1,
        2,
        32,
        60,
        60,
    ]


@given(attempt=st.integers(1, 10**9), jitter=st.floats(0, 1))
def test_a_wait_is_spread_over_the_whole_range_and_never_longer_than_the_longest(attempt, jitter):
    assert BACKOFF.wait_seconds(attempt, jitter=jitter) == BACKOFF.wait_seconds(attempt, jitter=1) * jitter
    assert BACKOFF.wait_seconds(attempt, jitter=jitter) <= 60
