"""A clock that was set forth or back while a process runs makes nothing older or younger than it is."""

import pytest
from sqlalchemy import literal

from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.monotonic_clock import SteadyClock
from oncehouse.pipeline.stages.load_stage import is_due


def test_the_first_time_that_is_heard_goes_on_whatever_is_told_later():
    passed = iter([100.0, 100.0, 105.0, 110.0])
    clock = SteadyClock(lambda: next(passed))
    assert clock.correct(1000.0) == 1000.0
    assert clock.correct(90_000.0) == 1005.0
    assert clock.correct(3.0) == 1010.0


@pytest.mark.parametrize("jump", [3600, -86_400])
def test_what_is_written_is_not_too_old_and_what_is_deleted_not_too_young(jump, tmp_path):
    catalog = Catalog(f"sqlite:///{tmp_path}/catalog.db", "shop")
    try:
        catalog.clock = literal(100_000.0)
        assert catalog.now() == 100_000
        catalog.clock = literal(100_000.0 + jump)
        with catalog.read() as connection:
            latest = catalog.latest_in(connection)
        times = {round(latest), round(catalog.earliest())}
        assert times == {100_000, 100_000 + jump}
        assert latest > catalog.earliest()
        assert round(catalog.jump_seconds()) == jump
    finally:
        catalog.close()


def test_a_batch_waits_no_longer_than_the_longest_wait_though_the_clock_was_set_back():
    assert is_due(10.0, 10.0, longest_seconds=300)
    assert not is_due(300.0, 10.0, longest_seconds=300)
    assert is_due(400.0, 10.0, longest_seconds=300)
