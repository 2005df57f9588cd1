"""Whether a batch's token can be relied on, by the blocks that anybody inserted since its first attempt."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.clickhouse.block_counts import BlockCount, blocks_between
from oncehouse.clickhouse.describe import TableFacts
from oncehouse.pipeline.attempts import may_be_forgotten

FACTS = TableFacts(
    database="d",
    table="t",
    uuid="u",
    engine="MergeTree",
    columns=(),
    partition_key="",
    sorting_key="",
    window_blocks=1000,
    window_seconds=None,
    expires_rows=False,
    views=(),
)
THEN = BlockCount(uuid="u", blocks=5000)


def forgotten(blocks, *, seconds=10.0, ahead=0.0, facts=FACTS, then=THEN, uuid="u"):
    return may_be_forgotten(
        facts,
        then=then,
        now=None if blocks is None else BlockCount(uuid=uuid, blocks=THEN.blocks + blocks),
        seconds=seconds,
        seconds_ahead=ahead,
        remembered=600.0,
    )


def test_blocks_of_anybody_count_against_what_the_table_remembers():
    assert not forgotten(999)
    assert forgotten(1000)


def test_blocks_that_will_come_until_the_repeat_is_done_count_as_well():
    assert not forgotten(100, seconds=10.0, ahead=89.0)
    assert forgotten(100, seconds=10.0, ahead=91.0)


def test_an_attempt_made_a_moment_ago_is_no_measure_of_what_others_insert():
    """Its own blocks, one a partition, are among those that came."""
    assert not forgotten(10, seconds=0.1, ahead=300.0)


@pytest.mark.parametrize(
    "unclear",
    [
        {"blocks": None},
        {"blocks": 1, "then": None},
        {"blocks": 1, "facts": None},
        {"blocks": -1},
        {"blocks": 1, "uuid": "another table"},
        {"blocks": 1, "seconds": 601.0},
        {"blocks": 1, "seconds": -1.0},
    ],
    ids=" ".join,
)
def test_what_nobody_can_tell_counts_as_forgotten(unclear):
    assert forgotten(**unclear)


def test_a_table_that_forgets_by_time_is_asked_for_the_time_of_the_repeat_too():
    timed = replace(FACTS, window_seconds=400.0)
    assert not forgotten(1, seconds=90.0, ahead=300.0, facts=timed)
    assert forgotten(1, seconds=110.0, ahead=300.0, facts=timed)


@given(uuid=st.uuids(), blocks=st.integers(0, 2**63 - 1))
def test_a_count_is_read_as_it_was_written_and_fits_into_the_catalog(uuid, blocks):
    count = BlockCount(uuid=str(uuid), blocks=blocks)
    assert BlockCount.parse(str(count)) == count
    assert len(str(count)) <= 64
    assert BlockCount.parse(None) is None
    assert blocks_between(count, count) == 0
