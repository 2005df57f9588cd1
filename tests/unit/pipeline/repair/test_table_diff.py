"""What a catalog that is older than its tables may conclude from them, and where it must refuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from oncehouse.config.pipeline import Route, Table
from oncehouse.ledger.models import BatchStatus, LedgerBatch
from oncehouse.pipeline.dedup.payload_hash import UNKNOWN, find_conflicts
from oncehouse.pipeline.repair.table_diff import TableGap, assess_gap, may_share
from oncehouse.pipeline.repair.unknown_row_ids import slices

REPAIR_PAGE = Path(__file__).parents[4] / "docs" / "repair.md"


def make_gap(name: str = "shop.orders", *, unknown: tuple[str, ...] = (), **more) -> TableGap:
    table = Table(name=name, route=more.pop("route", None), **more.pop("columns", {}))
    rows = {"known": 10} | dict.fromkeys(unknown, 5)
    values = {"rows_by_batch": rows, "rows_in_sum": 0, "loses_rows": False}
    return TableGap(table=table, unknown=unknown, **(values | more))


def make_batch(status: BatchStatus, *, rows: int = 10, batch_id: str = "known") -> LedgerBatch:
    return LedgerBatch(
        batch_id=batch_id,
        table="shop.orders",
        status=status,
        rows=rows,
        size_bytes=1,
        created_at=1.0,
        attempts=0,
        next_attempt_at=0.0,
    )


@pytest.mark.parametrize("status", [BatchStatus.NEW, BatchStatus.IN_PROCESS, BatchStatus.PARKED])
def test_a_waiting_batch_has_arrived_whole_or_not_at_all(status):
    assert assess_gap([make_gap()], [make_batch(status)]).arrived == ("known",)
    absent = assess_gap([make_gap()], [make_batch(status, batch_id="other")])
    assert (absent.arrived, absent.absent, absent.refused) == ((), ("other",), ())
    (reason,) = assess_gap([make_gap()], [make_batch(status, rows=11)]).refused
    assert "10 of the 11 rows" in reason


def test_a_loaded_batch_without_rows_is_told_apart_from_one_that_is_there():
    loaded = BatchStatus.IN_CLICKHOUSE
    assert assess_gap([make_gap()], [make_batch(loaded)]).absent == ()
    assert assess_gap([make_gap()], [make_batch(loaded, batch_id="other")]).absent == ("other",)


def test_a_table_that_drops_rows_or_has_no_ids_proves_nothing():
    (reason,) = assess_gap([make_gap(loses_rows=True)], []).refused
    assert "drops rows by itself" in reason
    assert "Tables that drop rows" in reason
    assert "\n### Tables that drop rows\n" in REPAIR_PAGE.read_text(encoding="utf-8")
    (reason,) = assess_gap([make_gap(unknown=("s",), columns={"id_column": None})], []).refused
    assert "no column of unique ids" in reason


def test_tables_that_share_events_by_routes_cannot_be_told_apart():
    buys = Route(field="kind", values=("buy",))
    assert may_share(Table(name="a.a"), Table(name="a.b"))
    assert may_share(Table(name="a.a"), Table(name="a.b", route=buys))
    assert may_share(Table(name="a.a", route=buys), Table(name="a.b", route=Route(where="price > 1")))
    other = Route(field="kind", values=("view",))
    assert not may_share(Table(name="a.a", route=buys), Table(name="a.b", route=other))
    (reason,) = assess_gap([make_gap(unknown=("s",)), make_gap("a.b", route=buys)], []).refused
    assert "take some of the same events" in reason
    assert not assess_gap([make_gap(), make_gap("a.b", route=buys)], []).refused


def test_ids_are_taken_in_slices_that_fit_into_memory():
    assert slices(10, 16) == ((0, 15),)
    assert slices(5_000_000, 16) == ((0, 7), (8, 15))
    assert len(slices(1 << 40, 16)) == 16


def test_an_id_of_which_nobody_has_the_bytes_is_in_conflict_with_none():
    some = np.array([1, 1, 2], dtype=np.uint64)
    others = np.array([1, UNKNOWN, 3], dtype=np.uint64)
    assert find_conflicts(some, others).tolist() == [False, False, True]
