"""Full disks under files, catalog, checkpoint and Spark: the run says so, waits, and goes on when there is space.

Each disk is a small file system of its own, really full. While it is, nothing is settled that was not written.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest

from ledger_examples import IDENTITY, TOPIC, make_registration, take_lease
from oncehouse.errors import FullDiskError
from oncehouse.ledger import epochs, registering
from oncehouse.ledger.catalog import Catalog
from oncehouse.ledger.records import EpochKind, Registration
from oncehouse.ledger.registering import register
from oncehouse.pipeline import ingest, stream
from road import Road, make_event, wait_until
from small_disk import SmallDisk, mount

EVENTS = [make_event(number) for number in range(3000)]
FIRST = 20


@pytest.fixture
def make_disk(tmp_path) -> Iterator[Callable[..., SmallDisk]]:
    """`make_disk("files", 16 << 20)`: a small disk at that folder of the road."""
    with ExitStack() as at_end:
        yield lambda name, size_bytes: at_end.enter_context(mount(tmp_path / name, size_bytes=size_bytes))


@pytest.fixture
def quick_catalog(monkeypatch) -> None:
    """A catalog that is away or full is told after a moment instead of half a minute."""
    monkeypatch.setitem(Catalog.__init__.__kwdefaults__, "retry_seconds", (0.1,))


def settled_offsets(road: Road) -> int:
    return sum(epochs.read_positions(road.catalog).values())


def said(road: Road, words: str) -> list[str]:
    return [line for line in road.said if words in line]


def fill_up_and_come_back(road: Road, disk: SmallDisk, words: str, *, but: int = 0) -> None:
    """The disk is full while events come in; when it was told, or went by unnoticed, there is space again."""
    road.send(EVENTS[:FIRST])
    with road.start() as running:
        running.wait_for_rows(FIRST)
        empty_log(road)
        disk.fill(but=but)
        road.send(EVENTS[FIRST:])
        wait_until(
            lambda: said(road, words) or settled_offsets(road) == len(EVENTS) or running.error,
            f"{words!r} to be said",
        )
        disk.release()
        wait_until(
            lambda: settled_offsets(road) == len(EVENTS) or running.error, "everything to be read after that"
        )
    road.run()


def empty_log(road: Road) -> None:
    """So that the next write has to make SQLite's log longer."""

    def is_empty() -> bool:
        with road.catalog.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            busy, _, _ = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()
        return not busy

    wait_until(is_empty, "nobody to read the catalog's log")


def advance_anyhow(connection, catalog, span, topic_id, epoch):
    start = epochs.read_positions(catalog).get((span.topic, span.partition), span.start)
    return ADVANCE(connection, catalog, replace(span, start=start), topic_id, epoch)


ADVANCE = registering._advance


# Files


def make_road_on_small_files(make_road, make_disk) -> tuple[Road, SmallDisk]:
    disk = make_disk("files", 16 << 20)
    return make_road(epoch={"max_rows": 5000}, ledger={"min_free": 1}), disk


@pytest.mark.scenario("disk full under ledger files")
def test_a_disk_full_under_the_files_is_told_once_and_waited_for(make_road, make_disk):
    road, disk = make_road_on_small_files(make_road, make_disk)
    fill_up_and_come_back(road, disk, "No space is left", but=40_000)
    (told,) = said(road, "No space is left")
    assert f"the ledger's files under {road.folder}/files" in told
    assert "free some space there" in told
    road.assert_exact()


@pytest.mark.defect("disk full under ledger files")
def test_an_epoch_settled_without_what_could_not_be_written_is_noticed(make_road, make_disk, monkeypatch):
    def read_what_fits(plan, attempt, blocks):
        from oncehouse.errors import FullDiskError
        from oncehouse.pipeline.manifest import TaskManifest
        from oncehouse.pipeline.reading import read_records

        try:
            return read_records(plan, attempt, blocks)
        except FullDiskError:
            return TaskManifest(read=0, skipped=0, chunks=(), letters=())

    monkeypatch.setattr(ingest, "read_records", read_what_fits)
    road, disk = make_road_on_small_files(make_road, make_disk)
    fill_up_and_come_back(road, disk, "No space is left", but=40_000)
    with pytest.raises(AssertionError, match="are lost"):
        road.assert_exact()


def test_an_epoch_that_found_no_space_leaves_nothing_behind_that_takes_space(
    make_road, make_disk, monkeypatch
):
    monkeypatch.setattr(stream, "_TRIES_WHEN_DRAINING", 1)
    road, disk = make_road_on_small_files(make_road, make_disk)
    road.send(EVENTS[:FIRST])
    road.run()
    before = set(road.store.walk("road/"))
    disk.fill(but=100_000)
    road.send(EVENTS[FIRST:])
    with pytest.raises(FullDiskError, match="No space is left for the ledger's files"):
        road.run()
    assert {path for path in set(road.store.walk("road/")) - before if "/checkpoints/" not in path} == set()
    disk.release()
    road.run()
    road.assert_exact()


