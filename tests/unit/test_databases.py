"""How our own processes open a database."""

import pytest
from sqlalchemy import event

from oncehouse.databases import open_engine

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
