"""When somebody should look at a slot, and what they are told."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.messaging.cdc.connect_client import ConnectorState, TaskState
from oncehouse.messaging.cdc.health import find_problems
from oncehouse.messaging.cdc.replication_slots import ServerState, SlotLimits, SlotState, evaluate_slot

MB, GB = 1 << 20, 1 << 30
SLOT = SlotState(
    name="oncehouse_shop",
    active=True,
    wal_status="reserved",
    lag_bytes=1000,
    kept_bytes=5 * MB,
    safe_bytes=None,
)
SERVER = ServerState(keep_limit_bytes=None, log_bytes=64 * MB, bytes_per_second=MB)
LIMITS = SlotLimits(lag_bytes=GB, full_share=0.7, disk_bytes=None)


def test_a_slot_that_is_read_is_no_reason_to_look_but_unbounded_log_is_told():
    report = evaluate_slot(SLOT, SERVER, LIMITS)
    assert report.problems == ()
    assert (report.room_bytes, report.full_in_seconds) == (None, None)
    assert "set max_slot_wal_keep_size" in report.notes[0]


def test_a_warning_comes_before_the_slot_is_given_up():
    server = replace(SERVER, keep_limit_bytes=GB)
    calm = evaluate_slot(replace(SLOT, kept_bytes=700 * MB, safe_bytes=324 * MB), server, LIMITS)
    assert calm.problems == ()
    full = evaluate_slot(replace(SLOT, kept_bytes=720 * MB, safe_bytes=304 * MB), server, LIMITS)
    (told,) = full.problems
    assert told.startswith(
        "70% of the space for the log is used; after 304MB more the slot is invalidated and changes"
    )
    assert told.endswith("are lost, in about 5m 4s at the current rate")
    assert full.notes == ()


def test_a_warning_comes_before_the_disk_is_full():
    limits = replace(LIMITS, disk_bytes=100 * MB)
    report = evaluate_slot(SLOT, replace(SERVER, log_bytes=90 * MB), limits)
    assert report.room_bytes == 10 * MB
    assert report.problems == (
        "90% of the space for the log is used; after 10MB more the disk is full, in about 10s at the current rate",
    )
    blind = evaluate_slot(
        replace(SLOT, kept_bytes=80 * MB), replace(SERVER, log_bytes=None, bytes_per_second=0), limits
    )
    assert blind.problems == ("80% of the space for the log is used; after 20MB more the disk is full",)


def test_of_the_limit_and_the_disk_the_nearer_counts():
    server, limits = replace(SERVER, keep_limit_bytes=GB), replace(LIMITS, disk_bytes=100 * MB)
    report = evaluate_slot(replace(SLOT, safe_bytes=GB - 5 * MB), server, limits)
    assert report.room_bytes == 36 * MB


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"active": False}, "it has no reader"),
        ({"wal_status": "lost"}, "changes are lost"),
        ({"wal_status": "unreserved"}, "the next checkpoint may discard"),
        ({"kept_bytes": 2 * GB}, r"keeps 2GB of log for it, more than cdc.lag_limit \(1GB\)"),
        ({"kept_bytes": None, "lag_bytes": None, "wal_status": "lost"}, "changes are lost"),
    ],
)
def test_every_way_to_lose_changes_is_told(changed, told):
    problems = evaluate_slot(replace(SLOT, **changed), SERVER, LIMITS).problems
    assert len(problems) == 1
    assert re.search(told, problems[0])


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 50), st.integers(1, 1 << 50))
def test_the_less_room_the_sooner_it_is_told(kept, more, disk):
    limits = replace(LIMITS, disk_bytes=disk, lag_bytes=1 << 60)

    def warns(used: int) -> bool:
        return bool(
            evaluate_slot(replace(SLOT, kept_bytes=used), replace(SERVER, log_bytes=used), limits).problems
        )

    assert warns(kept + more) or not warns(kept)
    assert warns(disk)


RUNNING = ConnectorState(
    name="shop", state="RUNNING", tasks=(TaskState(task=0, state="RUNNING"),), slot="oncehouse_shop"
)


def test_connectors_are_judged_with_their_slots():
    report = evaluate_slot(SLOT, SERVER, LIMITS)
    assert find_problems([RUNNING], [report]) == ()
    failed = replace(RUNNING, tasks=(TaskState(task=0, state="FAILED", error="no such host"),))
    assert find_problems([failed], [report]) == ("connector shop failed: no such host",)
    for state, tasks in (("PAUSED", RUNNING.tasks), ("RUNNING", ())):
        (told,) = find_problems([replace(RUNNING, state=state, tasks=tasks)], [report])
        assert told.startswith("connector shop is not running")
    (told,) = find_problems([RUNNING], [])
    assert "the database has no slot oncehouse_shop" in told
