"""Kafka or ClickHouse goes away under a running driver: that is said, and shown to others, within ten seconds.

And again when it is back. Nothing waits for either of them meanwhile, so that only the watch can notice.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from live_pipeline import LivePipeline, make_event, wait_until
from oncehouse.ledger.models import Stage
from oncehouse.metrics import definitions
from oncehouse.metrics.collect import activity_samples
from oncehouse.monitoring.overview import list_lease_views
from oncehouse.monitoring.pipelines import read_activity
from oncehouse.pipeline.stages.server_watch import ServerWatch

EVENTS = [make_event(number) for number in range(60)]
PROMISED_SECONDS = 10.0


def take_away(live_pipeline: LivePipeline, stack, server: str, stage: Stage, name: str) -> None:
    live_pipeline.send(EVENTS[:40])
    with live_pipeline.start() as running:
        running.wait_for_rows(40)
        assert find_pause(live_pipeline, stage) is None
        stack.kill(server)
        wait_until(
            lambda: any(f"{name} at" in said and "does not answer" in said for said in live_pipeline.said),
            f"a line about {name}",
            seconds=PROMISED_SECONDS,
        )
        wait_until(
            lambda: f"{name} at" in (find_pause(live_pipeline, stage) or ""),
            "its note in the lease",
            seconds=PROMISED_SECONDS,
        )
        assert_shown(live_pipeline, stage, name)
        stack.start(server)
        wait_until(
            lambda: any(f"{name} at" in said and "answers again" in said for said in live_pipeline.said),
            f"a line that {name} is back",
            seconds=PROMISED_SECONDS,
        )
        wait_until(lambda: find_pause(live_pipeline, stage) is None, "the end of the note")
        live_pipeline.send(EVENTS[20:])
        running.wait_for_rows(60)
    live_pipeline.assert_exact()


def find_pause(live_pipeline: LivePipeline, stage: Stage) -> str | None:
    """As `oncehouse leases` and the dashboard have it."""
    return next(view.pause for view in list_lease_views(live_pipeline.catalog) if view.stage is stage)


def assert_shown(live_pipeline: LivePipeline, stage: Stage, name: str) -> None:
    samples = activity_samples(read_activity(live_pipeline.pipeline, live_pipeline.catalog))
    paused = {one.labels: one.value for one in samples if one.metric is definitions.PAUSED}
    assert paused["live", stage] == 1
    told = subprocess.run(
        live_pipeline.command_line("status"), capture_output=True, text=True, check=True
    ).stdout
    assert f"{stage} pauses: {name} at" in told


@contextmanager
def watch_nothing(_watch: ServerWatch) -> Iterator[None]:
    yield


KAFKA: tuple[str, Stage, str] = ("kafka", Stage.INGEST, "Kafka")
CLICKHOUSE: tuple[str, Stage, str] = ("clickhouse", Stage.LOAD, "ClickHouse")
Take = Callable[[tuple[str, Stage, str]], None]


@pytest.fixture
def take(live_pipeline, stack) -> Iterator[Take]:
    taken: list[str] = []

    def take(server: tuple[str, Stage, str]) -> None:
        taken.append(server[0])
        take_away(live_pipeline, stack, *server)

    yield take
    for name in taken:
        stack.start(name)  # also where the test ended before its return


@pytest.mark.short
@pytest.mark.scenario("Kafka away under a driver")
def test_a_kafka_that_goes_away_is_told_of_within_seconds_and_so_is_its_return(take):
    take(KAFKA)


@pytest.mark.scenario("ClickHouse away under a driver")
def test_a_clickhouse_that_goes_away_is_told_of_within_seconds_and_so_is_its_return(take):
    take(CLICKHOUSE)


@pytest.mark.defect("Kafka away under a driver")
def test_a_driver_that_waits_for_sparks_own_client_to_give_up_is_noticed(take, monkeypatch):
    monkeypatch.setattr(ServerWatch, "watching", watch_nothing)
    with pytest.raises(AssertionError, match="waited in vain: a line about Kafka"):
        take(KAFKA)


@pytest.mark.defect("ClickHouse away under a driver")
def test_a_driver_that_asks_only_when_it_has_something_to_insert_is_noticed(take, monkeypatch):
    monkeypatch.setattr(ServerWatch, "watching", watch_nothing)
    with pytest.raises(AssertionError, match="waited in vain: a line about ClickHouse"):
        take(CLICKHOUSE)
