"""How our own processes open a database."""

import sqlite3
from contextlib import closing

import pytest
from sqlalchemy import event, text

from oncehouse.common.database import is_absent_table, open_engine
from oncehouse.errors import TransientError

URL = "postgresql+psycopg://app@db.example/app"


class SeenError(Exception):
    """The connection was asked for; there is no server to give it."""


def connection_arguments(url: str) -> dict[str, str]:
    engine, seen = open_engine(url, setting="database"), {}

    @event.listens_for(engine, "do_connect")
    def see(_dialect, _record, _arguments, named):
        seen.update(named)
        raise SeenError

    with pytest.raises(SeenError):
        engine.connect()
    return seen


def test_a_peer_that_vanished_without_a_word_is_noticed_within_a_minute():
    asked = connection_arguments(URL)
    idle, every, times = (int(asked[f"keepalives_{name}"]) for name in ("idle", "interval", "count"))
    assert idle + every * times <= 60
    assert int(asked["tcp_user_timeout"]) <= 60_000


def test_what_the_url_says_of_the_connection_counts():
    found = connection_arguments(f"{URL}?keepalives_idle=300&sslmode=require")
    assert (found["keepalives_idle"], found["sslmode"]) == ("300", "require")
    assert found["keepalives_count"] == "3"


def test_the_url_that_messages_show_is_the_users_own():
    assert str(open_engine(URL, setting="database").url) == URL


def count_rows(engine) -> int:
    with engine.connect() as connection:
        return connection.execute(text("SELECT count(*) FROM things")).scalar_one()


def test_a_sqlite_file_that_took_the_place_of_another_is_the_one_that_is_read(tmp_path):
    path, copy = tmp_path / "catalog.db", tmp_path / "copy.db"
    engine = open_engine(f"sqlite:///{path}", setting="ledger.catalog")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE things (number INTEGER)"))
    with closing(sqlite3.connect(path)) as source:
        source.execute("VACUUM INTO ?", (str(copy),))
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO things VALUES (1)"))
    assert count_rows(engine) == 1
    for ending in ("-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
    copy.replace(path)
    assert count_rows(engine) == 0
    engine.dispose()


def test_a_sqlite_file_that_is_gone_is_not_made_again_in_silence(tmp_path):
    path = tmp_path / "catalog.db"
    engine = open_engine(f"sqlite:///{path}", setting="ledger.catalog")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE things (number INTEGER)"))
    path.unlink()
    with pytest.raises(TransientError, match="is not there any more"):
        count_rows(engine)
    assert not path.exists()
    engine.dispose()


def test_commits_of_sqlite_are_on_the_disk_when_they_are_confirmed(tmp_path):
    engine = open_engine(f"sqlite:///{tmp_path}/catalog.db", setting="ledger.catalog")
    with engine.connect() as connection:
        full = 2
        assert connection.execute(text("PRAGMA synchronous")).scalar_one() == full
    engine.dispose()


@pytest.mark.parametrize(
    ("statement", "is_table"), [("SELECT id FROM seen", True), ("SELECT name FROM known", False)]
)
def test_a_missing_table_is_no_missing_column(statement, is_table):
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE known (id INTEGER)")
        with pytest.raises(sqlite3.OperationalError) as caught:
            connection.execute(statement)
    assert is_absent_table(caught.value) is is_table
