"""What `check` says of a query log that a retry would need; users of a real server are in tests/integration."""

from __future__ import annotations

from dataclasses import replace

import pytest
from clickhouse_connect.driver import exceptions as driver

from oncehouse.clickhouse.preflight.finding import Level
from oncehouse.clickhouse.preflight.query_log import (
    LogAccess,
    QueryLog,
    check_query_log,
    needs_query_log,
    read_query_log,
)
from oncehouse.config.pipeline import ClickHouse
from oncehouse.errors import PermanentError
from table_facts import make_table_facts

PLAIN = make_table_facts(database="shop", table="events", uuid="", sorting_key="id", window_blocks=1200)
VIEWED = replace(PLAIN, views=("shop.by_day",))
MERGING = replace(PLAIN, engine="ReplacingMergeTree")


class FreshServer:
    """One that has not logged anything: the table is made when the log is written for the first time."""

    config = ClickHouse(url="http://fresh:8123", user="loader")

    def __init__(self, *, logs: bool):
        self.logs, self.there = logs, False

    def query(self, sql, parameters=None, settings=None):
        if "system.settings" in sql:
            return [("log_queries", "1"), ("log_queries_min_type", "QUERY_START")]
        if not self.there:
            raise PermanentError("no such table") from driver.DatabaseError(
                "Code: 60. DB::Exception: Unknown table expression identifier 'system.query_log'. (UNKNOWN_TABLE)"
            )
        return [(0,)]

    def command(self, sql, *_):
        assert sql == "SYSTEM FLUSH LOGS query_log"
        self.there = self.logs


@pytest.mark.parametrize(("logs", "access"), [(True, LogAccess.READABLE), (False, LogAccess.ABSENT)])
def test_a_log_that_was_not_written_yet_is_told_from_one_that_is_off(logs, access):
    assert read_query_log(FreshServer(logs=logs)) == QueryLog(user="loader", access=access)


def test_only_tables_with_views_and_those_that_merge_rows_need_the_log():
    assert [needs_query_log(facts) for facts in (PLAIN, VIEWED, MERGING)] == [False, True, True]


@pytest.mark.parametrize(
    ("facts", "effect"), [(VIEWED, "`views unproven`"), (MERGING, "a batch is parked when the table")]
)
@pytest.mark.parametrize(
    ("log", "named"),
    [
        (QueryLog(user="loader", access=LogAccess.ABSENT), "keeps none"),
        (QueryLog(user="loader", access=LogAccess.DENIED), "may not read it"),
        (
            QueryLog(user="loader", access=LogAccess.READABLE, left_out=("log_queries = 0",)),
            "not every insert of the user 'loader' is logged (log_queries = 0)",
        ),
    ],
)
def test_a_log_that_proves_nothing_says_what_comes_of_it(facts, effect, log, named):
    (finding,) = check_query_log(facts, log)
    assert finding.level is Level.WARNING
    assert named in finding.what
    assert effect.casefold() in finding.what.casefold()
    assert finding.advice
