"""Clocks that are wrong, or jump while the pipeline runs: nothing is lost, doubled or forgotten early."""

from __future__ import annotations

import time

import pytest

from live_pipeline import LivePipeline, make_event, wait_until
from oncehouse.common.database import DatabaseClock
from oncehouse.errors import ConfigurationError, FencedError, LeaseHeldError
from oncehouse.ledger.catalog import leases
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.models import Lease, Stage
from oncehouse.pipeline.checks import clock_skew
from oncehouse.pipeline.maintenance.retention import retain
from oncehouse.pipeline.stages import supervisor

EVENTS = [make_event(number) for number in range(60)]
HOUR, DAY = 3600, 86_400
JUMPS = pytest.mark.parametrize("seconds", [HOUR, -HOUR, DAY, -DAY])


class CatalogClock:
    """Stands where a catalog keeps its clock, and can be set forth and back."""

    ahead_seconds = 0.0
    rounds_of_retention = 0

    def __get__(self, catalog: Catalog | None, _: type[Catalog]) -> object:
        return DatabaseClock() + self.ahead_seconds

    def __set__(self, catalog: Catalog, clock: DatabaseClock) -> None:
        """A catalog that is opened takes this one all the same."""

    def set_ahead(self, seconds: float) -> None:
        """From now on; returns when retention has worked by the new time."""
        self.ahead_seconds = seconds
        before = self.rounds_of_retention
        wait_until(lambda: self.rounds_of_retention > before + 1, "retention to go by the new time")


@pytest.fixture
def clock(monkeypatch) -> CatalogClock:
    made = CatalogClock()
    monkeypatch.setattr(Catalog, "clock", made, raising=False)

    def count_rounds(*given, **more):
        made.rounds_of_retention += 1
        return retain(*given, **more)

    monkeypatch.setattr(supervisor, "retain", count_rounds)
    monkeypatch.setattr(supervisor, "RETENTION_SECONDS", 0.2)
    return made


@pytest.fixture
def short_window(make_pipeline) -> LivePipeline:
    # Shorter than any jump, so that a jump makes all that is known too old.
    return make_pipeline(partitions=2, identity={"window": "30m"}, epoch={"max_rows": 30})


def jump_while_running(live_pipeline: LivePipeline, clock: CatalogClock, seconds: float) -> None:
    """Some events before the jump, some while the clock is wrong, and all of them again when it is right."""
    live_pipeline.send(EVENTS[:20])
    with live_pipeline.start() as running:
        running.wait_for_rows(20)
        clock.set_ahead(seconds)
        live_pipeline.send([*EVENTS[10:40], *EVENTS[:10]])
        running.wait_for_rows(40)
        clock.set_ahead(0.0)
        live_pipeline.send([*EVENTS[20:], *EVENTS[:20]], partition=1)
        wait_until(
            lambda: running.error or live_pipeline.counts().read == live_pipeline.produced, "all to be read"
        )
    live_pipeline.run()
    live_pipeline.assert_exact()


@JUMPS
@pytest.mark.scenario("clock off")
def test_a_catalog_clock_that_jumps_while_running_loses_and_forgets_nothing(short_window, clock, seconds):
    jump_while_running(short_window, clock, seconds)
    assert any("clock was set" in line for line in short_window.said)


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
@pytest.mark.defect("clock off")
def test_a_window_on_a_clock_that_jumps_is_noticed(short_window, clock, seconds, monkeypatch):
    """What is written and what is deleted goes by the catalog's clock as it stands."""
    monkeypatch.setattr(Catalog, "latest_in", Catalog.now_in)
    monkeypatch.setattr(Catalog, "earliest", Catalog.now)
    with pytest.raises(AssertionError, match="rows are doubled"):
        jump_while_running(short_window, clock, seconds)


@JUMPS
@pytest.mark.scenario("clock off")
def test_a_driver_whose_own_clock_is_off_is_refused_and_harmless_where_it_is_allowed(
    make_pipeline, seconds, monkeypatch
):
    right = time.time
    monkeypatch.setattr(clock_skew, "read_host_clock", lambda: right() + seconds)
    live_pipeline = make_pipeline(identity={"window": "30m"}, epoch={"max_rows": 30})
    live_pipeline.send(EVENTS[:30])
    with pytest.raises(ConfigurationError, match="clock of ClickHouse"):
        live_pipeline.run()
    assert not live_pipeline.catalog.exists(), "nothing was begun"
    live_pipeline.document["max_clock_difference"] = "2d"
    # Of Python as a whole, for whoever would ask it.
    monkeypatch.setattr(time, "time", lambda: right() + seconds)
    live_pipeline.run()
    live_pipeline.retain()
    live_pipeline.send(EVENTS)
    live_pipeline.run()
    assert live_pipeline.counts().duplicate == 30
    live_pipeline.assert_exact()


@pytest.mark.scenario("clock off")
def test_a_clock_set_forth_lets_another_driver_in_and_the_first_one_out(make_pipeline, clock):
    live_pipeline = make_pipeline(epoch={"max_rows": 30})
    live_pipeline.send(EVENTS[:30])
    with live_pipeline.start() as running:
        running.wait_for_rows(30)
        with pytest.raises(LeaseHeldError):
            take_ingest(live_pipeline)
        clock.ahead_seconds = HOUR
        taken = take_ingest(live_pipeline)
        live_pipeline.send(EVENTS[20:])
        assert isinstance(running.wait_for_error(), FencedError)
    assert live_pipeline.counts().read == 30
    leases.release(live_pipeline.catalog, taken)
    clock.ahead_seconds = 0.0
    live_pipeline.run()
    live_pipeline.assert_exact()


def take_ingest(live_pipeline: LivePipeline) -> Lease:
    return leases.acquire(live_pipeline.catalog, Stage.INGEST, holder="another machine", lease_seconds=600)
