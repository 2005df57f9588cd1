"""The holder of the ingest lease changes the identity rule between its epochs, and goes on if the change fails."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from simulation import InlineSpark, InlineTasks, Simulation, simulate

from oncehouse.errors import ConfigurationError, PermanentError, TransientError
from oncehouse.ledger.catalog import epochs, requests
from oncehouse.ledger.catalog import rekey as rekeying
from oncehouse.ledger.models import RequestKind, Stage
from oncehouse.pipeline.requests import handler, rekey
from oncehouse.pipeline.schema.identity_guard import format_section, identity_of, under_ledgers_rule
from oncehouse.pipeline.stages.ingest_stage import IngestLeaseHolder

pytestmark = pytest.mark.short


class PooledSpark(InlineSpark):
    def __init__(self) -> None:
        self.at_once: list[int] = []

    def parallelize(self, plans: list[Any], slices: int) -> InlineTasks:
        self.at_once.append(slices)
        return super().parallelize(plans, slices)

    def setLocalProperty(self, _name: str, _value: str) -> None:  # noqa: N802 - Spark's own name
        """Pools are nothing to tasks that run where they are planned."""


def hold(simulation: Simulation) -> IngestLeaseHolder:
    """What a running pipeline has, with the file that the simulation has."""
    stages = SimpleNamespace(
        spark=PooledSpark(),
        catalog=simulation.catalog,
        pipeline=simulation.pipeline,
        leases=simulation.held,
        reporter=SimpleNamespace(add_epoch=lambda counts: None),
        say=simulation.said.append,
        filing=threading.Lock(),
        stop=threading.Event(),
    )
    deciding = IngestLeaseHolder(stages)
    deciding._handler.rekeys = False
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
        "rule": format_section(edited),
    }
    return requests.add_request(simulation.catalog, RequestKind.REKEY, arguments)


@pytest.fixture
def small_rounds(monkeypatch):
    monkeypatch.setattr(rekey, "NEAR_EVENTS", 0)
    monkeypatch.setattr(rekey, "ROUND_EVENTS", 3)


def settle_epochs(simulation: Simulation, number: int, *, events: int) -> None:
    """So many epochs of so many new events each, before anybody asks for another rule."""
    simulation.produce(0, *range(number * events))
    for _ in range(number):
        simulation.settle(events, 1)


def settle(simulation: Simulation, deciding: IngestLeaseHolder, partition: int, *ids: int) -> None:
    """An epoch as the holder settles it, under the rule that it has."""
    simulation.produce(partition, *ids)
    simulation.pipeline = deciding._pipeline
    with patch.object(simulation, "perform", lambda: None):  # requests are the holder's business
        simulation.settle(20, 1)


def change_all(simulation: Simulation, deciding: IngestLeaseHolder) -> int:
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
        settle_epochs(simulation, 4, events=3)
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
        settle_epochs(simulation, 6, events=2)
        deciding = hold(simulation)
        ask(simulation, fields=("id", "note"))
        assert deciding._change_rule(), "the first call makes a round"
        assert deciding._spark.at_once == [2, 1], "one job for the keys and one for the index"


@pytest.mark.usefixtures("small_rounds")
def test_rounds_take_all_cores_when_events_come_in_as_fast_and_reading_does_not_wait_for_them(monkeypatch):
    monkeypatch.setattr(PooledSpark, "defaultParallelism", 4)
    with simulate() as simulation:
        settle_epochs(simulation, 16, events=3)
        deciding = hold(simulation)
        number = ask(simulation, fields=("id", "note"))
        done = []
        for rounds in range(4):
            assert deciding._change_rule()
            done.append(rekeying.read_progress(simulation.catalog, number).events_done)
            settle(simulation, deciding, 0, *range(100 * rounds, 100 * rounds + 3))
            settle(simulation, deciding, 0, *range(100 * rounds + 3, 100 * rounds + 6))
        assert done == [3, 9, 21, 33], "rounds of 3, 6 and 12 events"
        assert deciding._spark.at_once[:4] == [1, 1, 2, 1]
        assert deciding._spark.at_once[4] == 4, "the third takes all cores"
        assert change_all(simulation, deciding)
        simulation.drain()
        simulation.assert_exact()


@pytest.mark.usefixtures("small_rounds")
def test_reading_does_not_wait_for_more_than_a_round_and_the_epoch_that_was_under_way():
    with simulate() as simulation:
        simulation.pipeline = simulation.pipeline.model_copy(
            update={"epoch": simulation.pipeline.epoch.model_copy(update={"max_rows": 4})}
        )
        simulation.produce(0, 1, 2)
        simulation.settle(10, 1)
        deciding, before = hold(simulation), simulation.catalog.identity()
        ask(simulation, buckets=16)
        assert deciding._change_rule()

        class Busy:
            """Lets so many events in before it is held."""

            def __init__(self, *ids: int) -> None:
                self.ids = ids

            def __enter__(self) -> None:
                settle(simulation, deciding, 0, *self.ids)

            def __exit__(self, *_: object) -> None: ...

        deciding._epoch_lock = Busy(*range(3, 11))
        assert deciding._change_rule(), "8 events are more than 3 and an epoch of 4"
        assert simulation.catalog.identity() == before
        deciding._epoch_lock = Busy(20, 21, 22, 23)
        for _ in range(20):
            if not deciding._change_rule():
                break
        assert simulation.catalog.identity() != before
        simulation.pipeline = deciding._pipeline
        simulation.drain()
        simulation.assert_exact()


@pytest.mark.usefixtures("small_rounds")
def test_a_round_asks_the_catalog_for_its_own_epochs_alone(monkeypatch):
    with simulate() as simulation:
        settle_epochs(simulation, 10, events=3)
        rows = []
        listed, found = rekeying.list_unprepared, epochs.list_duplicate_files

        def count_listed(*given, **named):
            rows.append(len(listed(*given, **named)))
            return listed(*given, **named)

        asked = []

        def note_asked(catalog, *, epochs_between=None):
            asked.append(epochs_between)
            return found(catalog, epochs_between=epochs_between)

        monkeypatch.setattr(rekey, "ROUND_FILES", 2)
        monkeypatch.setattr(rekeying, "list_unprepared", count_listed)
        monkeypatch.setattr(epochs, "list_duplicate_files", note_asked)
        deciding = hold(simulation)
        ask(simulation, buckets=16)
        for _ in range(3):
            assert deciding._change_rule()
        assert asked == [(1, 1), (2, 2), (3, 3)]
        assert rows == [2, 2, 2]


@pytest.mark.usefixtures("small_rounds")
def test_files_that_were_prepared_and_are_gone_are_made_again_before_reading_waits():
    with simulate() as simulation:
        settle_epochs(simulation, 3, events=3)
        deciding = hold(simulation)
        number = ask(simulation, buckets=16)
        while rekeying.count_unprepared(simulation.catalog, number):
            assert deciding._change_rule()
        for path in rekeying.prepared_paths(simulation.catalog):
            simulation.store.delete(path)
        assert deciding._change_rule(), "rounds begin anew"
        assert rekeying.count_unprepared(simulation.catalog, number) == 9
        assert change_all(simulation, deciding)
        simulation.drain()
        simulation.assert_exact()


def lose_answers(monkeypatch: pytest.MonkeyPatch, *, committed: bool) -> None:
    """The catalog goes away when the rule is changed, for longer than a write tries, before or after its commit."""
    change, asked = rekeying.change_identity, rekeying.has_changed
    away = [TransientError("the catalog does not answer")] * 3

    def lose(*given: Any, **named: Any) -> None:
        monkeypatch.setattr(rekeying, "change_identity", change)
        if committed:
            change(*given, **named)
        raise TransientError("the catalog does not answer")

    def ask_in_vain(*given: Any) -> bool:
        if away:
            raise away.pop()
        return asked(*given)

    monkeypatch.setattr(handler, "_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(rekeying, "change_identity", lose)
    monkeypatch.setattr(rekeying, "has_changed", ask_in_vain)


@pytest.mark.parametrize("beside", [True, False])
def test_a_change_whose_answer_was_lost_is_looked_up_and_the_next_epoch_has_its_rule(monkeypatch, beside):
    with simulate() as simulation:
        simulation.produce(0, 1, 2, 3)
        simulation.settle(10, 1)
        deciding = hold(simulation)
        deciding._handler.rekeys = not beside
        told: list[bool] = []
        monkeypatch.setattr(deciding, "_on_rule_changed", lambda: told.append(True))
        ask(simulation, buckets=16)
        lose_answers(monkeypatch, committed=True)
        if beside:
            assert not deciding._change_rule()
            assert told, "a stream may have to start again under it"
        else:
            deciding._perform_requests()
        assert deciding._pipeline.identity.buckets == 16
        settle(simulation, deciding, 0, 3, 4)
        simulation.drain()
        simulation.assert_exact()
        assert "took effect, though the answer was lost" in simulation.said[-1]


def test_a_change_that_did_not_take_effect_is_tried_again(monkeypatch):
    with simulate() as simulation:
        simulation.produce(0, 1, 2, 3)
        simulation.settle(10, 1)
        deciding = hold(simulation)
        ask(simulation, buckets=16)
        lose_answers(monkeypatch, committed=False)
        with pytest.raises(TransientError, match="does not answer"):
            deciding._change_rule()
        assert deciding._pipeline.identity.buckets == 4
        assert not deciding._change_rule()
        assert deciding._pipeline.identity.buckets == 16


def test_who_is_to_end_does_not_wait_for_the_catalog(monkeypatch):
    with simulate() as simulation:
        simulation.produce(0, 1)
        simulation.settle(10, 1)
        deciding = hold(simulation)
        ask(simulation, buckets=16)
        lose_answers(monkeypatch, committed=True)
        deciding._stop.set()
        with pytest.raises(TransientError, match="does not answer"):
            deciding._change_rule()


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
        simulation.catalog.adopt(identity_of(simulation.pipeline), rule=format_section(simulation.pipeline))
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
        settle_epochs(simulation, 3, events=3)
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
        simulation.catalog.adopt(identity_of(simulation.pipeline), rule=format_section(simulation.pipeline))
        settle_epochs(simulation, 3, events=3)
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
        settle_epochs(simulation, 2, events=3)
        simulation.drain()
        deciding = hold(simulation)
        ask(simulation, key=False, fields=("note",))
        changing = deciding._handler.begin_rekey(requests.open_rekey(simulation.catalog))
        assert changing is not None
        changing._chosen = {found.key_file for _, _, found in epochs.list_key_files(simulation.catalog)}
        assert not changing.lost_files()
        simulation.age_first_epoch()
        simulation.retain()
        assert changing.lost_files()
        assert simulation.held[Stage.INGEST]
