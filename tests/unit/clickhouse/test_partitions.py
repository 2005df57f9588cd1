"""How rows spread over partitions, judged by what the server allows and by what the table remembers."""

from dataclasses import replace

import pytest
from test_clickhouse_findings import FACTS, NEEDS

from oncehouse.clickhouse.preflight.finding import Level
from oncehouse.clickhouse.preflight.partition_spread import Spread, check_spread

TABLE = replace(FACTS, partition_key="toDate(at)", window_blocks=12_000)


def judge(partitions, *, most=100, facts=TABLE):
    spread = Spread(rows=5000, partitions=partitions, most=most)
    return [(found.level, found.where) for found in check_spread(facts, spread, NEEDS)]


@pytest.mark.parametrize(
    ("partitions", "most", "level"),
    [
        (1, 100, Level.OK),
        (10, 100, Level.OK),
        (10, 9, Level.ERROR),
        (101, 100, Level.ERROR),
        (101, 1000, Level.ERROR),
        (101, 0, Level.ERROR),
    ],
)
def test_an_insert_into_too_many_partitions_is_refused_by_its_setting(partitions, most, level):
    assert judge(partitions, most=most) == [(level, "sales.events: max_partitions_per_insert_block")]


def test_more_partitions_than_usual_ask_for_more_memory():
    _, (level, where) = judge(50)
    assert (level, where) == (Level.ERROR, "sales.events: non_replicated_deduplication_window")
    assert len(judge(50, facts=replace(TABLE, window_blocks=60_000))) == 1


def test_a_key_that_cannot_be_tried_is_told_without_alarm():
    (finding,) = check_spread(TABLE, None, NEEDS)
    assert finding.level is Level.INFO
