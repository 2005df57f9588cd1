"""Catalogs of earlier versions, opened by today's oncehouse: all rows are kept, once, or nothing changes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Text, create_engine, inspect, select, text

import old_ledger
from ledger_examples import IDENTITY, make_registration, race, take_lease
from old_ledger import OldLedger
from oncehouse import __version__
from oncehouse.errors import (
    ConfigurationError,
    FencedError,
    PermanentError,
    TransientError,
    UpgradeNeededError,
)
from oncehouse.ledger.catalog import (
    batches,
    epochs,
    learned_fields,
    leases,
    migrations,
    requests,
    schema,
    segments,
)
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.migrations import Step, Upgrade
from oncehouse.ledger.catalog.upgrade_status import read_standing
from oncehouse.ledger.models import BatchStatus, Stage


@pytest.fixture(params=old_ledger.ARCHIVES)
def ledger(request, tmp_path) -> OldLedger:
    return old_ledger.unpack(tmp_path / "old", request.param)


@pytest.fixture
def old_url(ledger, catalog_url) -> str:
    """The release's catalog in each database."""
    if catalog_url.startswith("sqlite"):
        return ledger.url
    old_ledger.fill_postgres(ledger, catalog_url)
    return catalog_url


@pytest.fixture
def old(old_url) -> Iterator[Catalog]:
    opened = Catalog(old_url, old_ledger.PIPELINE, retry_seconds=(0.0,))
    yield opened
    opened.close()


def rows_of(catalog: Catalog) -> dict[str, list[tuple[Any, ...]]]:
    with catalog.read() as connection:
        return old_ledger.all_rows(connection)


def shapes(url: str) -> dict[str, Any]:
    """Columns, keys and indexes of all tables of ours."""
    engine = create_engine(url)
    looked = inspect(engine)
    found = {}
    for name in looked.get_table_names():
        columns = {
            column["name"]: (str(column["type"]), column["nullable"], column["default"])
            for column in looked.get_columns(name)
        }
        indexes = {(index["name"], tuple(index["column_names"])) for index in looked.get_indexes(name)}
        found[name] = columns, looked.get_pk_constraint(name)["constrained_columns"], indexes
    engine.dispose()
    return found


def test_every_row_of_the_earlier_version_is_kept(old, ledger):
    before = rows_of(old)
    assert old.version() == ledger.version
    assert old.prepare() == Upgrade(before=ledger.version, after=schema.VERSION)
    after = rows_of(old)
    assert after.pop("oncehouse_ledger") == [("ledger", schema.VERSION)]
    del before["oncehouse_ledger"]
    # The list of upgrades grows by this one.
    history = before.pop("oncehouse_upgrades", [])
    assert [row[:2] for row in after["oncehouse_upgrades"]][: len(history)] == [row[:2] for row in history]
    assert all(
        len(rows) > 0 for name, rows in before.items() if name in {"oncehouse_epochs", "oncehouse_segments"}
    )
    # Holders of the older version are fenced, which changes their tokens and nothing else.
    for rows in (before, after):
        rows["oncehouse_leases"] = [row[:2] for row in rows["oncehouse_leases"]]
    width = {name: len(rows[0]) for name, rows in before.items() if rows}
    assert {name: [row[: width[name]] for row in after[name]] for name in width} == {
        name: before[name] for name in width
    }
    assert old.prepare() is None, "once upgraded there is nothing to do"


def test_what_the_release_wrote_is_read_as_it_meant_it(old):
    old.prepare()
    assert old.exists()
    counts = epochs.total_counts(old)
    assert (counts.read, counts.new, counts.duplicate, counts.dead_letter, counts.skipped) == (
        143,
        120,
        20,
        2,
        1,
    )
    assert epochs.read_positions(old) == {(old_ledger.TOPIC, 0): 78, (old_ledger.TOPIC, 1): 65}
    statuses = [batch.status for batch in batches.list_batches(old)]
    assert set(statuses) == {BatchStatus.IN_CLICKHOUSE, BatchStatus.IN_PROCESS, BatchStatus.NEW}
    assert sum(part.live_rows for part in batches.open_parts(old)) == 20
    assert sum(found.rows for found in epochs.list_dead_letter_files(old)) == 2
    assert sum(segment.keys for segment in segments.list_segments(old)) == 120
    assert not requests.list_requests(old)
    assert not learned_fields.list_fields(old)
    assert len(leases.list_leases(old)) == len(Stage)


def test_upgraded_tables_are_those_of_a_new_catalog(old, old_url, tmp_path, request):
    old.prepare()
    if old_url.startswith("sqlite"):
        new = f"sqlite:///{tmp_path / 'new.db'}"
    else:
        new = request.getfixturevalue("postgres_url")
    fresh = Catalog(new, old_ledger.PIPELINE)
    fresh.prepare()
    fresh.close()
    assert shapes(old_url) == shapes(new)


def test_until_it_is_upgraded_an_old_catalog_is_left_alone_and_says_what_to_do(old, ledger):
    before = rows_of(old)
    with pytest.raises(
        UpgradeNeededError,
        match=rf"version {ledger.version}, made by an older oncehouse.*`oncehouse upgrade`",
    ):
        old.exists()
    with pytest.raises(UpgradeNeededError):
        take_lease(old)
    assert rows_of(old) == before


