"""A standby of the catalog's PostgreSQL is promoted without the last transactions: a loud stop, and an exact remedy.

A real primary with a real standby. What the primary confirmed from some moment on, the standby never got: epochs,
batches, attempts and their outcomes, of which ClickHouse has the rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from live_pipeline import LivePipeline, make_event, wait_until
from oncehouse.cli.app import run_command
from oncehouse.errors import CatalogBehindError, OncehouseError
from oncehouse.ledger import take_lease
from oncehouse.ledger.catalog import epochs, leases
from oncehouse.ledger.catalog.batches import waiting_batches
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.schema import leases as lease_rows
from oncehouse.pipeline.checks import stale_catalog
from oncehouse.pipeline.repair.repair import plan_repair
from postgres_pair import PostgresPair

AN_EPOCH = 60
EVENTS = [make_event(number) for number in range(10 * AN_EPOCH)]
BY_ONE_AND_BY_MANY = pytest.mark.parametrize("lost_epochs", [1, 3])


@pytest.fixture
def pair(tmp_path_factory) -> Iterator[PostgresPair]:
    with PostgresPair(tmp_path_factory.mktemp("pair")) as started:
        yield started


@pytest.fixture
def pair_pipeline(make_pipeline, pair) -> LivePipeline:
    return make_pipeline(epoch={"max_rows": AN_EPOCH}, ledger={"catalog": pair.url})


def deliver_beyond(live_pipeline: LivePipeline, pair: PostgresPair, running, *, lost_epochs: int) -> None:
    """One epoch that the standby has, and some that are in ClickHouse and that it has not."""
    live_pipeline.send(EVENTS[:AN_EPOCH])
    running.wait_for_rows(AN_EPOCH)
    wait_until(
        lambda: running.error or not waiting_batches(live_pipeline.catalog), "the first batch to be settled"
    )
    pair.cut_off()
    before = epochs.next_epoch(live_pipeline.catalog)
    for end in range(2 * AN_EPOCH, (2 + lost_epochs) * AN_EPOCH, AN_EPOCH):
        live_pipeline.send(EVENTS[end - AN_EPOCH : end])
        running.wait_for_rows(end)
    wait_until(
        lambda: running.error or not waiting_batches(live_pipeline.catalog), "the batches to be settled"
    )
    assert epochs.next_epoch(live_pipeline.catalog) - before == lost_epochs


def lose_under_driver(
    live_pipeline: LivePipeline, pair: PostgresPair, *, lost_epochs: int
) -> Exception | None:
    """What ends the driver; None where it goes on until it is stopped."""
    with live_pipeline.start() as running:
        deliver_beyond(live_pipeline, pair, running, lost_epochs=lost_epochs)
        pair.fail_over()
        newest = EVENTS[-AN_EPOCH:]
        live_pipeline.send(newest)
        wait_until(
            lambda: running.error or {event for event, _ in live_pipeline.rows()} >= set(newest),
            "the driver to stop or to go on",
        )
        error, running.error = running.error, None
    return error


def lose_before_start(
    live_pipeline: LivePipeline, pair: PostgresPair, *, lost_epochs: int
) -> Exception | None:
    """What keeps the next driver from starting; None where it starts."""
    with live_pipeline.start() as running:
        deliver_beyond(live_pipeline, pair, running, lost_epochs=lost_epochs)
    pair.fail_over()
    live_pipeline.send(EVENTS[-AN_EPOCH:])
    try:
        live_pipeline.run()
    except OncehouseError as error:
        return error
    return None


def command(live_pipeline: LivePipeline, *words: str) -> int:
    return run_command([*live_pipeline.command_line(words[0], *words[1:])[3:]])


def assert_refused_at_each_start(live_pipeline: LivePipeline) -> None:
    before = leases.list_leases(live_pipeline.catalog)
    for _ in range(2):
        assert command(live_pipeline, "run", "--once") == CatalogBehindError.exit_code
    assert [lease.token for lease in leases.list_leases(live_pipeline.catalog)] == [
        lease.token for lease in before
    ]


def repair(live_pipeline: LivePipeline) -> None:
    # That they were given back is lost too.
    wait_until(
        lambda: all(
            lease.expires_at < live_pipeline.catalog.now()
            for lease in leases.list_leases(live_pipeline.catalog)
        ),
        "the leases to run out",
    )
    assert command(live_pipeline, "repair", "--plan") == 3
    live_pipeline.age_marks()
    assert command(live_pipeline, "repair", "--apply") == 0
    assert plan_repair(live_pipeline.pipeline).is_clean


def go_on(live_pipeline: LivePipeline) -> None:
    live_pipeline.run()
    live_pipeline.assert_exact()


@pytest.mark.scenario("catalog loses transactions under a driver")
@BY_ONE_AND_BY_MANY
def test_a_driver_stops_when_its_catalog_has_lost_what_it_confirmed(pair_pipeline, pair, lost_epochs):
    error = lose_under_driver(pair_pipeline, pair, lost_epochs=lost_epochs)
    assert isinstance(error, CatalogBehindError), error
    assert "oncehouse repair --plan" in str(error)
    assert_refused_at_each_start(pair_pipeline)
    repair(pair_pipeline)
    go_on(pair_pipeline)


@pytest.mark.scenario("catalog loses transactions before a start")
@pytest.mark.parametrize("lost_epochs", [pytest.param(1, marks=pytest.mark.short), 3])
def test_a_driver_does_not_start_on_a_catalog_that_has_lost_what_was_sent(pair_pipeline, pair, lost_epochs):
    error = lose_before_start(pair_pipeline, pair, lost_epochs=lost_epochs)
    assert isinstance(error, CatalogBehindError), error
    assert_refused_at_each_start(pair_pipeline)
    repair(pair_pipeline)
    go_on(pair_pipeline)


# With a defect


def look_at_no_mark(monkeypatch) -> None:
    """Nobody asks whether the catalog has come to what was sent."""
    monkeypatch.setattr(take_lease, "describe_ahead", lambda *_: None)
    monkeypatch.setattr(stale_catalog, "describe_ahead_of_sound", lambda *_: None)


def look_at_no_file(monkeypatch) -> None:
    """Nor whether files of epochs that it has lost are there, which are many."""
    monkeypatch.setattr(stale_catalog, "find_newer", lambda *_, **__: None)


def look_at_the_token_alone(monkeypatch) -> None:
    """A process does not compare the catalog with the writes that it has seen confirmed, nor with its own name."""

    def own_token(catalog: Catalog, stage, token):
        mine = (lease_rows.c.pipeline == catalog.pipeline, lease_rows.c.stage == stage)
        return *mine, lease_rows.c.token == token

    monkeypatch.setattr(Catalog, "own_term", own_token)


def assert_doubled(live_pipeline: LivePipeline) -> None:
    with pytest.raises(AssertionError, match="rows are doubled"):
        go_on(live_pipeline)


@pytest.mark.defect("catalog loses transactions under a driver")
@BY_ONE_AND_BY_MANY
def test_a_driver_that_trusts_its_catalog_is_noticed(pair_pipeline, pair, lost_epochs, monkeypatch):
    look_at_no_mark(monkeypatch)
    look_at_no_file(monkeypatch)
    look_at_the_token_alone(monkeypatch)
    assert not isinstance(lose_under_driver(pair_pipeline, pair, lost_epochs=lost_epochs), CatalogBehindError)
    assert_doubled(pair_pipeline)


@pytest.mark.defect("catalog loses transactions before a start")
@BY_ONE_AND_BY_MANY
def test_a_start_that_looks_at_no_mark_is_noticed(pair_pipeline, pair, lost_epochs, monkeypatch):
    look_at_no_mark(monkeypatch)
    look_at_no_file(monkeypatch)
    assert lose_before_start(pair_pipeline, pair, lost_epochs=lost_epochs) is None
    assert_doubled(pair_pipeline)
