"""Full disks under files, catalog, checkpoint and Spark: the run says so, waits, and goes on when there is space.

Each disk is a small file system of its own, really full. While it is, nothing is settled that was not written.
"""

from __future__ import annotations

import os
import pwd
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest

from ledger_examples import IDENTITY, TOPIC, make_registration, take_lease
from live_pipeline import LivePipeline, make_event, wait_until
from oncehouse.devstack.chaos.injected_defects import register_anywhere
from oncehouse.errors import FullDiskError
from oncehouse.ledger.catalog import epochs
from oncehouse.ledger.catalog import registration as registering
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.models import BatchStatus, EpochKind, Registration, Stage
from oncehouse.ledger.stats.backlog import sum_backlog
from oncehouse.monitoring.overview import list_lease_views
from oncehouse.pipeline.ingest import epoch, kafka_source
from oncehouse.pipeline.stages import kafka_stream
from small_disk import SmallDisk, mount

EVENTS = [make_event(number) for number in range(3000)]
FIRST = 20


@pytest.fixture
def make_disk(tmp_path) -> Iterator[Callable[..., SmallDisk]]:
    """`make_disk("files", 16 << 20)`: a small disk at that folder of the pipeline."""
    with ExitStack() as at_end:
        yield lambda name, size_bytes: at_end.enter_context(mount(tmp_path / name, size_bytes=size_bytes))


@pytest.fixture
def quick_catalog(monkeypatch) -> None:
    """A catalog that is away or full is told after a moment instead of half a minute."""
    monkeypatch.setitem(Catalog.__init__.__kwdefaults__, "retry_seconds", (0.1,))


def settled_offsets(live_pipeline: LivePipeline) -> int:
    return sum(epochs.read_positions(live_pipeline.catalog).values())


def said(live_pipeline: LivePipeline, words: str) -> list[str]:
    return [line for line in live_pipeline.said if words in line]


def fill_up_and_come_back(live_pipeline: LivePipeline, disk: SmallDisk, words: str, *, but: int = 0) -> None:
    """The disk is full while events come in; when it was told, or went by unnoticed, there is space again."""
    live_pipeline.send(EVENTS[:FIRST])
    with live_pipeline.start() as running:
        running.wait_for_rows(FIRST)
        empty_log(live_pipeline)
        disk.fill(but=but)
        live_pipeline.send(EVENTS[FIRST:])
        wait_until(
            lambda: (
                said(live_pipeline, words) or settled_offsets(live_pipeline) == len(EVENTS) or running.error
            ),
            f"{words!r} to be said",
        )
        disk.release()
        wait_until(
            lambda: settled_offsets(live_pipeline) == len(EVENTS) or running.error,
            "everything to be read after that",
        )
    live_pipeline.run()


def empty_log(live_pipeline: LivePipeline) -> None:
    """So that the next write has to make SQLite's log longer."""

    def is_empty() -> bool:
        with live_pipeline.catalog.engine.connect().execution_options(
            isolation_level="AUTOCOMMIT"
        ) as connection:
            busy, _, _ = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()
        return not busy

    wait_until(is_empty, "nobody to read the catalog's log")


# Files


def make_pipeline_on_small_files(make_pipeline, make_disk) -> tuple[LivePipeline, SmallDisk]:
    disk = make_disk("files", 16 << 20)
    return make_pipeline(epoch={"max_rows": 5000}, ledger={"min_free": 1}), disk


@pytest.mark.scenario("disk full under ledger files")
def test_a_disk_full_under_the_files_is_told_once_and_waited_for(make_pipeline, make_disk):
    live_pipeline, disk = make_pipeline_on_small_files(make_pipeline, make_disk)
    fill_up_and_come_back(live_pipeline, disk, "No space is left", but=40_000)
    (told,) = said(live_pipeline, "No space is left")
    assert f"the ledger's files under {live_pipeline.folder}/files" in told
    assert "free some space there" in told
    live_pipeline.assert_exact()


@pytest.mark.defect("disk full under ledger files")
def test_an_epoch_settled_without_what_could_not_be_written_is_noticed(make_pipeline, make_disk, monkeypatch):
    def read_what_fits(plan, attempt, blocks):
        from oncehouse.errors import FullDiskError
        from oncehouse.pipeline.ingest.manifest import TaskManifest
        from oncehouse.pipeline.ingest.read_task import read_records

        try:
            return read_records(plan, attempt, blocks)
        except FullDiskError:
            return TaskManifest(read=0, skipped=0, chunks=(), letters=())

    monkeypatch.setattr(epoch, "read_records", read_what_fits)
    live_pipeline, disk = make_pipeline_on_small_files(make_pipeline, make_disk)
    fill_up_and_come_back(live_pipeline, disk, "No space is left", but=40_000)
    with pytest.raises(AssertionError, match="are lost"):
        live_pipeline.assert_exact()


