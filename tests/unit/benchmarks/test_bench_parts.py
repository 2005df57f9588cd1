"""What is pure in the benchmarks: plans of traffic and indexes, and how figures come out of what was seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench_modules import load_benchmark
from oncehouse.ledger.models import Counts, EpochKind, EpochRow

measure, memory, paced, peer_runs, peers, steady, throughput, traffic, window_keys = map(
    load_benchmark,
    (
        "measure",
        "memory",
        "paced",
        "peer_runs",
        "peers",
        "steady",
        "throughput",
        "traffic",
        "window_keys",
    ),
)
Found, Kind, Load = peer_runs.Found, traffic.Kind, paced.Load

WINDOW_SECONDS = 60 * 86400.0
TOPIC = measure.Topic(name="bench", produced=1000, unique=900, value_bytes=0)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_so_many_events_are_duplicates_and_every_one_repeats_an_earlier_event(share: float) -> None:
    serials = traffic.plan_serials(20_000, share)
    unique = int(serials.max()) + 1
    assert len(serials) == 20_000
    assert len(np.unique(serials)) == unique
    assert 1 - unique / len(serials) == pytest.approx(share, abs=0.02)
    _, first_seen = np.unique(serials, return_index=True)
    assert (np.diff(first_seen) > 0).all()


@pytest.mark.parametrize("format_", throughput.FORMATS)
def test_large_events_are_eight_times_the_size_in_every_format(format_: str) -> None:
    serials = np.arange(50)
    small, large = (
        sum(map(len, traffic.make_encoder(Kind(format=format_, large=large))(serials))) / len(serials)
        for large in (False, True)
    )
    assert 90 < small < 230
    assert 1450 < large < 1700


def test_throughput_is_measured_for_every_kind() -> None:
    assert len({kind.name for kind in throughput.ALL}) == 18
    assert set(throughput.SOME) < set(throughput.ALL)


def test_protobuf_is_compared_with_json_of_the_same_kind() -> None:
    found = {Kind(): (TOPIC, 10.0), Kind(format="protobuf"): (TOPIC, 5.0), Kind(large=True): (TOPIC, 50.0)}
    assert {"name": "protobuf_over_json", "value": 2.0, "unit": "1"} in throughput.make_figures(found)


def test_ratios_say_how_much_faster_the_pipeline_is() -> None:
    told = {
        one["name"]: one["value"]
        for one in peers.make_figures([_line("oncehouse", 10), _line("plain_tuned", 12)], TOPIC)
    }
    assert told["ratio_to_plain_consumer"] == 1.2
    assert "ratio_to_spark_state" not in told


def test_after_a_kill_only_what_was_not_sent_twice_is_blamed_on_it() -> None:
    killed = peers.count_kill_losses(Found(rows=1050, distinct=890), TOPIC, dedups=False)
    assert killed == peers.Killed(lost=10, doubled=160, by_the_kill=60)
    line = replace(_line("arroyo", 30), dedups=False, killed=killed)
    text = peers.lay_out([_line("oncehouse", 10), line], TOPIC)[-1].split()
    assert text[-6:] == ["33", "x3.00", "none", "10", "160", "60"]


def _line(name: str, seconds: float) -> Any:
    exact = peers.count_kill_losses(Found(rows=900, distinct=900), TOPIC, dedups=True)
    return peers.Line(name=name, label=name, dedups=True, seconds=seconds, killed=exact)


def test_an_index_is_planned_as_epochs_and_merges_would_leave_it() -> None:
    few, many = (
        window_keys.plan_index(keys, epoch_keys=1_000, buckets=16, cores=2, now=WINDOW_SECONDS)
        for keys in (1_000, 1_000_000)
    )
    assert sum(segment.keys for segment in few) == 1_000
    assert sum(segment.keys for segment in many) == pytest.approx(1_000_000, rel=0.01)
    assert len(few) < len(many) < 1_000  # merged: an epoch does not keep a segment of its own
    assert min(segment.first_seen_from for segment in many) >= 0.09 * WINDOW_SECONDS


def test_generated_keys_are_sorted_and_lie_in_the_buckets_of_their_segment() -> None:
    (segment,) = window_keys.plan_index(50, epoch_keys=50, buckets=16, cores=1, now=WINDOW_SECONDS)
    upper = replace(segment, bucket_from=12, bucket_to=15, keys=10_000)
    keys = window_keys.draw_keys(upper, 16, np.random.default_rng(1))
    assert len(keys) == len(keys.lo) == len(keys.payload) == 10_000
    assert (np.diff(keys.hi) > 0).all()
    assert int(keys.hi[0]) >= 12 << 60


def test_an_index_that_would_fill_the_disk_is_left_out() -> None:
    assert window_keys.fitting((1_000_000, 1_000_000_000), 30 << 30) == ([1_000_000], [1_000_000_000])
    assert window_keys.fitting((1_000_000, 1_000_000_000), 57 << 30) == ([1_000_000, 1_000_000_000], [])


def test_the_cost_of_a_row_leaves_the_first_epoch_out() -> None:
    epochs = [_epoch(1, 100.0, 130.0, 10), _epoch(2, 130.0, 140.0, 100), _epoch(3, 140.0, 150.0, 100)]
    assert window_keys.cost_of(epochs) == (0.1, 30.0)
    with pytest.raises(SystemExit, match="more events"):
        window_keys.cost_of(epochs[:1])


def test_costs_are_compared_with_a_million_keys() -> None:
    costs = [
        window_keys.Cost(
            keys=keys,
            segments=1,
            seconds_a_row=seconds,
            first_epoch_seconds=1.0,
            worker_own_mib=1.0,
            worker_mapped_mib=1.0,
        )
        for keys, seconds in ((1_000_000, 2e-6), (100_000_000, 3e-6), (1_000_000_000, 5e-6))
    ]
    told = {one["name"]: one["value"] for one in window_keys.make_figures(costs)}
    assert (told["cost_100m_over_1m"], told["cost_1b_over_1m"], told["window_1m_us_per_row"]) == (
        1.5,
        2.5,
        2.0,
    )


def _epoch(number: int, started_at: float, registered_at: float, read: int) -> EpochRow:
    counts = Counts(read=read, new=read, duplicate=0, dead_letter=0, waiting=0, skipped=0, conflicts=0)
    return EpochRow(
        epoch=number,
        kind=EpochKind.KAFKA,
        token=1,
        started_at=started_at,
        registered_at=registered_at,
        counts=counts,
    )


def test_a_paced_producer_sends_what_is_due_and_no_more_than_all() -> None:
    load = Load(servers="", topic="", phases=[(1_000, 2.0), (10_000, 1.0), (1_000, 1.0)])
    assert load.events == 13_000
    assert [paced.due(load, at) for at in (0.0, 0.5, 2.0, 2.5, 3.5, 60.0)] == [
        0,
        500,
        2_000,
        7_000,
        12_500,
        13_000,
    ]


def test_a_paced_event_carries_the_moment_at_which_it_was_due() -> None:
    load = Load(servers="", topic="", phases=[(1_000, 1.0), (500, 2.0)])
    messages = paced.make_slice(load, 999, 1_002, 1_767_225_600.0)
    assert [message.split(b'"created_at":"')[1][17:23] for message in messages] == [
        b"00.999",
        b"01.000",
        b"01.002",
    ]


def test_inserts_are_counted_in_the_fullest_second_wherever_it_begins() -> None:
    assert steady.most_in_a_second([0.0, 0.9, 1.2, 1.8, 5.0]) == 3
    assert steady.most_in_a_second([]) == 0


def test_parts_are_bounded_when_the_second_half_has_no_more_than_the_first() -> None:
    samples = [
        steady.TableSample(second=at, parts=parts, rows=0)
        for at, parts in enumerate((1.0, 9.0, 4.0, 5.0, 3.0, 2.0))
    ]
    assert steady.split_parts(samples) == (9, 5)


def test_memory_mapped_from_files_is_told_apart() -> None:
    text = "Name:\tpython\nRssAnon:\t  204800 kB\nRssFile:\t 1048576 kB\nRssShmem:\t    1024 kB\n"
    assert memory.read_status(text) == (201.0, 1024.0)
