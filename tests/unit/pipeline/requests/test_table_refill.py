"""Which batches have gone from a table, so that filling it again can double nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.errors import PermanentError
from oncehouse.ledger.models import BatchStatus, LedgerBatch
from oncehouse.pipeline.requests.table_refill import gone_batches


def make_loaded(name: str, rows: int) -> LedgerBatch:
    return LedgerBatch(
        batch_id=name,
        table="shop.orders",
        status=BatchStatus.IN_CLICKHOUSE,
        rows=rows,
        size_bytes=1,
        created_at=1.0,
        attempts=1,
        next_attempt_at=0.0,
    )


def test_a_batch_without_a_row_in_the_table_has_gone():
    loaded = [make_loaded("there", 5), make_loaded("gone", 7)]
    assert gone_batches(loaded, {"there": 5, "of somebody else": 3}) == (loaded[1],)


@pytest.mark.parametrize("found", [1, 6, 8])
def test_a_batch_of_which_only_some_rows_are_there_is_refused(found):
    with pytest.raises(PermanentError, match=f"holds {found} of the 7 rows of batch half"):
        gone_batches([make_loaded("half", 7)], {"half": found})


@given(st.dictionaries(st.text(min_size=1), st.tuples(st.integers(1, 100), st.booleans())))
def test_every_batch_is_either_whole_or_gone(batches):
    loaded = [make_loaded(name, rows) for name, (rows, _) in batches.items()]
    counted = {name: rows for name, (rows, there) in batches.items() if there}
    gone = {batch.batch_id for batch in gone_batches(loaded, counted)}
    assert gone == {name for name, (_, there) in batches.items() if not there}
