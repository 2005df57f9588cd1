"""Another identity rule for a ledger with events: all of it or nothing, and what is loaded stays as it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation import Simulation, Step, simulate

from oncehouse.errors import ConfigurationError, PermanentError
from oncehouse.ledger.catalog import batches, epochs, requests, segments
from oncehouse.ledger.catalog import rekey as rekeying
from oncehouse.ledger.models import RequestKind, Stage
from oncehouse.ledger.storage import key_index
from oncehouse.pipeline.requests import rekey
from oncehouse.pipeline.requests.rekey import Forecast, Round, forecast, plan_round
from oncehouse.pipeline.schema.identity_guard import check_rule, identity_of

pytestmark = pytest.mark.short

POINTS = ["keys written anew", "before changing the rule", "after changing the rule"]


def fill(simulation: Simulation) -> None:
    simulation.produce(0, 1, 2)
    simulation.produce(0, 2)
    simulation.settle(10, 1)
    simulation.produce(1, 3, 4)
    simulation.settle(10, 0)
    simulation.drain()


def state(simulation: Simulation) -> tuple[object, ...]:
    """All that a change of the rule may touch, and what it may not."""
    catalog = simulation.catalog
    return (
        catalog.identity(),
        epochs.list_key_files(catalog),
        segments.list_segments(catalog),
        batches.list_parts(catalog),
        epochs.list_duplicate_files(catalog),
        batches.list_batches(catalog),
    )


def keys_of(simulation: Simulation) -> set[tuple[int, int]]:
    found = set()
    for segment in segments.list_segments(simulation.catalog):
        keys = key_index.open_keys(simulation.store.checked(segment.file))
        found |= set(zip(keys.hi.tolist(), keys.lo.tolist(), strict=True))
    return found


def counts_of(simulation: Simulation) -> tuple[int, int]:
    counts = epochs.total_counts(simulation.catalog)
    return counts.new, counts.duplicate


def test_under_the_new_rule_old_events_are_known_and_what_is_registered_stays():
    with simulate() as simulation:
        fill(simulation)
        before = state(simulation)
        simulation.change(fields=("id", "note"))
        simulation.perform()
        after = state(simulation)
        assert after[0] == identity_of(simulation.pipeline)
        assert after[0] != before[0]
        assert after[3:] == before[3:], "parts, duplicates and batches are as they were registered"
        assert [found[2].raw for found in after[1]] == [found[2].raw for found in before[1]]
        assert not {found[2].keys.path for found in after[1]} & {found[2].keys.path for found in before[1]}
        # The same message again is a duplicate by both rules; the same id with another note only by the old one.
        simulation.kafka[0].append(simulation.kafka[0][0])
        simulation.produce(1, 3)
        simulation.settle(10, 1)
        assert counts_of(simulation) == (5, 2)
        assert not requests.open_requests(simulation.catalog)
        assert requests.list_requests(simulation.catalog)[0].result == (
            f"the ids of 5 events were computed again; the key index holds 4 keys in {len(after[2])} segments"
        )


def test_events_that_the_new_rule_takes_for_one_stay_two_and_are_one_from_then_on():
    with simulate() as simulation:
        simulation.change(fields=("id", "note"))
        simulation.perform()
        fill(simulation)
        assert counts_of(simulation) == (5, 0)
        simulation.change(fields=("id",))
        assert forecast(simulation.pipeline, simulation.catalog) == Forecast(
            events=5, live=5, doubled=1, dropped=0
        )
        simulation.perform()
        assert len(keys_of(simulation)) == 4
        assert len(simulation.clickhouse.rows) == 5
        simulation.produce(0, 2)
        simulation.settle(10, 1)
        assert counts_of(simulation) == (5, 1)


def test_the_forecast_counts_what_only_the_old_rule_took_for_duplicates():
    with simulate() as simulation:
        fill(simulation)
        simulation.change(fields=("id", "note"))
        before = state(simulation)
        assert forecast(simulation.pipeline, simulation.catalog) == Forecast(
            events=5, live=4, doubled=0, dropped=1
        )
        assert state(simulation) == before


def test_other_buckets_change_the_index_and_no_id():
    with simulate() as simulation:
        fill(simulation)
        before, keys = state(simulation), keys_of(simulation)
        simulation.change(buckets=16)
        simulation.perform()
        after = state(simulation)
        assert keys_of(simulation) == keys
        assert after[1] == before[1]
        assert max(segment.bucket_to for segment in segments.list_segments(simulation.catalog)) > 4
        simulation.produce(0, 1, 2, 3, 4)
        simulation.settle(10, 1)
        simulation.drain()
        simulation.assert_exact()


def test_packed_key_files_are_made_anew_too():
    with simulate() as simulation:
        fill(simulation)
        simulation.retain()
        assert any("/packs/" in found[2].keys.path for found in epochs.list_key_files(simulation.catalog))
        simulation.rekey()
        simulation.retain()
        simulation.produce(0, 1, 2, 3, 4, 5)
        simulation.drain()
        simulation.assert_exact()


def test_a_file_of_keys_made_anew_from_a_pack_stays_while_one_of_its_events_is_in_the_window():
    with simulate() as simulation:
        fill(simulation)
        simulation.retain()
        simulation.rekey()
        (shared,) = {found[2].keys.path for found in epochs.list_key_files(simulation.catalog)}
        simulation.age_first_epoch()
        simulation.retain()
        assert [found[2].keys.path for found in epochs.list_key_files(simulation.catalog)] == [shared]
        simulation.rebuild()
        simulation.produce(0, 3, 4, 5)
        simulation.drain()
        assert counts_of(simulation) == (5, 3)


@pytest.mark.parametrize("point", POINTS)
def test_a_process_that_dies_on_the_way_leaves_all_or_nothing(point):
    with simulate() as simulation:
        fill(simulation)
        before = state(simulation)
        simulation.do(Step(kind="rekey", dies_at=point))
        done = point.startswith("after")
        assert (state(simulation) == before) is not done
        assert bool(requests.open_requests(simulation.catalog)) is not done
        simulation.produce(0, 1, 2, 3, 4, 5)
        simulation.drain()
        simulation.retain()
        simulation.assert_exact()


def test_a_pipeline_with_the_old_rule_stops_and_reads_nothing():
    with simulate() as simulation:
        fill(simulation)
        old = simulation.pipeline
        simulation.change(fields=("note",))
        check_rule(simulation.pipeline, simulation.catalog)
        simulation.pipeline = old
        before = state(simulation)
        simulation.produce(0, 9)
        with pytest.raises(ConfigurationError, match="Start with the file that has the new rule"):
            simulation.settle(10, 1)
        with pytest.raises(ConfigurationError, match="--withdraw"):
            check_rule(simulation.pipeline, simulation.catalog)
        assert state(simulation) == before
        assert requests.withdraw_requests(simulation.catalog, RequestKind.REKEY) == (1,)
        check_rule(simulation.pipeline, simulation.catalog)
        simulation.settle(10, 1)


def test_a_rule_that_nobody_asked_for_is_refused_by_the_ledger_itself():
    with simulate() as simulation:
        fill(simulation)
        simulation.change(fields=("note",))
        requests.withdraw_requests(simulation.catalog, RequestKind.REKEY)
        simulation.produce(0, 9)
        before = state(simulation)
        with pytest.raises(ConfigurationError, match="`oncehouse rekey`"):
            check_rule(simulation.pipeline, simulation.catalog)
        with pytest.raises(ConfigurationError, match="identity rule has changed"):
            simulation.settle(10, 1)
        assert state(simulation) == before


def test_a_rule_is_changed_to_normal_forms_by_rekey_alone():
    with simulate() as simulation:
        simulation.change(fields=("note",))
        for spelling in ("caf\u00e9", "cafe\u0301", "tea"):
            simulation.kafka[0].append(f'{{"id": 1, "note": "{spelling}"}}'.encode())
        simulation.drain()
        assert counts_of(simulation) == (3, 0)
        plain = simulation.pipeline
        simulation.pipeline = plain.model_copy(
            update={"identity": plain.identity.model_copy(update={"normalize": "nfc"})}
        )
        with pytest.raises(ConfigurationError, match=r"normalized as nfc.*`oncehouse rekey`"):
            check_rule(simulation.pipeline, simulation.catalog)
        simulation.change(normalize="nfc")
        check_rule(simulation.pipeline, simulation.catalog)
        for spelling in ("caf\u00e9", "cafe\u0301", "t\u00e9a", "te\u0301a"):
            simulation.kafka[0].append(f'{{"id": 1, "note": "{spelling}"}}'.encode())
        simulation.drain()
        assert counts_of(simulation) == (4, 3)
        simulation.pipeline = plain
        with pytest.raises(ConfigurationError, match="the identity rule has changed"):
            check_rule(simulation.pipeline, simulation.catalog)


def test_events_without_an_identity_under_the_new_rule_refuse_it_and_the_old_one_goes_on():
    with simulate() as simulation:
        fill(simulation)
        old, before = simulation.pipeline, state(simulation)
        simulation.change(fields=("id",), key=True)
        with pytest.raises(
            PermanentError, match=r"partition 0 offset 0.*the key, which belongs to the identity"
        ):
            forecast(simulation.pipeline, simulation.catalog)
        with pytest.raises(PermanentError, match="the key, which belongs to the identity, is missing"):
            simulation.perform()
        assert "refused: " in str(requests.list_requests(simulation.catalog)[0].result)
        assert state(simulation) == before
        simulation.pipeline = old
        simulation.produce(0, 1)
        simulation.settle(10, 1)


def test_a_key_file_that_is_left_out_is_noticed_before_anything_changes(monkeypatch):
    place = rekey._place
    monkeypatch.setattr(rekey, "_place", lambda key_files, file: list(place(key_files, file))[1:])
    with simulate() as simulation:
        fill(simulation)
        before = state(simulation)
        simulation.change(fields=("note",))
        with pytest.raises(PermanentError, match="2 key files are not prepared"):
            simulation.perform()
        assert state(simulation) == before


def test_keys_in_the_wrong_order_are_noticed(monkeypatch):
    """A seeded defect: the positions of duplicates lead to events, so that every event must keep its number."""

    def shuffled(ids):
        return replace(right(ids), event=right(ids).event[::-1].copy())

    right = rekey.sort_ids
    monkeypatch.setattr(rekey, "sort_ids", shuffled)
    with simulate() as simulation:
        fill(simulation)
        simulation.rekey()
        simulation.produce(0, 1, 2, 3, 4)
        simulation.drain()
        with pytest.raises(AssertionError):
            simulation.assert_exact()


# -- beside the epochs ------------------------------------------------------------------------------------


def begin_beside(simulation: Simulation) -> None:
    """Some of a new rule is prepared, more is still to be, and an epoch under the old rule comes in between."""
    fill(simulation)
    simulation.prepare()
    simulation.produce(0, 5, 6, 1)
    simulation.settle(10, 1)
    simulation.produce(1, 6, 7)


def test_epochs_go_on_under_the_old_rule_while_another_is_prepared():
    with simulate() as simulation:
        before = simulation.catalog.identity()
        begin_beside(simulation)
        assert simulation.catalog.identity() == before
        assert counts_of(simulation) == (6, 2)
        progress = rekeying.read_progress(simulation.catalog, 1)
        assert 0 < progress.events_done < progress.events == 8
        simulation.drain()
        simulation.assert_exact()
        simulation.finish()
        assert simulation.catalog.identity() == identity_of(simulation.pipeline) != before
        simulation.produce(0, 1, 2, 3, 4, 5, 6, 7, 8)
        simulation.drain()
        simulation.assert_exact()
        assert counts_of(simulation) == (8, 10)


def test_what_was_prepared_by_one_process_is_not_made_again_by_the_next():
    with simulate() as simulation:
        begin_beside(simulation)
        prepared = rekeying.read_progress(simulation.catalog, 1).key_files_done
        made = set(simulation.store.walk("live/index"))
        simulation.take_over()
        simulation.retain()
        assert made <= set(simulation.store.walk("live/index")), "what a dead process prepared is not swept"
        assert rekeying.read_progress(simulation.catalog, 1).key_files_done == prepared
        left = rekeying.list_unprepared(simulation.catalog, 1, limit=100)
        simulation.finish()
        again = {path for path in simulation.store.walk("live/index") if ".keys." in path} - made
        assert len(again) == len(left)
        simulation.drain()
        simulation.assert_exact()


@pytest.mark.parametrize("point", POINTS)
def test_a_process_that_dies_while_a_rule_is_prepared_leaves_the_old_one_or_the_new(point):
    with simulate() as simulation:
        begin_beside(simulation)
        before = simulation.catalog.identity()
        simulation.do(Step(kind="finish", dies_at=point))
        assert (simulation.catalog.identity() == before) is not point.startswith("after")
        simulation.drain()
        simulation.do(Step(kind="finish"))
        assert simulation.catalog.identity() != before
        simulation.produce(0, *range(10))
        simulation.drain()
        simulation.retain()
        simulation.assert_exact()


def test_packs_and_the_window_may_move_files_while_a_rule_is_prepared():
    with simulate() as simulation:
        begin_beside(simulation)
        simulation.drain()
        simulation.retain()
        assert any("/packs/" in found[2].keys.path for found in epochs.list_key_files(simulation.catalog))
        simulation.finish()
        simulation.retain()
        simulation.produce(0, *range(10))
        simulation.drain()
        simulation.assert_exact()


def test_key_files_that_leave_the_window_while_a_rule_is_prepared_are_forgotten():
    with simulate() as simulation:
        begin_beside(simulation)
        simulation.drain()
        simulation.age_first_epoch()
        simulation.retain()
        simulation.finish()
        simulation.retain()
        simulation.produce(0, 3, 4, 5)
        simulation.drain()
        assert counts_of(simulation) == (7, 6)


def test_a_change_that_was_taken_back_leaves_nothing_behind():
    with simulate() as simulation:
        begin_beside(simulation)
        before = state(simulation)
        prepared = {path for path in simulation.store.walk("live/index") if "/rekeyed-" in path}
        assert prepared
        requests.withdraw_requests(simulation.catalog, RequestKind.REKEY)
        with pytest.raises(PermanentError, match="unknown or done already"):
            simulation.finish()
        rekeying.give_up(simulation.catalog, simulation.held[Stage.INGEST].token)
        simulation.wanted = None
        assert state(simulation) == before
        simulation.retain()
        assert not prepared & set(simulation.store.walk("live/index"))
        simulation.drain()
        simulation.assert_exact()


def test_events_that_came_since_the_last_round_are_not_left_out(monkeypatch):
    """A seeded defect: the rest is not made up for. The catalog refuses the change."""
    with simulate() as simulation:
        begin_beside(simulation)
        before = state(simulation)
        monkeypatch.setattr(rekeying, "list_unprepared", lambda *_, **__: ())
        with pytest.raises(PermanentError, match="key files are not prepared"):
            simulation.finish()
        assert state(simulation) == before


def test_segments_that_a_round_forgot_are_noticed(monkeypatch):
    """A seeded defect: keys are made anew, and the index does not get them."""
    with simulate() as simulation:
        fill(simulation)
        monkeypatch.setattr(rekey, "_plan_segments", lambda *_, **__: [])
        simulation.prepare()
        monkeypatch.undo()
        simulation.finish()
        simulation.produce(0, 1, 2, 3, 4)
        simulation.drain()
        with pytest.raises(AssertionError):
            simulation.assert_exact()


ROUND = rekey.ROUND_EVENTS


@pytest.mark.parametrize(
    ("left", "before", "near"),
    [
        (0, None, True),
        (rekey.NEAR_EVENTS, None, True),
        (rekey.NEAR_EVENTS + 1, None, False),
        (200_000, Round(left=600_000, taken=ROUND), False),
        (400_000, Round(left=600_000, taken=ROUND), True),
        (ROUND, Round(left=ROUND, taken=ROUND), True),
        (ROUND + 1, Round(left=ROUND, taken=ROUND), False),
        (5 * ROUND, Round(left=5 * ROUND, taken=ROUND), False),
        (1_000_000_000, Round(left=1_000_000_000, taken=ROUND), False),
    ],
)
def test_the_rest_is_done_while_events_wait_when_it_is_little_or_within_a_round_and_hardly_less(
    left, before, near
):
    assert (plan_round(left, before) is None) is near


def test_rounds_grow_and_then_take_all_cores_while_events_come_in_as_fast():
    first = Round(left=10 * ROUND, taken=ROUND)
    assert plan_round(9 * ROUND, first) == Round(left=9 * ROUND, taken=ROUND)
    second = plan_round(10 * ROUND, first)
    assert second == Round(left=10 * ROUND, times=2)
    third = plan_round(10 * ROUND, replace(second, taken=2 * ROUND))
    assert third == Round(left=10 * ROUND, times=4, shares_cores=False)
    all_taken = replace(third, taken=10 * ROUND)
    assert plan_round(10 * ROUND, all_taken) == Round(left=10 * ROUND, times=4, shares_cores=False), (
        "no use to grow"
    )


@given(
    kept=st.integers(0, 10**9),
    per_second=st.integers(1, 90_000),
    epoch_seconds=st.floats(1.0, 10.0),
    share=st.floats(0.0, 0.9),
)
def test_a_change_ends_at_every_rate_that_ingest_sustains_and_the_rest_is_at_most_a_round(
    kept, per_second, epoch_seconds, share
):
    """A model: 100,000 events a second on all cores, half of them aside; a round over an epoch costs less than it."""
    round_seconds = share * epoch_seconds * (1 - per_second / 100_000)
    left, before, seconds, rounds = kept, None, 0.0, 0
    while (planned := plan_round(left, before)) is not None:
        taken = min(left, planned.times * ROUND)
        seconds += round_seconds + taken / (50_000 if planned.shares_cores else 100_000)
        settled, seconds = divmod(seconds, epoch_seconds)
        left += int(settled * epoch_seconds * per_second) - taken
        before, rounds = replace(planned, taken=taken), rounds + 1
        assert rounds < 20_000
    assert left <= ROUND


def test_a_change_begins_anew_where_files_that_were_prepared_are_gone():
    with simulate() as simulation:
        begin_beside(simulation)
        for path in rekeying.prepared_paths(simulation.catalog):
            simulation.store.delete(path)
        simulation.finish()
        simulation.produce(0, *range(10))
        simulation.drain()
        simulation.retain()
        simulation.assert_exact()