def test_an_epoch_that_found_no_space_leaves_nothing_behind_that_takes_space(
    make_pipeline, make_disk, monkeypatch
):
    monkeypatch.setattr(kafka_stream, "_TRIES_WHEN_DRAINING", 1)
    live_pipeline, disk = make_pipeline_on_small_files(make_pipeline, make_disk)
    live_pipeline.send(EVENTS[:FIRST])
    live_pipeline.run()
    before = set(live_pipeline.store.walk("live/"))
    disk.fill(but=100_000)
    live_pipeline.send(EVENTS[FIRST:])
    with pytest.raises(FullDiskError, match="No space is left for the ledger's files"):
        live_pipeline.run()
    # A run leaves a mark of a few bytes for each lease that it takes.
    left = set(live_pipeline.store.walk("live/")) - before
    assert not [path for path in left if "/checkpoints/" not in path and "/marks/" not in path]
    disk.release()
    live_pipeline.run()
    live_pipeline.assert_exact()


# Catalog


# So much stays free that an epoch is begun, and so little that it cannot be registered.
ALMOST_FULL = 8192


def make_pipeline_on_small_catalog(make_pipeline, make_disk) -> tuple[LivePipeline, SmallDisk]:
    disk = make_disk("catalog", 16 << 20)
    ledger = {"catalog": f"sqlite:///{disk.folder}/catalog.db", "min_free": 1}
    # A long lease, for each renewal takes some of the space that is left.
    return make_pipeline(epoch={"max_rows": 5000}, ledger=ledger, lease=60.0), disk


@pytest.mark.usefixtures("quick_catalog")
@pytest.mark.scenario("disk full under the catalog")
def test_a_disk_full_under_the_catalog_is_told_and_waited_for(make_pipeline, make_disk):
    live_pipeline, disk = make_pipeline_on_small_catalog(make_pipeline, make_disk)
    fill_up_and_come_back(live_pipeline, disk, "no space is left for the catalog", but=ALMOST_FULL)
    assert "free some space on its disk" in said(live_pipeline, "no space is left for the catalog")[0]
    live_pipeline.assert_exact()


@pytest.mark.usefixtures("quick_catalog")
@pytest.mark.defect("disk full under the catalog")
def test_a_registration_taken_for_done_while_the_catalog_is_full_is_noticed(
    make_pipeline, make_disk, monkeypatch
):
    right = registering.register

    def register_or_not(catalog, token, registration):
        try:
            right(catalog, token, registration)
        except FullDiskError:
            missed.append(registration)
            disk.release()

    missed: list[object] = []
    monkeypatch.setattr(epoch.registering, "register", register_or_not)
    monkeypatch.setattr(registering, "_advance", register_anywhere())
    live_pipeline, disk = make_pipeline_on_small_catalog(make_pipeline, make_disk)
    fill_up_and_go_on_unnoticed(live_pipeline, disk, missed)
    with pytest.raises(AssertionError, match="are lost"):
        live_pipeline.assert_exact()


def fill_up_and_go_on_unnoticed(live_pipeline: LivePipeline, disk: SmallDisk, missed: list[object]) -> None:
    live_pipeline.send(EVENTS[:FIRST])
    with live_pipeline.start() as running:
        running.wait_for_rows(FIRST)
        empty_log(live_pipeline)
        disk.fill(but=ALMOST_FULL)
        live_pipeline.send(EVENTS[FIRST:2000])
        wait_until(lambda: missed or running.error, "a registration that found no space")
        live_pipeline.send(EVENTS[2000:])
        wait_until(
            lambda: settled_offsets(live_pipeline) == len(EVENTS) or running.error, "the stream to go on"
        )
    live_pipeline.run()


# Checkpoint


def make_pipeline_on_small_checkpoints(make_pipeline, make_disk) -> tuple[LivePipeline, SmallDisk]:
    disk = make_disk("files/live/checkpoints", 1 << 20)
    return make_pipeline(epoch={"max_rows": 5000}), disk


@pytest.mark.scenario("disk full under the checkpoint")
def test_a_disk_full_under_the_checkpoint_is_told_and_waited_for(make_pipeline, make_disk):
    live_pipeline, disk = make_pipeline_on_small_checkpoints(make_pipeline, make_disk)
    fill_up_and_come_back(live_pipeline, disk, "no space is left where Spark writes")
    assert (
        "its checkpoint in the folder of ledger.files"
        in said(live_pipeline, "no space is left where Spark writes")[0]
    )
    live_pipeline.assert_exact()


