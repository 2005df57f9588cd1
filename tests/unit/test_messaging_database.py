"""How messaging opens a database and what it makes of its errors."""

import time

import pytest
from sqlalchemy import text

from oncehouse.errors import ConfigurationError, PermanentError, TransientError
from oncehouse.messaging.database import open_engine, read_clock, wrapped_errors


@pytest.fixture
def engine(tmp_path):
    engine = open_engine(f"sqlite:///{tmp_path / 'messages.db'}")
    yield engine
    engine.dispose()


@pytest.mark.parametrize("url", ["nonsense", "mysql://host/db", "postgresql+nothing://host/db"])
def test_a_database_that_cannot_serve_is_refused_with_advice(url):
    with pytest.raises(ConfigurationError):
        open_engine(url)


def test_the_database_tells_the_time(engine):
    with engine.connect() as connection:
        assert abs(read_clock(connection) - time.time()) < 3600


def test_a_missing_table_is_a_matter_of_set_up(engine):
    with (
        pytest.raises(ConfigurationError, match=r"Reading: no such table: nowhere\. Make it"),
        engine.connect() as connection,
        wrapped_errors("Reading", absent="Make it."),
    ):
        connection.execute(text("SELECT * FROM nowhere"))


def test_what_the_database_refuses_for_good_is_permanent(engine):
    with (
        pytest.raises(PermanentError, match="Reading: the database refused it"),
        engine.connect() as connection,
        wrapped_errors("Reading", absent="Make it."),
    ):
        connection.execute(text("SELEC"))


def test_a_database_that_is_away_may_be_tried_again():
    engine = open_engine("postgresql+psycopg://nobody@127.0.0.1:9/none?connect_timeout=1")
    with (
        pytest.raises(TransientError, match="may be tried again"),
        wrapped_errors("Reading", absent="Make it."),
    ):
        engine.connect()
