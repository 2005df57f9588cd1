"""The faults that the product must survive, and the scenarios that show each of them.

A test that plays a scenario carries `@pytest.mark.scenario("its name")`; the same scenario with a defect put in on
purpose carries `@pytest.mark.defect("its name")` and passes when the defect was noticed. `chaos_report.py` makes the
table of both; a scenario of this list that lacks one of them fails `make chaos`.
"""

from __future__ import annotations

from dataclasses import dataclass

FAULTS = {
    1: "kill -9 of the driver at each step",
    2: "the answer to an INSERT is lost",
    3: "a retry after the table has forgotten the token",
    4: "a driver freezes and wakes up after another took over",
    5: "two drivers on one pipeline",
    6: "an executor or a Python worker dies, a task runs twice",
    7: "the broker dies, a topic changes or loses records",
    8: "ClickHouse refuses, is slow or dies",
    9: "a batch over several partitions fails half-way",
    10: "a disk is full",
    11: "bytes are damaged, the checkpoint is gone",
    12: "clocks and dates are off",
    13: "poison",
    14: "the schema changes in the stream",
    15: "duplicates of every kind",
    16: "transactions that a producer aborted",
    17: "SIGTERM in the middle",
    18: "the catalog goes away",
    19: "random schedules",
    20: "the catalog loses its last transactions",
    21: "other writers push the token out of the table's memory",
    22: "an INSERT is paused before its first byte",
    23: "a replica that lags answers a read that decides",
    25: "a Kafka leader dies, the log is cut and filled again",
    26: "a schema version lacks or renames a field of the identity",
}


@dataclass(frozen=True)
class Scenario:
    name: str
    row: int


SCENARIOS = (
    Scenario("driver killed while it ingests", 1),
    Scenario("driver killed while it loads", 1),
    Scenario("driver killed in the middle of an INSERT", 1),
    Scenario("driver killed before the answer", 1),
    Scenario("driver killed while it merges segments", 1),
    Scenario("driver killed while it sweeps", 1),
    Scenario("answer swallowed", 2),
    Scenario("connection cut half-way", 2),
    Scenario("retry after the token is forgotten", 3),
    Scenario("frozen driver wakes up", 4),
    Scenario("two drivers", 5),
    Scenario("dead driver is followed in time", 5),
    Scenario("Python worker killed", 6),
    Scenario("executor killed", 6),
    Scenario("worker machine killed", 6),
    Scenario("task run twice", 6),
    Scenario("broker killed", 7),
    Scenario("partition added", 7),
    Scenario("unread offsets deleted", 7),
    Scenario("topic made anew", 7),
    Scenario("ClickHouse answers 5xx", 8),
    Scenario("ClickHouse is slow", 8),
    Scenario("too many parts", 8),
    Scenario("table is read-only", 8),
    Scenario("ClickHouse is out of memory", 8),
    Scenario("table missing", 8),
    Scenario("column missing", 8),
    Scenario("ClickHouse killed", 8),
    Scenario("batch over partitions fails half-way", 9),
    Scenario("disk full under ledger files", 10),
    Scenario("disk full under the catalog", 10),
    Scenario("disk full under the checkpoint", 10),
    Scenario("damaged part", 11),
    Scenario("damaged key file", 11),
    Scenario("damaged segment", 11),
    Scenario("damaged checkpoint", 11),
    Scenario("deleted checkpoint", 11),
    Scenario("damaged catalog", 11),
    Scenario("clock off", 12),
    Scenario("events of 1970 and 2099", 12),
    Scenario("poison becomes letters", 13),
    Scenario("poison above the share", 13),
    Scenario("new fields in the stream", 14),
    Scenario("schema version nobody knows", 14),
    Scenario("duplicates near and far", 15),
    Scenario("duplicates at the window's edge", 15),
    Scenario("one id with two payloads", 15),
    Scenario("aborted transactions", 16),
    Scenario("SIGTERM in the middle", 17),
    Scenario("catalog away", 18),
    Scenario("commit cut", 18),
    Scenario("random schedules", 19),
    Scenario("catalog loses transactions under a driver", 20),
    Scenario("catalog loses transactions before a start", 20),
    Scenario("foreign writers push the token out", 21),
    Scenario("INSERT paused before it is sent", 22),
    Scenario("INSERT held on its way", 22),
    Scenario("lagging replica answers the look before a retry", 23),
    Scenario("lagging replica answers verify", 23),
    Scenario("lagging replica answers a replay", 23),
    Scenario("lagging replica answers repair", 23),
    Scenario("lagging replica answers an etl range", 23),
    Scenario("lagging replica answers a sync verify", 23),
    Scenario("Kafka leader dies", 25),
    Scenario("leader dies in a throttled read", 25),
    Scenario("log cut while the driver is away", 25),
    Scenario("log cut under a running driver", 25),
    Scenario("log cut and not filled yet", 25),
    Scenario("log cut while a consumer is away", 25),
    Scenario("log cut under a running consumer", 25),
    Scenario("version without the identity", 26),
)
