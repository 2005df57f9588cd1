"""A server that goes away and comes back: what is said, when, and what the lease says meanwhile."""

from __future__ import annotations

import pytest

from live_pipeline import wait_until
from oncehouse.errors import TransientError
from oncehouse.ledger.catalog import leases
from oncehouse.ledger.catalog.leases import LeasePauses, acquire, list_leases
from oncehouse.ledger.models import Stage
from oncehouse.pipeline.stages import server_watch
from oncehouse.pipeline.stages.server_watch import ServerWatch, WatchedServer


class Setup:
    def __init__(self, catalog) -> None:
        self.catalog = catalog
        self.trouble: str | None = None
        self.said: list[str] = []
        self.clock = 100.0
        lease = acquire(catalog, Stage.INGEST, holder="this test", lease_seconds=600)
        self.pauses = LeasePauses(catalog, lease)
        server = WatchedServer(
            name="Kafka at k:9092", find_trouble=lambda: self.trouble, meanwhile="Nothing is read."
        )
        self.watch = ServerWatch(server, self.pauses, say=self.said.append, now=lambda: self.clock)

    @property
    def note(self) -> str | None:
        (lease,) = list_leases(self.catalog)
        return lease.pause


@pytest.fixture
def setup(catalog) -> Setup:
    return Setup(catalog)


def test_an_outage_is_said_once_noted_in_the_lease_and_over_when_the_server_answers(setup):
    setup.watch.ask()
    setup.trouble = "timed out"
    for _ in range(5):
        setup.watch.ask()
        setup.clock += 4
    assert setup.said == ["Kafka at k:9092 does not answer (timed out). Nothing is read."]
    assert setup.note == "Kafka at k:9092 does not answer (timed out)"
    setup.trouble = None
    setup.watch.ask()
    setup.watch.ask()
    assert setup.said[1:] == ["Kafka at k:9092 answers again, after 16 s."]
    assert setup.note is None


def test_a_single_failure_is_no_outage_but_for_who_decides_by_it(setup):
    setup.trouble = "timed out"
    setup.watch.ask()
    setup.trouble = None
    setup.watch.ask()
    assert (setup.said, setup.note) == ([], None)
    setup.trouble = "refused"
    assert setup.watch.is_away()
    assert len(setup.said) == 1
    setup.trouble = None
    assert setup.watch.is_away(), "a moment ago it was"
    setup.clock += 1
    assert not setup.watch.is_away()


def test_a_probe_that_fails_in_an_unknown_way_is_said_once_and_asked_again(setup, monkeypatch):
    monkeypatch.setattr(server_watch, "PROBE_SECONDS", 0.001)
    failures = iter([ValueError("odd")] * 5)

    def find_trouble():
        if (error := next(failures, None)) is not None:
            raise error
        return "refused"

    server = WatchedServer(name="Kafka at k:9092", find_trouble=find_trouble, meanwhile="Nothing is read.")
    with ServerWatch(server, setup.pauses, say=setup.said.append).watching():
        wait_until(lambda: setup.note is not None, "the note in the lease")
    assert setup.said == [
        "It is unknown whether Kafka at k:9092 answers (ValueError: odd). It is asked again.",
        "Kafka at k:9092 does not answer (refused). Nothing is read.",
    ]


def test_pauses_of_several_reasons_are_all_noted_and_end_one_by_one(setup):
    setup.pauses.set("backpressure", "5B are free")
    setup.trouble = "refused"
    setup.watch.is_away()
    assert setup.note == "5B are free; Kafka at k:9092 does not answer (refused)"
    setup.pauses.set("backpressure", None)
    assert setup.note == "Kafka at k:9092 does not answer (refused)"


def test_what_the_catalog_could_not_take_is_noted_when_it_can(setup, monkeypatch):
    def refuse(*_arguments):
        raise TransientError("away")

    setup.trouble = "refused"
    with monkeypatch.context() as away:
        away.setattr(leases, "note_pause", refuse)
        setup.watch.is_away()
    assert len(setup.said) == 1
    assert setup.note is None
    setup.pauses.write()
    assert setup.note is not None
