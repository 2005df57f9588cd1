"""A SQLite file whose write lock another process has: who has it, and that it is said before the wait is over."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from frozen_locker import locked_by_frozen_process
from oncehouse.common import sqlite_lock
from oncehouse.common.database import begin, open_engine
from oncehouse.common.sqlite_lock import LockedError, find_pid
from oncehouse.errors import TransientError
from oncehouse.ledger.catalog import database as catalog_database
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.leases import acquire
from oncehouse.ledger.models import Stage

LOCKS = """\
1: POSIX  ADVISORY  READ 15 fe:00:827 128 128
2: -> POSIX  ADVISORY  WRITE 16 fe:00:827 120 120
3: POSIX  ADVISORY  WRITE 17 fe:00:828 120 120
4: FLOCK  ADVISORY  WRITE 18 fe:00:827 0 EOF
5: POSIX  ADVISORY  WRITE 19 fe:00:827 123 123
6: POSIX  ADVISORY  WRITE 20 fe:00:827 120 120
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "catalog.db"


@pytest.fixture
def soon(monkeypatch) -> None:
    monkeypatch.setattr(sqlite_lock, "REPORT_SECONDS", 0.05)


def test_the_process_with_the_write_lock_is_told_from_readers_waiters_and_other_files():
    assert find_pid(LOCKS.splitlines(), 827) == 20
    assert find_pid(LOCKS.splitlines()[:5], 827) is None
    assert find_pid(["1: POSIX  ADVISORY  WRITE 0 fe:00:827 120 120"], 827) is None
    assert find_pid(["1: POSIX  ADVISORY  WRITE 9 fe:00:827 0 EOF"], 827) == 9


@pytest.mark.usefixtures("soon")
def test_a_catalog_that_a_frozen_process_has_locked_is_told_of_and_not_waited_for_for_ever(path):
    reported: list[str] = []
    catalog = Catalog(f"sqlite:///{path}", "events", lock_seconds=0.3, report=reported.append)
    catalog.prepare()
    with locked_by_frozen_process(path) as holder:
        with pytest.raises(LockedError) as caught:
            acquire(catalog, Stage.INGEST, holder="this test", lease_seconds=60)
        assert catalog.version(), "reading goes on"
    assert caught.value.exit_code == TransientError.exit_code
    for message in (*reported, str(caught.value)):
        assert f"{path} is locked by process {holder.pid} (python" in message
        assert f"`kill -CONT {holder.pid}` lets it go on" in message
    assert len(reported) == 1
    acquire(catalog, Stage.INGEST, holder="this test", lease_seconds=60)
    assert reported[1].startswith(f"The database {path} is not locked any more")
    catalog.close()


@pytest.mark.usefixtures("soon")
def test_a_holder_that_this_machine_does_not_know_is_called_another_process(path, monkeypatch):
    monkeypatch.setattr(sqlite_lock, "find_holder", lambda _: None)
    engine = open_engine(f"sqlite:///{path}", setting="database", lock_seconds=0.1)
    with begin(engine, whose="a test") as connection:
        connection.execute(text("CREATE TABLE some (id INTEGER)"))
    with (
        locked_by_frozen_process(path),
        pytest.raises(LockedError, match="is locked by another process for"),
        begin(engine, whose="a test"),
    ):
        pass
    with begin(engine, whose="a test") as connection:
        connection.execute(text("INSERT INTO some VALUES (1)"))
    engine.dispose()


def test_a_file_that_another_process_keeps_to_itself_is_waited_for_once(path, monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr(catalog_database.time, "sleep", waits.append)
    first = Catalog(f"sqlite:///{path}", "events")
    first.prepare()
    first.close()
    with locked_by_frozen_process(path, keep_readers_out=True):
        catalog = Catalog(f"sqlite:///{path}", "events", lock_seconds=0.05)
        for attempt in (
            catalog.version,
            lambda: acquire(catalog, Stage.INGEST, holder="me", lease_seconds=60),
        ):
            with pytest.raises(LockedError, match=r"the catalog sqlite:.* is locked by another process"):
                attempt()
    assert waits == []
    assert catalog.version()
    catalog.close()


@pytest.mark.usefixtures("soon")
def test_a_long_transaction_of_this_very_process_is_waited_for_in_silence(path):
    reported: list[str] = []
    engine = open_engine(f"sqlite:///{path}", setting="database", lock_seconds=0.3, report=reported.append)
    with begin(engine, whose="a test"), pytest.raises(LockedError), begin(engine, whose="a test"):
        pass
    assert reported == []
    engine.dispose()
