"""Little traffic stays cheap: small epochs are packed, and every reader finds their rows in the pack."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from live_pipeline import LivePipeline, make_event
from oncehouse.ledger.catalog import leases, requests
from oncehouse.ledger.catalog.epochs import list_epochs, list_key_files
from oncehouse.ledger.catalog.segments import list_segments
from oncehouse.ledger.models import BatchStatus, RequestKind, Stage
from oncehouse.pipeline.maintenance import file_packs
from oncehouse.pipeline.maintenance.retention import retain


@pytest.fixture
def packed(make_pipeline, monkeypatch) -> LivePipeline:
    """A pipeline of several small epochs, duplicates among them, whose files have been packed."""
    monkeypatch.setattr(file_packs, "LEAST_EPOCHS", 2)
    live_pipeline = make_pipeline(partitions=2, epoch={"max_rows": 40, "max_wait": 0.1})
    live_pipeline.send([make_event(number) for number in range(100)], partition=0)
    live_pipeline.send([make_event(number) for number in range(60, 130)], partition=1)
    live_pipeline.run()
    before = count_files(live_pipeline)
    retain_with_packs(live_pipeline)
    assert count_files(live_pipeline) < before / 2
    assert all("/packs/" in key_file.raw.path for _, _, key_file in list_key_files(live_pipeline.catalog))
    return live_pipeline


def count_files(live_pipeline: LivePipeline) -> int:
    return sum(
        "segment" not in path
        for path in live_pipeline.store.walk("live/")
        if not path.endswith(("spark.log", ".db"))
    )


def retain_with_packs(live_pipeline: LivePipeline) -> None:
    catalog = live_pipeline.catalog
    tokens = {
        stage: leases.acquire(catalog, stage, holder=f"test {stage}", lease_seconds=60)
        for stage in (Stage.INGEST, Stage.RETENTION)
    }
    retain(
        live_pipeline.pipeline,
        catalog,
        token=tokens[Stage.RETENTION].token,
        ingest_token=tokens[Stage.INGEST].token,
        spark=live_pipeline.spark,
        garbage_seconds=0.0,
    )
    for lease in tokens.values():
        leases.release(catalog, lease)


def test_verify_reads_every_row_of_a_pack_and_finds_a_flipped_byte(packed):
    packed.assert_exact()
    (path,) = {key_file.raw.path for _, _, key_file in list_key_files(packed.catalog)}
    file = Path(packed.store.root) / path
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
    assert any("checksum" in finding.message for finding in packed.findings())


@pytest.mark.long
def test_the_index_is_rebuilt_from_packed_key_files(packed):
    for segment in list_segments(packed.catalog):
        (Path(packed.store.root) / segment.file.path).unlink()
    requests.add_request(packed.catalog, RequestKind.REBUILD_INDEX, {})
    packed.run()
    packed.send([make_event(number) for number in range(140)])
    packed.run()
    packed.assert_exact()


def test_a_truncated_table_and_a_new_one_are_filled_from_packs(packed):
    packed.client.command(f"TRUNCATE TABLE {packed.table}")
    requests.add_request(packed.catalog, RequestKind.REFILL_TABLE, {"table": packed.table})
    copy = f"{packed.database}.copy"
    packed.document["tables"] = [*packed.document["tables"], {"name": copy}]
    packed.create_tables(copy)
    requests.add_request(packed.catalog, RequestKind.REFILL_TABLE, {"table": copy})
    packed.run()
    packed.assert_exact()
    packed.assert_table(copy, packed.expected)


@pytest.mark.long
def test_past_the_window_only_sums_stay_and_verify_still_agrees(make_pipeline):
    live_pipeline = make_pipeline(identity={"window": "1s"}, epoch={"max_rows": 50, "max_wait": 0.1})
    live_pipeline.send([make_event(number) for number in range(200)])
    live_pipeline.run()
    read = live_pipeline.counts()
    time.sleep(1.2)
    retain_with_packs(live_pipeline)
    assert list_key_files(live_pipeline.catalog) == ()
    assert len(list_epochs(live_pipeline.catalog)) == 1
    assert live_pipeline.batches(statuses=[BatchStatus.IN_CLICKHOUSE]) == ()
    assert live_pipeline.counts() == read
    live_pipeline.assert_exact()
    live_pipeline.client.command(
        f"DELETE FROM {live_pipeline.table} WHERE product_id = 7 SETTINGS lightweight_deletes_sync = 2"
    )
    assert any("past the window" in finding.message for finding in live_pipeline.findings())
