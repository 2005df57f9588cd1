"""An epoch is read from Kafka again by the fields that its versions had to have when it was settled."""

from __future__ import annotations

import pytest

from oncehouse.config import Pipeline
from oncehouse.errors import PermanentError
from oncehouse.pipeline.repair import file_restorer
from oncehouse.pipeline.repair.file_restorer import Restorer

MERGING = (("shop.events", "version"),)


@pytest.fixture
def pipeline(tmp_path) -> Pipeline:
    return Pipeline(
        pipeline="events",
        source={
            "kafka": {"bootstrap_servers": "127.0.0.1:9", "topics": ["events"]},
            "format": "json",
            "fields": {"id": "UInt64", "version": "UInt64"},
        },
        identity={"fields": ["id"]},
        tables=[{"name": "shop.events"}],
        clickhouse={"url": "http://127.0.0.1:9"},
        ledger={"catalog": f"sqlite:///{tmp_path}/catalog.db", "files": str(tmp_path / "files")},
    )


@pytest.fixture
def read(pipeline, monkeypatch):
    """By which merging fields the epoch was read; `settled` are those that give what the ledger counted."""

    def read_with(
        *, seen: bool, settled: tuple[tuple[str, str], ...] | None
    ) -> list[tuple[tuple[str, str], ...]]:
        tried = []

        def read_epoch(known, *_):
            tried.append(known.merging_fields)
            if known.merging_fields != settled:
                raise PermanentError("read again it has other counts")
            return "the epoch"

        known = pipeline.with_merging_fields(MERGING) if seen else None
        monkeypatch.setattr(file_restorer, "with_merging_fields_if_up", lambda _: known)
        monkeypatch.setattr(file_restorer, "read_epoch", read_epoch)
        monkeypatch.setattr(Restorer, "_state", None)
        restorer = Restorer(pipeline, None, 1)
        if settled is None:
            with pytest.raises(PermanentError, match="other counts"):
                restorer._read_epoch(1)
        else:
            assert restorer._read_epoch(1) == "the epoch"
        return tried

    return read_with


def test_an_epoch_is_read_as_a_run_that_knew_its_tables_read_it(read):
    assert read(seen=True, settled=MERGING) == [MERGING]


def test_an_epoch_of_a_run_that_did_not_know_its_tables_is_read_without_them(read):
    assert read(seen=True, settled=()) == [MERGING, ()]
    assert read(seen=False, settled=()) == [()]


def test_an_epoch_that_adds_up_in_neither_way_is_refused(read):
    assert read(seen=True, settled=None) == [MERGING, ()]
    assert read(seen=False, settled=None) == [()]
