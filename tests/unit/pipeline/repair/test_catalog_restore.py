"""A lost or older catalog is brought back so that nothing is sent twice and nothing is left out, or it is refused."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from frozen_locker import locked_by_frozen_process
from ledger_examples import take_lease
from oncehouse.common import sqlite_lock
from oncehouse.errors import PermanentError, TransientError
from oncehouse.ledger.catalog import leases, snapshots, table_adoption
from oncehouse.ledger.catalog.batches import find_batch, list_batches, open_parts
from oncehouse.ledger.models import BatchStatus
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.repair import catalog_restore, repair, unknown_row_ids
from repairable_ledger import RepairableLedger, as_halves


@pytest.fixture
def make_repairable(tmp_path) -> Iterator[Callable[..., RepairableLedger]]:
    made: list[RepairableLedger] = []

    def make(**changes: object) -> RepairableLedger:
        made.append(RepairableLedger(tmp_path, **changes))
        return made[-1]

    yield make
    for repairable in made:
        repairable.catalog.close()


@pytest.fixture
def repairable(make_repairable) -> RepairableLedger:
    return make_repairable()


# A batch that the snapshot would send


@pytest.mark.parametrize("status", [BatchStatus.PARKED, BatchStatus.NEW])
def test_a_batch_whose_rows_came_in_others_is_not_sent_again(repairable, status):
    """It was parked, a refill replaced it, and its rows came in other batches; then the catalog was lost."""
    epoch = repairable.ingest(range(6))
    batch_id = repairable.make_batch(epoch)
    if status is not BatchStatus.NEW:
        repairable.end_attempt(batch_id, status, "failed", "refused")
    repairable.snapshot()
    ids = repairable.ids(epoch)
    repairable.deliver(ids[:2])
    repairable.deliver(ids[2:])
    repairable.lose_catalog()
    planned = repairable.plan()
    assert (planned.refused, planned.resent_batches) == ((), (batch_id,))
    repairable.restore(planned)
    assert find_batch(repairable.catalog, batch_id).status is BatchStatus.REPLACED
    assert not open_parts(repairable.catalog)


def test_a_batch_of_which_some_rows_came_in_others_is_told_and_nothing_is_changed(repairable):
    epoch = repairable.ingest(range(6))
    batch_id = repairable.make_batch(epoch)
    repairable.snapshot()
    repairable.deliver(repairable.ids(epoch)[:2])
    repairable.lose_catalog()
    planned = repairable.plan()
    (reason,) = planned.refused
    assert f"2 of the 6 rows of batch {batch_id}" in reason
    with pytest.raises(PermanentError, match="cannot be brought back exactly"):
        repairable.restore(planned)
    assert not (repairable.folder / "catalog.db").exists()


def test_a_loaded_batch_is_known_again_in_those_that_it_was_sent_again_in(repairable):
    """And one that was deleted and not sent again stays what it was."""
    first, second = repairable.ingest(range(3)), repairable.ingest(range(3, 6))
    moved, deleted = repairable.load(first), repairable.load(second)
    repairable.snapshot()
    repairable.tables.rows["orders"] = []
    repairable.deliver(repairable.ids(first))
    repairable.lose_catalog()
    assert repairable.plan().resent_batches == (moved,)
    repairable.restore()
    assert find_batch(repairable.catalog, moved).status is BatchStatus.REPLACED
    assert find_batch(repairable.catalog, deleted).status is BatchStatus.IN_CLICKHOUSE


def test_a_loaded_batch_that_came_again_in_part_could_be_doubled_and_is_told(repairable):
    epoch = repairable.ingest(range(6))
    repairable.load(epoch)
    repairable.snapshot()
    repairable.tables.rows["orders"] = []
    repairable.deliver(repairable.ids(epoch)[:2])
    repairable.lose_catalog()
    (reason,) = repairable.plan().refused
    assert "2 of the 6 rows of batch" in reason


def test_the_plan_tells_an_open_part_that_came_and_one_that_came_in_part(repairable):
    first, second = repairable.ingest(range(3)), repairable.ingest(range(3, 6))
    repairable.snapshot()
    whole, part = repairable.ids(first), repairable.ids(second)
    repairable.deliver(whole)
    repairable.lose_catalog()
    planned = repairable.plan()
    assert len(planned.arrived_parts) == 1
    assert not planned.refused
    repairable.deliver(part[:1])
    (reason,) = repairable.plan().refused
    assert "1 of the 3 rows of part" in reason


def test_what_cannot_be_read_cannot_be_told(repairable):
    epoch = repairable.ingest(range(3))
    repairable.snapshot()
    (part,) = open_parts(repairable.catalog)
    ids = repairable.ids(epoch)
    repairable.lose_catalog()
    assert not repairable.plan().refused
    (repairable.folder / "files" / part.file.path).unlink()
    repairable.deliver(ids)
    (reason,) = repairable.plan().refused
    assert f"whether the rows of part {part.part} have come is unknown" in reason


# What the tables have


def test_ids_of_rows_that_nobody_knows_enter_the_index_and_are_read_again(repairable):
    repairable.load(repairable.ingest(range(3)))
    repairable.snapshot()
    repairable.load(repairable.ingest(range(3, 7)))
    known = as_halves(repairable.ids(1) + repairable.ids(2))
    repairable.lose_catalog()
    planned = repairable.plan()
    assert (planned.strange_rows, planned.records) == ({"orders": 4}, 4)
    repairable.restore(planned)
    assert repairable.index() == known
    assert repairable.position() == 3


def test_ids_are_looked_up_some_at_a_time(repairable, monkeypatch):
    monkeypatch.setattr(unknown_row_ids, "_IDS_AT_ONCE", 25)
    epoch = repairable.ingest(range(100))
    batch_id = repairable.make_batch(epoch)
    repairable.snapshot()
    later = repairable.ingest(range(100, 120))
    repairable.deliver(repairable.ids(epoch))
    repairable.deliver(repairable.ids(later))
    known = as_halves(repairable.ids(epoch) + repairable.ids(later))
    repairable.lose_catalog()
    assert repairable.plan().resent_batches == (batch_id,)
    repairable.restore()
    assert repairable.index() == known
    assert repairable.tables.ids_at_once < 60


def test_an_event_must_have_come_to_every_table_that_takes_it(make_repairable):
    """Its id is remembered for all of them, so where it has not come it never would."""
    repairable = make_repairable(tables=[{"name": "orders"}, {"name": "copies"}])
    repairable.snapshot()
    ids = repairable.ids(repairable.ingest(range(4)))
    repairable.deliver(ids)
    repairable.lose_catalog()
    (reason,) = repairable.plan().refused
    assert "orders and copies take the same events, but not the same ones have come to both" in reason
    repairable.deliver(ids[:3], table="copies")
    assert repairable.plan().refused == (reason,)
    repairable.deliver(ids[3:], table="copies")
    assert not repairable.plan().refused
    del repairable.tables.rows["copies"]
    (reason,) = repairable.plan().refused
    assert "copies is not in ClickHouse" in reason


def test_nothing_is_said_about_a_table_into_which_somebody_inserts(repairable):
    repairable.ingest(range(3))
    repairable.snapshot()
    repairable.lose_catalog()
    planned = repairable.plan()
    repairable.tables.running.append("some-query")
    with pytest.raises(PermanentError, match="An INSERT into orders is still running"):
        repairable.restore(planned)


def test_nothing_is_restored_while_an_insert_that_was_sent_lately_may_still_arrive(repairable):
    """While its body is on its way the server lists it nowhere."""
    repairable.ingest(range(3))
    repairable.snapshot()
    repairable.lose_catalog()
    planned = repairable.plan()
    store = FileStore(repairable.pipeline.ledger.files)
    mark = {"stage": "load", "token": 1, "holder": "h", "writes": 0, "batch_id": "b", "attempt": 1}

    def sent(seconds_ago):
        told = json.dumps(mark | {"at": time.time() - seconds_ago}).encode()
        store.replace(f"{repairable.pipeline.pipeline}/marks/load-000000000001-0123abcd.json", told)

    sent(5)
    with pytest.raises(PermanentError, match=r"may still arrive, for 114[0-9] s"):
        repairable.restore(planned)
    sent(1151)
    repairable.restore(planned)


@pytest.mark.parametrize(
    "content", [b"{", b'{"stage": "load", "token": 1, "holder": "h", "writes": 0, "at": "x"}']
)
def test_a_damaged_mark_says_by_the_time_of_its_file_when_rows_may_have_been_sent(repairable, content):
    repairable.ingest(range(3))
    repairable.snapshot()
    repairable.lose_catalog()
    planned = repairable.plan()
    mark = f"{repairable.pipeline.pipeline}/marks/load-000000000001-0123abcd.json"
    FileStore(repairable.pipeline.ledger.files).replace(mark, content)

    def written(seconds_ago):
        at = time.time() - seconds_ago
        os.utime(f"{repairable.pipeline.ledger.files}/{mark}", (at, at))

    written(5)
    with pytest.raises(PermanentError, match=r"may still arrive, for 114[0-9] s"):
        repairable.restore(planned)
    written(1151)
    repairable.restore(planned)


# Rows that Kafka does not have


def test_rows_that_did_not_come_from_kafka_are_not_lost_in_silence(repairable):
    repairable.ingest(range(3), query="imports")
    repairable.snapshot()
    repairable.ingest(range(3, 6), query="imports")
    repairable.lose_catalog()
    (reason,) = repairable.plan().refused
    assert "imports" in reason
    assert "settled after epoch 1 are lost" in reason
    assert "--given-again" in reason
    assert not repairable.plan(user_rewrites=True).refused


def test_rows_of_a_query_that_the_snapshot_does_not_know_are_seen_in_the_files(repairable):
    repairable.ingest(range(3))
    repairable.snapshot()
    repairable.ingest(range(3, 6), query="imports")
    repairable.lose_catalog()
    (reason,) = repairable.plan().refused
    assert "settled after epoch 1" in reason


def test_a_pipeline_without_kafka_comes_back_only_when_its_rows_are_given_again(make_repairable):
    repairable = make_repairable(
        source={"format": "frame", "fields": {"id": "UInt64", "note": "Nullable(String)"}}
    )
    repairable.snapshot()
    repairable.lose_catalog()
    (reason,) = repairable.plan().refused
    assert "did not come from Kafka" in reason
    assert not repairable.plan(user_rewrites=True).refused


# Snapshots of a time that was given up


def test_a_catalog_that_was_caught_up_is_what_the_next_snapshot_holds(repairable):
    """A dump of epoch 1 is restored although snapshots of epochs 2 to 4 are there."""
    repairable.ingest([0])
    repairable.snapshot()
    (old,) = snapshots.list_snapshots(repairable.store, "shop")
    with snapshots.open_snapshot(repairable.store, old, "shop") as copy:
        dump = (copy.folder / "snapshot.db").read_bytes()
    for number in (1, 2, 3):
        repairable.load(repairable.ingest([number]))
        repairable.snapshot()
    repairable.lose_catalog()
    (repairable.folder / "catalog.db").write_bytes(dump)
    repairable.catalog = repairable.open()
    token = take_lease(repairable.catalog)
    planned = catalog_restore.plan_older(
        repairable.pipeline, repairable.tables, repairable.catalog, "it is older", repairable.ask_kafka
    )
    catalog_restore.catch_up(repairable.pipeline, repairable.tables, repairable.catalog, token, planned)
    newest = snapshots.find_snapshot(repairable.store, "shop")
    assert newest is not None
    assert newest.epoch == 1
    assert [found.epoch for found in snapshots.list_snapshots(repairable.store, "shop")] == [1]
    with snapshots.open_snapshot(repairable.store, newest, "shop") as copy:
        assert [found.status for found in list_batches(copy)] == [
            found.status for found in list_batches(repairable.catalog)
        ]
    del repairable.records[1:]  # they are read again
    repairable.ingest([1, 2, 3])
    repairable.snapshot()
    assert snapshots.find_snapshot(repairable.store, "shop").epoch == 2


def test_a_snapshot_after_a_restore_is_newer_than_any_before_it(repairable, monkeypatch):
    """Also where the new one could not be written at once, and whatever the clock says."""
    for number in range(4):
        repairable.ingest([number])
        repairable.snapshot()
    kept = snapshots.list_snapshots(repairable.store, "shop")
    newest = repairable.folder / "files" / kept[0].path
    higher = newest.with_name(newest.name.replace(f"{kept[0].token:012d}", f"{1 << 34:012d}"))
    newest.rename(higher)
    higher.write_bytes(higher.read_bytes()[:-1])
    monkeypatch.setattr(snapshots, "renew_snapshots", lambda *_: None)
    repairable.lose_catalog()
    planned = repairable.plan()
    assert planned.epoch == 3
    repairable.restore(planned)
    repairable.snapshot()
    found = snapshots.find_snapshot(repairable.store, "shop")
    assert found is not None
    assert found.token > 1 << 34
    assert found == snapshots.list_snapshots(repairable.store, "shop")[0]


# The file itself


def test_a_damaged_file_stays_where_it_is_until_the_new_one_is_whole(repairable, monkeypatch):
    repairable.ingest(range(3))
    repairable.snapshot()
    repairable.lose_catalog()
    file = repairable.folder / "catalog.db"
    file.write_bytes(b"this is no database" * 1000)
    planned = repairable.plan()

    def fail(*_: object) -> None:
        raise PermanentError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(table_adoption, "restore", fail)
        with pytest.raises(PermanentError, match="the disk is full"):
            repairable.restore(planned)
    assert file.read_bytes().startswith(b"this is no database")
    assert [found.name for found in repairable.folder.glob("catalog.db*")] == ["catalog.db"]
    aside = repairable.restore(planned)
    assert aside is not None
    assert aside.read_bytes().startswith(b"this is no database")
    assert repairable.position() == 3
    repairable.catalog.close()
    assert {found.name for found in repairable.folder.glob("catalog.db*")} == {"catalog.db", aside.name}


def test_a_log_that_a_lost_file_left_is_not_read_as_the_new_ones(repairable):
    repairable.ingest(range(3))
    repairable.snapshot()
    repairable.lose_catalog()
    (repairable.folder / "catalog.db-wal").write_bytes(b"of another file")
    assert repairable.restore() is None
    assert repairable.position() == 3


def test_a_refused_plan_is_not_done(repairable):
    repairable.ingest(range(3))
    repairable.snapshot()
    repairable.lose_catalog()
    with pytest.raises(PermanentError, match="because of this"):
        repairable.restore(replace(repairable.plan(), refused=("because of this",)))


# The command's steps


@pytest.fixture
def servers(repairable, monkeypatch) -> RepairableLedger:
    """The command finds the repairable's tables and Kafka in place of servers."""
    monkeypatch.setattr(repair, "connect", lambda _: repairable.tables)
    monkeypatch.setattr(repair, "_ask_kafka", lambda _, known: repairable.ask_kafka(known))
    return repairable


