"""The holder of the ingest lease changes the identity rule beside its epochs, and keeps going whatever comes of it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from simulation import InlineSpark, InlineTasks, Simulation, simulate

from oncehouse.errors import ConfigurationError, PermanentError
from oncehouse.ledger import epochs, rekeying, requests
from oncehouse.ledger.records import RequestKind, Stage
from oncehouse.pipeline import rekey
from oncehouse.pipeline.adopting import identity_of, spell_section, under_ledgers_rule
from oncehouse.pipeline.deciding import Deciding

pytestmark = pytest.mark.short


class PooledSpark(InlineSpark):
    def __init__(self) -> None:
        self.at_once: list[int] = []

    def parallelize(self, plans: list[Any], slices: int) -> InlineTasks:
        self.at_once.append(slices)
        return super().parallelize(plans, slices)

    def setLocalProperty(self, _name: str, _value: str) -> None:  # noqa: N802 - Spark's own name
        """Pools are nothing to tasks that run where they are planned."""


def hold(simulation: Simulation) -> Deciding:
    """What a running pipeline has, with the file that the simulation has."""
    stages = SimpleNamespace(
        spark=PooledSpark(),
        catalog=simulation.catalog,
        pipeline=simulation.pipeline,
        leases=simulation.held,
        report=SimpleNamespace(add_epoch=lambda counts: None),
        say=simulation.said.append,
        filing=threading.Lock(),
    )
    deciding = Deciding(stages)
    deciding._performer.rekeys = False
    return deciding


def ask(simulation: Simulation, **identity: object) -> int:
    """As `oncehouse rekey --apply` asks, from a file that nobody else has yet."""
    edited = simulation.pipeline.model_copy(
        update={"identity": simulation.pipeline.identity.model_copy(update=identity)}
    )
    asked = identity_of(edited)
    arguments: dict[str, object] = {
        "fingerprint": asked.fingerprint,
        "buckets": asked.buckets,
        "rule": spell_section(edited),
    }
    return requests.add_request(simulation.catalog, RequestKind.REKEY, arguments)


@pytest.fixture
def small_rounds(monkeypatch):
    monkeypatch.setattr(rekey, "NEAR_EVENTS", 0)
    monkeypatch.setattr(rekey, "ROUND_EVENTS", 3)


def settle(simulation: Simulation, deciding: Deciding, partition: int, *ids: int) -> None:
    """An epoch as the holder settles it, under the rule that it has."""
    simulation.produce(partition, *ids)
    simulation.pipeline = deciding._pipeline
    with patch.object(simulation, "perform", lambda: None):  # requests are the holder's business
        simulation.settle(20, 1)


def change_all(simulation: Simulation, deciding: Deciding) -> int:
    rounds = 0
    while deciding._change_rule():
        rounds += 1
        settle(simulation, deciding, rounds, rounds, 20 + rounds)
    simulation.pipeline = deciding._pipeline
    return rounds


@pytest.mark.usefixtures("small_rounds")
@pytest.mark.parametrize("changes", [{"buckets": 16}, {"fields": ("id",), "buckets": 8}])
def test_epochs_go_on_until_the_rule_has_changed_and_then_have_it(changes):
    with simulate() as simulation:
        simulation.produce(0, *range(12))
        for _ in range(4):
            simulation.settle(3, 1)
        deciding = hold(simulation)
        ask(simulation, **changes)
        assert change_all(simulation, deciding) > 1
        assert deciding._pipeline.identity.buckets == changes["buckets"]
        assert simulation.catalog.identity() == identity_of(deciding._pipeline)
        assert not requests.open_requests(simulation.catalog)
        settle(simulation, deciding, 0, *range(15))
        simulation.drain()
        simulation.assert_exact()
        assert "Preparing the new identity rule while events come in under the old one." in simulation.said


def test_a_round_beside_epochs_leaves_half_of_the_cores_to_them(monkeypatch):
    monkeypatch.setattr(rekey, "NEAR_EVENTS", 0)
    monkeypatch.setattr(PooledSpark, "defaultParallelism", 4)
    with simulate() as simulation:
        simulation.produce(0, *range(12))
        for _ in range(6):
            simulation.settle(2, 1)
        deciding = hold(simulation)
        ask(simulation, fields=("id", "note"))
        assert deciding._change_rule(), "the first call makes a round"
        assert max(deciding._spark.at_once) == 2
        assert len(deciding._spark.at_once) >= 6 // 2


def test_the_loop_beside_the_epochs_changes_the_rule_by_itself():
    with simulate() as simulation:
        simulation.produce(0, 1, 2, 3)
        simulation.settle(10, 1)
        deciding, stop = hold(simulation), threading.Event()
        ask(simulation, buckets=16)
        thread = threading.Thread(target=deciding.keep_compact, args=(stop,))
        thread.start()
        try:
            while requests.open_requests(simulation.catalog) and thread.is_alive():
                stop.wait(0.02)
        finally:
            stop.set()
            thread.join()
        assert simulation.catalog.identity().buckets == 16


def test_a_rule_that_kept_events_do_not_fit_is_refused_and_the_old_one_goes_on():
    with simulate() as simulation:
        simulation.produce(0, 1, 2)
        simulation.settle(10, 1)
        before, deciding = simulation.catalog.identity(), hold(simulation)
        ask(simulation, key=True)
        assert not deciding._change_rule()
        (refused,) = requests.list_requests(simulation.catalog)
        assert "the key, which belongs to the identity, is missing" in str(refused.result)
        assert simulation.catalog.identity() == before
        settle(simulation, deciding, 0, 2, 3)
        simulation.drain()
        simulation.assert_exact()


def test_a_file_whose_rule_the_ledger_will_not_get_does_not_go_on():
    with simulate() as simulation:
        simulation.produce(0, 1, 2)
        simulation.settle(10, 1)
        simulation.catalog.adopt(identity_of(simulation.pipeline), rule=spell_section(simulation.pipeline))
        ask(simulation, key=True)
        simulation.pipeline = simulation.pipeline.model_copy(
            update={"identity": simulation.pipeline.identity.model_copy(update={"key": True})}
        )
        deciding = hold(simulation)
        assert not deciding._pipeline.identity.key, "until then it runs under the rule that holds"
        with pytest.raises(PermanentError, match="cannot be changed"):
            deciding._change_rule()


def test_a_process_that_lacks_what_the_rule_needs_stops_and_leaves_the_request():
    with simulate() as simulation:
        simulation.produce(0, 1)
        simulation.settle(10, 1)
        deciding = hold(simulation)
        arguments: dict[str, object] = {"fingerprint": '["sha256-128/1", ["other", "integer"]]', "buckets": 4}
        requests.add_request(simulation.catalog, RequestKind.REKEY, arguments)
        with pytest.raises(ConfigurationError, match="Start with the file that has the new rule"):
            deciding._change_rule()
        assert requests.open_requests(simulation.catalog)


@pytest.mark.usefixtures("small_rounds")
def test_a_request_that_is_taken_back_on_the_way_leaves_nothing_behind():
    with simulate() as simulation:
        simulation.produce(0, *range(9))
        for _ in range(3):
            simulation.settle(3, 1)
        before, deciding = simulation.catalog.identity(), hold(simulation)
        ask(simulation, buckets=16)
        assert deciding._change_rule()
        requests.withdraw_requests(simulation.catalog, RequestKind.REKEY)
        assert not deciding._change_rule()
        assert not rekeying.prepared_paths(simulation.catalog)
        assert simulation.catalog.identity() == before


@pytest.mark.usefixtures("small_rounds")
def test_the_next_process_goes_on_where_the_last_one_was_whichever_file_it_has():
    with simulate() as simulation:
        simulation.catalog.adopt(identity_of(simulation.pipeline), rule=spell_section(simulation.pipeline))
        simulation.produce(0, *range(9))
        for _ in range(3):
            simulation.settle(3, 1)
        number = ask(simulation, buckets=16)
        assert hold(simulation)._change_rule()
        done = rekeying.read_progress(simulation.catalog, number).key_files_done
        assert done
        simulation.take_over()
        old = simulation.pipeline
        new = old.model_copy(update={"identity": old.identity.model_copy(update={"buckets": 16})})
        assert under_ledgers_rule(new, simulation.catalog).identity == old.identity
        simulation.pipeline = new
        deciding = hold(simulation)
        assert deciding._change_rule()
        assert rekeying.read_progress(simulation.catalog, number).key_files_done > done
        change_all(simulation, deciding)
        assert simulation.catalog.identity().buckets == 16
        simulation.drain()
        simulation.assert_exact()


def test_key_files_that_retention_dropped_under_a_round_are_left_out_next_time():
    with simulate() as simulation:
        simulation.produce(0, *range(6))
        for _ in range(2):
            simulation.settle(3, 1)
        simulation.drain()
        deciding = hold(simulation)
        ask(simulation, key=False, fields=("note",))
        changing = deciding._performer.begin_rekey(requests.open_rekey(simulation.catalog))
        assert changing is not None
        changing._chosen = {found.key_file for _, _, found in epochs.list_key_files(simulation.catalog)}
        assert not changing.lost_files()
        simulation.age_first_epoch()
        simulation.retain()
        assert changing.lost_files()
        assert simulation.held[Stage.INGEST]
