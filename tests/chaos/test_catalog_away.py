"""PostgreSQL as the catalog goes away for a while, or in the middle of a COMMIT: waited for, and looked up."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError

from commit_proxy import CommitProxy, Cut
from live_pipeline import LivePipeline, make_event, wait_until
from oncehouse.common import failpoints
from oncehouse.devstack.chaos.injected_defects import register_anywhere
from oncehouse.errors import TransientError
from oncehouse.ledger.catalog import epochs, registration
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.lease_terms import Terms
from oncehouse.ledger.models import Counts
from oncehouse.pipeline.ingest import kafka_source
from oncehouse.pipeline.stages import kafka_stream

EVENTS = [make_event(number) for number in range(150)]
# What each stage writes at the steps that move events on.
WRITES = (
    b"INSERT INTO oncehouse_epochs",
    b"INSERT INTO oncehouse_batches",
    b"INSERT INTO oncehouse_attempts",
)


# Away


@pytest.fixture
def away_pipeline(make_pipeline, postgres) -> LivePipeline:
    # A database of its own, made without a connection that would have to outlive the server.
    with psycopg.connect(postgres.url.replace("+psycopg", "", 1), autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS gone_for_a_while")
        connection.execute("CREATE DATABASE gone_for_a_while")
    url = postgres.url.rsplit("/", 1)[0] + "/gone_for_a_while"
    return make_pipeline(epoch={"max_rows": 60}, ledger={"catalog": url})


def take_the_catalog_away(live_pipeline: LivePipeline, stack, monkeypatch) -> None:
    """It goes when an epoch is about to be registered, and comes back when it is missed."""
    reach, wrap, gone, missed = failpoints.reach, Catalog._wrapped, threading.Event(), threading.Event()

    def lose_the_catalog(point: str) -> None:
        if point == "before registering" and not gone.is_set():
            gone.set()
            stack.kill("postgres")
        reach(point)

    def miss_the_catalog(catalog: Catalog, error: DBAPIError) -> Exception:
        if gone.is_set():
            missed.set()
        return wrap(catalog, error)

    live_pipeline.send(EVENTS[:60])
    with live_pipeline.start() as running:
        running.wait_for_rows(60)
        monkeypatch.setattr(failpoints, "reach", lose_the_catalog)
        monkeypatch.setattr(Catalog, "_wrapped", miss_the_catalog)
        live_pipeline.send(EVENTS[30:])
        wait_until(lambda: running.error or missed.is_set(), "somebody to miss it")
        stack.start("postgres")
        live_pipeline.send(EVENTS[:10])
        wait_until(lambda: running.error or has_read_to_the_end(live_pipeline), "the rest to be read")
    live_pipeline.run()


def has_read_to_the_end(live_pipeline: LivePipeline) -> bool:
    try:
        return sum(epochs.read_positions(live_pipeline.catalog).values()) == live_pipeline.produced
    except TransientError:
        return False


@pytest.mark.scenario("catalog away")
def test_a_catalog_that_is_gone_for_a_while_is_waited_for(away_pipeline, stack, monkeypatch):
    take_the_catalog_away(away_pipeline, stack, monkeypatch)
    away_pipeline.assert_exact()


@pytest.mark.defect("catalog away")
def test_offsets_that_go_on_while_the_catalog_is_away_are_noticed(away_pipeline, stack, monkeypatch):
    """An epoch that cannot be registered is given up, and reading goes on behind it."""
    settle, starting_positions = kafka_stream.settle, kafka_source.starting_positions
    ends: dict[tuple[str, int], int] = {}

    def settle_or_not(spark, pipeline, catalog, token, read, given, *, small) -> Counts:
        ends.update({(span.topic, span.partition): span.end for span in given.ranges})
        try:
            return settle(spark, pipeline, catalog, token, read, given, small=small)
        except TransientError:
            return Counts()

    def go_on(*facts) -> dict[tuple[str, int], int]:
        return {place: max(at, ends.get(place, 0)) for place, at in starting_positions(*facts).items()}

    monkeypatch.setattr(kafka_stream, "settle", settle_or_not)
    monkeypatch.setattr(kafka_source, "starting_positions", go_on)
    monkeypatch.setattr(Catalog, "_retry", lambda _, attempt: attempt())
    monkeypatch.setattr(registration, "_advance", register_anywhere())
    take_the_catalog_away(away_pipeline, stack, monkeypatch)
    with pytest.raises(AssertionError, match="events are lost"):
        away_pipeline.assert_exact()


# Cut in the middle of a commit


@pytest.fixture
def proxy(postgres, postgres_url) -> Iterator[CommitProxy]:
    with CommitProxy(server_port=postgres.place.ports["postgres"], texts=WRITES) as made:
        yield made


@pytest.fixture
def cut_pipeline(make_pipeline, proxy, postgres_url) -> LivePipeline:
    url = make_url(postgres_url).set(host="127.0.0.1", port=proxy.port)
    # Without TLS, so that the proxy can read what passes.
    catalog = url.update_query_dict({"sslmode": "disable"}).render_as_string(hide_password=False)
    return make_pipeline(epoch={"max_rows": 30}, ledger={"catalog": catalog})


def cut_commits(live_pipeline: LivePipeline, proxy: CommitProxy) -> None:
    """Of all commits that move events on, every other one fails, this way and that."""
    live_pipeline.send([*EVENTS, *EVENTS[:20]])
    proxy.plan(*([Cut.BEFORE, Cut.NOT, Cut.AFTER, Cut.NOT] * 5))
    live_pipeline.run()
    assert min(proxy.happened[Cut.BEFORE], proxy.happened[Cut.AFTER]) >= 3, proxy.happened


@pytest.mark.scenario("commit cut")
def test_a_commit_whose_answer_is_lost_is_looked_up_and_counts_once(cut_pipeline, proxy):
    cut_commits(cut_pipeline, proxy)
    numbers = sorted(epoch.epoch for epoch in epochs.list_epochs(cut_pipeline.catalog))
    assert numbers == list(range(1, len(numbers) + 1))
    cut_pipeline.assert_exact()


@pytest.mark.defect("commit cut")
def test_an_unknown_commit_that_is_taken_for_done_is_noticed(cut_pipeline, proxy, monkeypatch):
    # What counts as done would be missed at the next write.
    monkeypatch.setattr(Terms, "find", lambda *_: None)
    right = Catalog._transaction

    def believe(catalog, run) -> None:
        ran = []

        def noting(connection) -> None:
            run(connection)
            ran.append(True)

        try:
            right(catalog, noting)
        except TransientError:
            if not ran:
                raise

    monkeypatch.setattr(Catalog, "_transaction", believe)
    monkeypatch.setattr(registration, "_advance", register_anywhere())
    cut_commits(cut_pipeline, proxy)
    with pytest.raises(AssertionError, match="events are lost"):
        cut_pipeline.assert_exact()