def test_a_catalog_that_cannot_come_back_is_left_alone_with_its_reasons(servers):
    servers.ingest(range(3))
    servers.snapshot()
    servers.ingest(range(3, 6))
    servers.earliest = 5
    servers.lose_catalog()
    result = repair.apply_repair(servers.pipeline, lambda _: None)
    assert result.catalog is not None
    assert "Kafka has deleted the offsets 3 to 4" in result.catalog.refused[0]
    assert not (servers.folder / "catalog.db").exists()
    servers.earliest = 0
    assert not repair.apply_repair(servers.pipeline, lambda _: None).catalog.refused
    assert repair.plan_repair(servers.pipeline).is_clean


def test_a_catalog_that_a_frozen_process_has_locked_is_told_of_while_it_is_brought_back(servers, monkeypatch):
    monkeypatch.setattr(sqlite_lock, "REPORT_SECONDS", 0.05)
    servers.make_batch(servers.ingest(range(3)))
    mark = "shop/marks/load-000000000005-00000000.json"
    servers.store.replace(mark, b"{")
    os.utime(f"{servers.store.root}/{mark}", (0.0, 0.0))
    for lease in leases.list_leases(servers.catalog):
        leases.release(servers.catalog, lease)
    said: list[str] = []
    with locked_by_frozen_process(servers.folder / "catalog.db") as holder:

        def say(text: str) -> None:
            said.append(text)
            if f"is locked by process {holder.pid}" in text:
                holder.kill()

        result = repair.apply_repair(servers.pipeline, say)
    assert result.catalog is not None
    assert [text for text in said if "is locked by process" in text]
    assert [text for text in said if "is not locked any more" in text]