def test_of_several_processes_that_open_it_at_once_one_upgrades(old, old_url, ledger):
    opened = [Catalog(old_url, old_ledger.PIPELINE, retry_seconds=(0.0,)) for _ in range(4)]
    told = race([catalog.prepare for catalog in opened])
    assert sorted(told, key=str) == [None] * 3 + [Upgrade(before=ledger.version, after=schema.VERSION)]
    for catalog in opened:
        catalog.close()
    done = list(range(ledger.version + 1, schema.VERSION + 1))
    assert [step.version for step in read_standing(old).history][-len(done) :] == done


def upgrade_and_die(url: str, point: str) -> int:
    arguments = f"{url!r}, {old_ledger.PIPELINE!r}"
    program = f"from oncehouse.ledger.catalog.database import Catalog; Catalog({arguments}).prepare()"
    return subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"ONCEHOUSE_CRASH_AT": point},
        check=False,
        cwd=Path(__file__).parent,
    ).returncode


def test_a_process_killed_on_the_way_leaves_the_old_version_and_the_next_one_does_it(old, old_url):
    before = rows_of(old)
    assert upgrade_and_die(old_url, "before the upgrade is settled") == -9
    assert rows_of(old) == before
    assert old.prepare() is not None
    old.adopt(old.identity())


def test_a_step_that_fails_leaves_the_old_version(old, monkeypatch):
    def half(connection):
        connection.execute(text("CREATE TABLE oncehouse_half (id INTEGER)"))
        connection.execute(text("INSERT INTO oncehouse_nowhere VALUES (1)"))

    before = rows_of(old)
    steps = (*migrations.STEPS, Step(version=schema.VERSION + 1, what="fails", change=half))
    monkeypatch.setattr(migrations, "STEPS", steps)
    with pytest.raises(PermanentError, match="oncehouse_nowhere"):
        old.prepare()
    assert rows_of(old) == before


def coming(monkeypatch, **changes: Any) -> None:
    """Let there be a step beyond today's, as a later release will have one."""

    def add_column(connection):
        migrations.add_column(connection, "oncehouse_epochs", "remark", Text())

    step = {"version": schema.VERSION + 1, "what": "epochs have remarks", "change": add_column} | changes
    monkeypatch.setattr(migrations, "STEPS", (*migrations.STEPS, Step(**step)))
    monkeypatch.setattr(migrations, "VERSION", schema.VERSION + 1)


def test_a_holder_that_may_go_on_beside_an_upgrade_does(catalog, monkeypatch):
    token = take_lease(catalog)
    coming(monkeypatch)
    assert catalog.prepare() == Upgrade(before=schema.VERSION, after=schema.VERSION + 1)
    catalog.write(Stage.INGEST, token, lambda connection: None)


def test_a_holder_that_must_not_go_on_is_fenced_and_cannot_come_back(catalog, catalog_url, monkeypatch):
    token = take_lease(catalog)
    coming(monkeypatch, fences=True)
    catalog.prepare()
    with pytest.raises(FencedError):
        catalog.write(Stage.INGEST, token, lambda connection: None)
    monkeypatch.undo()
    with pytest.raises(ConfigurationError, match=f"Use oncehouse {__version__}, which upgraded it"):
        take_lease(catalog, Stage.LOAD)


def test_a_table_that_somebody_reads_is_waited_for_in_turns(postgres_url, monkeypatch):
    """Readers of SQLite hold up nobody."""
    catalog = Catalog(postgres_url, "shop", retry_seconds=())
    catalog.prepare()
    coming(monkeypatch)
    monkeypatch.setattr(migrations, "_LOCK_SECONDS", 0.1)
    with catalog.read() as reader:
        reader.execute(select(schema.epochs)).all()
        with pytest.raises(TransientError, match="lock timeout"):
            catalog.prepare()
    assert catalog.prepare() is not None
    catalog.close()


def test_steps_lead_from_the_first_release_to_today_one_by_one():
    assert [step.version for step in migrations.STEPS] == list(range(2, schema.VERSION + 1))
    assert [step.version for step in migrations.STEPS if step.fences] == [2], (
        "0.1.0 cannot read the files of 0.2.0"
    )


def test_a_process_of_the_release_is_fenced_by_the_upgrade_and_one_of_a_later_version_is_not(old, ledger):
    with old.read() as connection:
        before = connection.execute(select(schema.leases.c.stage, schema.leases.c.token)).all()
    old.prepare()
    fenced = int(ledger.version == old_ledger.RELEASED)
    assert {lease.stage: lease.token for lease in leases.list_leases(old)} == {
        Stage(stage): token + fenced for stage, token in before
    }


def test_an_upgraded_catalog_takes_epochs_batches_and_leases(old):
    old.prepare()
    token = take_lease(old)
    other = Catalog(str(old.engine.url.render_as_string(hide_password=False)), "shop")
    other.adopt(IDENTITY)
    from oncehouse.ledger.catalog.registration import register

    register(other, take_lease(other), make_registration())
    other.close()
    old.write(Stage.INGEST, token, lambda connection: None)
