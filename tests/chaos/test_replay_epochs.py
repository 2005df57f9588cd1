"""Dead letters are replayed in epochs that begin small, so that a process that never lives long gets on."""

from __future__ import annotations

import threading

import pytest
from simulation import Simulation, simulate

from oncehouse.config.pipeline import Pipeline
from oncehouse.ledger.catalog import batches, epochs
from oncehouse.ledger.catalog.requests import add_request, list_requests, open_requests
from oncehouse.ledger.models import Counts, RequestKind, Stage
from oncehouse.pipeline.maintenance.verify import verify
from oncehouse.pipeline.requests import dead_letter_replay
from oncehouse.pipeline.requests.handler import RequestHandler

pytestmark = pytest.mark.short

RECORDS = 20


def make_performer(simulation: Simulation, **options) -> RequestHandler:
    token = simulation.held[Stage.INGEST].token
    return RequestHandler(
        simulation.spark, simulation.pipeline, simulation.catalog, token, say=lambda _: None, **options
    )


def make_dead(simulation: Simulation) -> None:
    """Ten files of two letters, of which all but the last two become rows when they are tried again."""
    sound, given = simulation.pipeline, simulation.pipeline.model_dump()
    given["source"] |= {"fields": {**given["source"]["fields"], "late": "UInt64"}}
    simulation.pipeline = Pipeline(**given)
    for first in range(0, RECORDS - 2, 2):
        simulation.kafka[0] += [f'{{"id": {number}, "note": "x"}}'.encode() for number in (first, first + 1)]
        simulation.settle(10, 1)
    simulation.kafka[0] += [b"{", b"{"]
    simulation.settle(10, 1)
    simulation.pipeline = sound
    assert count_dead_letters(simulation) == RECORDS


def count_dead_letters(simulation: Simulation) -> int:
    return sum(found.rows for found in epochs.list_dead_letter_files(simulation.catalog))


def assert_replayed(simulation: Simulation) -> None:
    assert count_dead_letters(simulation) == 2
    assert sum(part.live_rows for part in batches.list_parts(simulation.catalog)) == RECORDS - 2
    assert not open_requests(simulation.catalog)
    assert not verify(simulation.pipeline, simulation.catalog, simulation.store, None, files=True).findings


def test_processes_that_are_killed_after_an_epoch_get_on_and_the_last_epoch_ends_the_request(monkeypatch):
    monkeypatch.setattr(dead_letter_replay, "FIRST_RECORDS", 3)
    with simulate() as simulation:
        make_dead(simulation)
        add_request(simulation.catalog, RequestKind.REPLAY_DEAD_LETTERS, {})
        for replayed in (2, 4):
            assert next(make_performer(simulation).perform()) == Counts(read=2, new=2)
            assert count_dead_letters(simulation) == RECORDS - replayed
            assert open_requests(simulation.catalog)
        counts = list(make_performer(simulation).perform())
        assert [one.read for one in counts] == [2, 6, 8]
        assert_replayed(simulation)
        (request,) = list_requests(simulation.catalog)
        assert request.result == "read 16, new 14, duplicate 0, dead letters 2, skipped 0"


def test_a_process_that_is_to_end_stops_between_two_epochs_and_the_next_one_goes_on(monkeypatch):
    monkeypatch.setattr(dead_letter_replay, "FIRST_RECORDS", 3)
    with simulate() as simulation:
        make_dead(simulation)
        add_request(simulation.catalog, RequestKind.REPLAY_DEAD_LETTERS, {})
        turns = iter([False, False, False])
        ending = make_performer(simulation, is_over=lambda: next(turns, True))
        assert [one.read for one in ending.perform()] == [2, 6]
        assert open_requests(simulation.catalog)
        assert [one.read for one in make_performer(simulation).perform()] == [2, 6, 4]
        assert_replayed(simulation)


def test_a_process_that_is_to_end_leaves_the_next_request_to_its_successor(monkeypatch):
    monkeypatch.setattr(dead_letter_replay, "FIRST_RECORDS", 3)
    with simulate() as simulation:
        make_dead(simulation)
        add_request(simulation.catalog, RequestKind.REPLAY_DEAD_LETTERS, {})
        rebuild = add_request(simulation.catalog, RequestKind.REBUILD_INDEX, {})
        is_over = threading.Event()
        for _ in make_performer(simulation, is_over=is_over.is_set).perform():
            is_over.set()
        assert len(open_requests(simulation.catalog)) == 2
        list(make_performer(simulation).perform())
        assert_replayed(simulation)
        assert next(done for done in list_requests(simulation.catalog) if done.request == rebuild).result


def test_few_letters_are_one_epoch():
    with simulate() as simulation:
        make_dead(simulation)
        add_request(simulation.catalog, RequestKind.REPLAY_DEAD_LETTERS, {})
        assert [one.read for one in make_performer(simulation).perform()] == [RECORDS]
        assert_replayed(simulation)
