"""A real PostgreSQL as the catalog of the simulated pipeline, its connections cut at many different commits."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from simulation import Simulation, Step, describe_pipeline, take_leases
from sqlalchemy import make_url

from commit_proxy import CommitProxy, Cut
from oncehouse.devstack.chaos.injected_defects import register_anywhere
from oncehouse.errors import TransientError
from oncehouse.ledger.catalog import epochs
from oncehouse.ledger.catalog import registration as registering
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.lease_terms import Terms
from oncehouse.pipeline.schema.identity_guard import identity_of

# Every transaction of a stage that moves events on.
WRITES = (b"INSERT INTO oncehouse_epochs", b"INSERT INTO oncehouse_batches", b"oncehouse_attempts")


@pytest.fixture
def proxy(postgres) -> Iterator[CommitProxy]:
    with CommitProxy(server_port=postgres.place.ports["postgres"], texts=WRITES) as made:
        yield made


@pytest.fixture
def simulation(proxy, postgres_url, tmp_path) -> Iterator[Simulation]:
    url = make_url(postgres_url).set(host="127.0.0.1", port=proxy.port)
    # Without TLS, so that the proxy can read what passes.
    spelled = url.update_query_dict({"sslmode": "disable"}).render_as_string(hide_password=False)
    yield from open_simulation(spelled, tmp_path)


def open_simulation(url: str, folder: Path) -> Iterator[Simulation]:
    pipeline = describe_pipeline(folder)
    catalog = Catalog(url, pipeline.pipeline, retry_seconds=(0.01,) * 5)
    try:
        catalog.prepare()
        catalog.adopt(identity_of(pipeline))
        yield Simulation(pipeline, catalog, take_leases(pipeline, catalog, "process 1"))
    finally:
        catalog.close()


def cut_commits(simulation: Simulation, proxy: CommitProxy, seed: int) -> None:
    """Epochs with duplicates among them, while a third of the commits fails, this way or that."""
    chance = random.Random(seed)
    proxy.plan(*chance.choices([Cut.BEFORE, Cut.AFTER, Cut.NOT], weights=[1, 1, 4], k=200))
    for turn in range(12):
        simulation.produce(turn % 2, *chance.choices(range(40), k=8))
        simulation.do(Step(kind="settle", numbers=(20, 1)))
        simulation.do(Step(kind="cut"))
        simulation.do(Step(kind="load", numbers=(chance.choice([0, 0, 3]),)))
    simulation.drain()
    assert proxy.happened[Cut.BEFORE], proxy.happened
    assert proxy.happened[Cut.AFTER], proxy.happened


@pytest.mark.scenario("commit cut")
@pytest.mark.parametrize("seed", range(3))
def test_commits_cut_at_random_count_once_or_not_at_all(simulation, proxy, seed, record_property):
    record_property("seed", seed)
    cut_commits(simulation, proxy, seed)
    simulation.assert_exact()


@pytest.mark.defect("commit cut")
def test_an_unknown_commit_that_is_taken_for_done_is_noticed(simulation, proxy, monkeypatch):
    take_unknown_for_done(monkeypatch)
    cut_commits(simulation, proxy, 0)
    monkeypatch.undo()
    with pytest.raises(AssertionError, match="what arrived is not what was produced"):
        simulation.assert_exact()


def take_unknown_for_done(monkeypatch) -> None:
    """A commit that was not answered counts as done, and reading goes on where it would end.

    Nor is it checked that ranges join, or that the catalog has what was counted as done, which would stop it.
    """
    monkeypatch.setattr(Terms, "find", lambda *_: None)
    transaction, register = Catalog._transaction, registering.register
    read_positions, anywhere = epochs.read_positions, register_anywhere()
    ends: dict[tuple[str, int], int] = {}

    def believe(catalog, run) -> None:
        ran = []

        def noting(connection) -> None:
            run(connection)
            ran.append(True)

        try:
            transaction(catalog, noting)
        except TransientError:
            if not ran:
                raise

    def remember(catalog, token, registration) -> None:
        register(catalog, token, registration)
        ends.update({(span.topic, span.partition): span.end for span in registration.ranges})

    def go_on(catalog) -> dict[tuple[str, int], int]:
        return read_positions(catalog) | ends

    monkeypatch.setattr(Catalog, "_transaction", believe)
    monkeypatch.setattr(registering, "_advance", anywhere)
    monkeypatch.setattr(registering, "register", remember)
    monkeypatch.setattr(epochs, "read_positions", go_on)