@pytest.mark.defect("disk full under the checkpoint")
def test_a_stream_that_starts_anew_from_elsewhere_than_the_ledger_is_noticed(
    make_pipeline, make_disk, monkeypatch
):
    right = kafka_source.starting_positions

    def skip_after_a_failure(facts, positions, earliest):
        found = right(facts, positions, earliest)
        if said(live_pipeline, "no space is left where Spark writes") and not skipped:
            skipped.update(found)
            return {place: offset + 100 for place, offset in found.items()}
        return found

    skipped: dict[tuple[str, int], int] = {}
    monkeypatch.setattr(kafka_source, "starting_positions", skip_after_a_failure)
    monkeypatch.setattr(registering, "_advance", register_anywhere())
    live_pipeline, disk = make_pipeline_on_small_checkpoints(make_pipeline, make_disk)
    fill_up_and_come_back(live_pipeline, disk, "no space is left where Spark writes")
    with pytest.raises(AssertionError, match="are lost"):
        live_pipeline.assert_exact()


# Spark's own files


def test_a_disk_full_under_spark_is_told_and_waited_for(make_pipeline, make_disk, tmp_path, monkeypatch):
    disk = make_disk("spark", 256 << 20)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "spark"))
    live_pipeline = make_pipeline(epoch={"max_rows": 500})
    live_pipeline.send(EVENTS[:FIRST])
    process = live_pipeline.spawn()
    log = live_pipeline.folder / "process.log"
    try:
        wait_until(lambda: len(live_pipeline.rows()) == FIRST or process.poll() is not None, "the first rows")
        disk.fill()
        live_pipeline.send(EVENTS[FIRST:])
        wait_until(
            lambda: "no space is left" in log.read_text(encoding="utf-8") or process.poll() is not None,
            "the full disk to be told",
        )
        disk.release()
        wait_until(lambda: len(live_pipeline.rows()) == len(EVENTS) or process.poll() is not None, "all rows")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=90) == 0
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in log.read_text(encoding="utf-8")
    live_pipeline.assert_exact()


# Before a disk is full


def test_reading_pauses_before_the_disk_is_full_and_goes_on_when_there_is_space(make_pipeline, make_disk):
    disk = make_disk("files", 16 << 20)
    live_pipeline = make_pipeline(epoch={"max_rows": 300})
    live_pipeline.send(EVENTS[:FIRST])
    with live_pipeline.start() as running:
        running.wait_for_rows(FIRST)
        disk.fill(but=1 << 20)
        live_pipeline.send(EVENTS[FIRST:])
        wait_until(lambda: ingest_pause(live_pipeline), "the pause to be noted")
        held = {view.stage for view in list_lease_views(live_pipeline.catalog) if view.ends_in_seconds > 0}
        assert held == set(Stage), "leases are kept meanwhile"
        disk.release()
        running.wait_for_rows(len(EVENTS))
        wait_until(lambda: not ingest_pause(live_pipeline), "the end of the pause to be noted")
    (told,) = said(live_pipeline, "reading pauses")
    assert (
        f"MB are free for the ledger's files under {live_pipeline.folder}/files, 1.6MB must stay free" in told
    )
    assert len(said(live_pipeline, "reading goes on")) == 1
    assert not said(live_pipeline, "No space is left")
    live_pipeline.assert_exact()


def ingest_pause(live_pipeline: LivePipeline) -> str | None:
    return next(view.pause for view in list_lease_views(live_pipeline.catalog) if view.stage is Stage.INGEST)


def test_reading_pauses_at_the_bound_while_clickhouse_is_away_and_catches_up_oldest_first(
    make_pipeline, stack
):
    live_pipeline = make_pipeline(
        epoch={"max_rows": 100},
        batch={"min_rows": 500, "max_rows": 1000, "max_wait": 60.0, "min_interval": 0.5},
        ledger={"max_backlog": "150KB"},
    )
    with live_pipeline.start() as running:
        # Whoever holds a lease has looked at ClickHouse already.
        wait_until(
            lambda: live_pipeline.catalog.exists() and list_lease_views(live_pipeline.catalog), "the leases"
        )
        stack.kill("clickhouse")
        live_pipeline.send(EVENTS)
        wait_until(lambda: said(live_pipeline, "reading pauses") or running.error, "the pause")
        behind = len(EVENTS) - settled_offsets(live_pipeline)
        assert behind > 0, "not all was read"
        assert 0 < sum_backlog(live_pipeline.catalog) <= 150 * 1024
        assert len(live_pipeline.batches()) <= 1, "no batch is cut while one waits for an answer"
        stack.start("clickhouse")
        running.wait_for_rows(2500)
        wait_until(lambda: settled_offsets(live_pipeline) == len(EVENTS), "all to be read")
    live_pipeline.run()
    rows = [batch.rows for batch in live_pipeline.batches(statuses=[BatchStatus.IN_CLICKHOUSE])]
    assert min(rows[:-1]) >= 500, f"no batch but the last is small: {rows}"
    live_pipeline.assert_exact()


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