# Checkpoint


def make_road_on_small_checkpoints(make_road, make_disk) -> tuple[Road, SmallDisk]:
    disk = make_disk("files/road/checkpoints", 1 << 20)
    return make_road(epoch={"max_rows": 5000}), disk


@pytest.mark.scenario("disk full under the checkpoint")
def test_a_disk_full_under_the_checkpoint_is_told_and_waited_for(make_road, make_disk):
    road, disk = make_road_on_small_checkpoints(make_road, make_disk)
    fill_up_and_come_back(road, disk, "no space is left where Spark writes")
    assert (
        "its checkpoint in the folder of ledger.files" in said(road, "no space is left where Spark writes")[0]
    )
    road.assert_exact()


@pytest.mark.defect("disk full under the checkpoint")
def test_a_stream_that_starts_anew_from_elsewhere_than_the_ledger_is_noticed(
    make_road, make_disk, monkeypatch
):
    right = stream.starting_positions

    def skip_after_a_failure(facts, positions, earliest):
        found = right(facts, positions, earliest)
        if said(road, "no space is left where Spark writes") and not skipped:
            skipped.update(found)
            return {place: offset + 100 for place, offset in found.items()}
        return found

    skipped: dict[tuple[str, int], int] = {}
    monkeypatch.setattr(stream, "starting_positions", skip_after_a_failure)
    monkeypatch.setattr(registering, "_advance", advance_anyhow)
    road, disk = make_road_on_small_checkpoints(make_road, make_disk)
    fill_up_and_come_back(road, disk, "no space is left where Spark writes")
    with pytest.raises(AssertionError, match="are lost"):
        road.assert_exact()


# Catalogs alone


@pytest.fixture
def small_postgres(postgres) -> Iterator[tuple[str, SmallDisk]]:
    """A database whose tables, but not the server's log, stand on a small disk."""
    server, owner = postgres.url.replace("+psycopg", "", 1), pwd.getpwnam("nobody")
    # Not in the folder of the test: the server's user may not look into those above it.
    with TemporaryDirectory(prefix="small-disk-") as folder:
        Path(folder).chmod(0o711)
        with mount(Path(folder) / "tables", size_bytes=32 << 20) as disk:
            os.chown(disk.folder, owner.pw_uid, owner.pw_gid)
            with psycopg.connect(server, autocommit=True) as connection:
                connection.execute(f"CREATE TABLESPACE small LOCATION '{disk.folder}'")
                connection.execute("CREATE DATABASE on_a_small_disk TABLESPACE small")
            yield postgres.url.rsplit("/", 1)[0] + "/on_a_small_disk", disk
            with psycopg.connect(server, autocommit=True) as connection:
                connection.execute("DROP DATABASE on_a_small_disk WITH (FORCE)")
                connection.execute("DROP TABLESPACE small")


@pytest.fixture
def small_sqlite(make_disk) -> tuple[str, SmallDisk]:
    disk = make_disk("catalog", 16 << 20)
    return f"sqlite:///{disk.folder}/catalog.db", disk


@pytest.mark.scenario("disk full under the catalog")
@pytest.mark.parametrize("database", ["small_sqlite", "small_postgres"])
def test_a_full_catalog_settles_an_epoch_wholly_or_not_at_all(request, database):
    url, disk = request.getfixturevalue(database)
    catalog = Catalog(url, "shop", retry_seconds=(0.0,))
    try:
        catalog.prepare()
        catalog.adopt(IDENTITY)
        token = take_lease(catalog)
        disk.fill()
        with pytest.raises(
            FullDiskError, match=r"Pipeline shop: no space is left for the catalog .* free some"
        ):
            register_until_full(catalog, token)
        settled = epochs.next_epoch(catalog) - 1
        assert epochs.read_positions(catalog).get((TOPIC, 0), 0) == settled * 10
        disk.release()
        register(catalog, token, make_epoch(settled))
        assert epochs.read_positions(catalog) == {(TOPIC, 0): (settled + 1) * 10}
        assert epochs.total_counts(catalog, kind=EpochKind.KAFKA).read == (settled + 1) * 10
    finally:
        catalog.close()


def register_until_full(catalog: Catalog, token: int) -> None:
    for settled in range(20_000):
        register(catalog, token, make_epoch(settled))


def make_epoch(settled: int) -> Registration:
    return make_registration(settled + 1, start=settled * 10, end=settled * 10 + 10)