def test_a_damaged_mark_is_named_and_gone_when_the_catalog_was_compared_with_the_tables(servers):
    batch_id = servers.make_batch(servers.ingest(range(3)))
    assert batch_id
    mark = "shop/marks/load-000000000005-00000000.json"
    servers.store.replace(mark, b"{")
    os.utime(f"{servers.store.root}/{mark}", (0.0, 0.0))
    planned = repair.plan_repair(servers.pipeline).catalog
    assert planned is not None
    assert (mark in planned.problem, planned.refused) == (True, ())
    for lease in leases.list_leases(servers.catalog):
        leases.release(servers.catalog, lease)
    repair.apply_repair(servers.pipeline, lambda _: None)
    assert mark not in servers.store.walk("shop/marks")
    assert repair.plan_repair(servers.pipeline).is_clean


def test_damage_of_the_catalog_is_told_also_while_clickhouse_is_away(servers, monkeypatch):
    servers.ingest(range(3))
    servers.lose_catalog()

    def be_away(*_: object) -> None:
        raise TransientError("ClickHouse does not answer.")

    monkeypatch.setattr(servers.tables, "query", be_away)
    with pytest.raises(TransientError, match=r"there is no file .*catalog\.db.*ClickHouse does not answer"):
        repair.plan_repair(servers.pipeline)


def test_an_older_catalog_is_judged_again_when_nobody_else_can_change_it(servers):
    """What arrives between the first look and the leases counts."""
    batch_id = servers.make_batch(servers.ingest(range(3)))
    servers.deliver([b"0" * 16])
    servers.stop()
    ids = servers.ids(1)
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        servers.deliver(ids, batch_id=batch_id)

    result = repair.apply_repair(servers.pipeline, say)
    assert said == [
        "the catalog: it is older than the tables: orders holds 1 rows of batches that it does not know"
    ]
    assert result.catalog.arrived_batches == (batch_id,)
    assert find_batch(servers.catalog, batch_id).status is BatchStatus.IN_CLICKHOUSE
